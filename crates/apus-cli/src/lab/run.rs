//! `apus lab run`.

use anyhow::Result;
use apus_lab::network::HOSTS_MAX;
use apus_lab::{emulated, privilege};
use apus_node::arguments;

use super::options::CampaignArgs;
use crate::interrupt;
use crate::output::say;
use crate::progress::Bar;

/// Measure in an emulated cluster: a plan, options, or a plan changed by options
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab run --workload w4 --seconds 20
  sudo apus lab run plans/lab-vs-tcp.toml --dir results/vs-tcp --html vs-tcp.html
  sudo apus lab run --hosts 4 --load max --workload 500kB --transports apus,tcp
  apus lab run --hosts 3 --seconds 5 --json run.json

The command removes the lab at the end; if it is killed, `apus lab down` does. With --dir the same command continues a stopped \
run. Without root the command needs user namespaces. See docs/lab.md.")]
pub(crate) struct Args {
    /// Hosts [default: 10]
    #[arg(long, value_name = "N", value_parser = arguments::number::<usize>(format!("hosts from 2 to {HOSTS_MAX}")))]
    hosts: Option<usize>,
    #[command(flatten)]
    campaign: CampaignArgs,
}

/// Measures and shows.
///
/// # Errors
/// When the plan is wrong, the privilege is missing, or a host or link fails.
pub(super) fn run(args: &Args) -> Result<()> {
    let settings = args.campaign.settings(args.hosts)?;
    emulated::check(&settings)?;
    privilege::acquire()?;
    let output = args.campaign.output.open()?;
    args.campaign.empty_capture()?;
    interrupt::handle()?;
    say(&args.campaign.output, "The nodes speak plain (insecure) in the lab's own network.")?;
    let result = emulated::run(&settings, args.campaign.dir.clone(), &Bar::new())?;
    output.deliver(&result)
}
