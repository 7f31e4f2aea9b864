//! `apus cluster`: the plans of the lab on real hosts, led over ssh.

use std::path::PathBuf;

use anyhow::{Context, Result};
use apus_lab::remote::{self, parse};
use apus_load::misuse::Misuse;
use clap::Subcommand;

use crate::interrupt;
use crate::lab::CampaignArgs;
use crate::progress::Bar;

/// Measure on real hosts over ssh
#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    Run(Box<Args>),
}

/// Run a plan of the lab on real hosts
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus cluster run --hosts hosts.txt --insecure --link-mbps 25000 plans/lab-vs-tcp.toml --dir results/vs-tcp
  apus cluster run --hosts hosts.txt --insecure --link-mbps 25000 --workload w4 --load 0.5
  apus cluster run --hosts hosts.txt --link-mbps 1000 --program /opt/apus/bin/apus --ssh='-F ssh_config' --workload 100

Each line of the hosts file has the name of a host for ssh and its IP address in the measured network:
  node1.example.com 10.0.1.1
  root@node2        10.0.1.2
Every host needs the same version of apus, free UDP ports from 20146 and TCP ports from 5000, and ssh without a password. The \
command does not change links, queues or the MTU; link_mbps and mtu of the plan must describe them.

The nodes need certificates, which the environment of ssh sessions on the hosts names (APUS_TLS_CERT, APUS_TLS_KEY, APUS_TLS_CA), \
or --insecure.")]
pub(crate) struct Args {
    /// File with one host per line
    #[arg(long, value_name = "FILE")]
    hosts: PathBuf,
    /// Path of `apus` on the hosts
    #[arg(long, value_name = "PATH", default_value = "apus")]
    program: String,
    /// Arguments for ssh, separated by spaces
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    ssh: String,
    /// Let the nodes speak plain with everybody while they measure
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    campaign: CampaignArgs,
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(cluster: &Cluster) -> Result<()> {
    let Cluster::Run(args) = cluster;
    let text = std::fs::read_to_string(&args.hosts)
        .with_context(|| format!("cannot read hosts file `{}`", args.hosts.display()))?;
    let hosts = parse(&text)
        .map_err(|error| Misuse(format!("hosts file `{}`: {error:#}", args.hosts.display())))?;
    let settings = args.campaign.settings(Some(hosts.len()))?;
    if settings.iter().any(|setting| !setting.names_link_mbps) {
        let why = "the rate of the hosts' links in Mb/s, which load and ideal times follow";
        return Err(
            Misuse(format!("'--link-mbps', or link_mbps in the plan, is missing: {why}")).into()
        );
    }
    let output = args.campaign.output.open()?;
    interrupt::handle()?;
    let ssh = args.ssh.split_whitespace().map(str::to_owned).collect();
    let cluster =
        remote::Cluster { hosts, program: args.program.clone(), ssh, insecure: args.insecure };
    let result = remote::run(cluster, &settings, args.campaign.dir.clone(), &Bar::new())?;
    output.deliver(&result)
}
