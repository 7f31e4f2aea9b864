//! `apus lab run`: carries out a plan in a lab of its own.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use apus::net::cpu;

use super::campaign::{Campaign, Venue};
use super::network::{HOSTS_MAX, Links, Network};
use super::plan::{self, Contender, LINK_MBPS_MAX, LoadLevel, Pattern, Setting};
use super::processor::{Precedence, SlowProcessor};
use super::queues::Queues;
use super::switch::{HostDiscipline, Ports};
use super::{network, privilege};
use crate::failure::{self, Misuse};
use crate::interrupt;
use crate::output::OutputArgs;

/// Name of the lab made for this run.
fn lab() -> String {
    format!("run{}", std::process::id())
}

/// Measure in an emulated cluster: a plan, options, or a plan changed by options
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab run --workload w4 --seconds 20
  sudo apus lab run plans/lab-vs-tcp.toml --dir results/vs-tcp --html vs-tcp.html
  sudo apus lab run --hosts 4 --load max --workload 500kB --transports apus,tcp
  apus lab run --hosts 3 --seconds 5 --json run.json

The lab is removed at the end; after a kill, `apus lab down` removes it. With --dir a run that was stopped goes on
where it was. Without root it works where the system allows user namespaces. See docs/lab.md.")]
pub(crate) struct Args {
    /// A plan in TOML; see docs/lab.md
    #[arg(value_name = "PLAN.toml")]
    plan: Option<PathBuf>,
    /// Hosts [default: 10]
    #[arg(long, value_name = "N", value_parser = parse_hosts)]
    hosts: Option<usize>,
    #[command(flatten)]
    options: Options,
    /// Keep a result for each setting in DIR, and do not measure those again that are there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What may be set besides the plan, for all its measurements.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Rate of each link, both ways [default: 50]
    #[arg(long, value_name = "MBPS", allow_negative_numbers = true, value_parser = parse_link_mbps)]
    link_mbps: Option<f64>,
    /// What is measured, one after the other [default: apus,tcp]
    #[arg(long, value_name = "TRANSPORT,…", value_delimiter = ',')]
    transports: Option<Vec<Contender>>,
    /// Lengths of requests: w1 to w5, a size, mix, or weight:size,… [default: w4]
    #[arg(long, value_name = "WORKLOAD")]
    workload: Option<String>,
    /// Who calls whom [default: all-to-all]
    #[arg(long, value_name = "PATTERN")]
    pattern: Option<Pattern>,
    /// Share of each link that messages fill, max or unloaded [default: 0.8]
    #[arg(long, value_name = "LOAD", value_parser = str::parse::<LoadLevel>)]
    load: Option<LoadLevel>,
    /// Priorities that Apus uses, 1 to 8 [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    priorities: Option<u8>,
    /// Packet delivery of Apus: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32 [default: suspend]
    #[arg(long, value_name = "MODE")]
    delivery: Option<String>,
    /// Receive buffer that Apus asks for; 212992 is what a stock machine gives; `apus settings receive_buffer` tells the default
    #[arg(long, value_name = "BYTES", value_parser = crate::bench::parse_buffer)]
    receive_buffer: Option<u32>,
    /// Connections of TCP for each pair of hosts; the best is taken [default: 1,2,4,8]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = parse_connections)]
    connections: Option<Vec<usize>>,
    /// Congestion control of TCP [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Seconds in which calls start that count [default: 30]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// How often all is measured [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
}

impl Options {
    /// The settings of a plan, or of no plan, with these options and so many hosts.
    ///
    /// # Errors
    /// When the plan cannot be read or a value is not allowed.
    pub(crate) fn settings(
        &self,
        plan: Option<&PathBuf>,
        hosts: Option<usize>,
    ) -> Result<Vec<Setting>> {
        let text = match plan {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read plan `{}`", path.display()))?,
            None => String::new(),
        };
        let named = |error: anyhow::Error| match plan {
            Some(path) => {
                Misuse(format!("plan `{}`: {}", path.display(), failure::message(&error)))
            }
            None => Misuse(failure::message(&error)),
        };
        let settings = plan::settings(&text).map_err(named)?;
        let changed = settings.into_iter().map(|setting| {
            let hosts = hosts.unwrap_or(setting.hosts);
            let changed = self.applied_to(Setting { hosts, ..setting });
            changed.check().map_err(named)?;
            Ok(changed)
        });
        changed.collect()
    }

    fn applied_to(&self, mut setting: Setting) -> Setting {
        fn put<T: Clone>(place: &mut T, value: &Option<T>) {
            if let Some(value) = value {
                place.clone_from(value);
            }
        }
        put(&mut setting.link_mbps, &self.link_mbps);
        setting.names_link_mbps |= self.link_mbps.is_some();
        put(&mut setting.transports, &self.transports);
        put(&mut setting.workload, &self.workload);
        put(&mut setting.pattern, &self.pattern);
        put(&mut setting.load, &self.load);
        put(&mut setting.priorities, &self.priorities);
        put(&mut setting.delivery, &self.delivery);
        put(&mut setting.connections, &self.connections);
        put(&mut setting.seconds, &self.seconds);
        put(&mut setting.repetitions, &self.repetitions);
        if let Some(bytes) = self.receive_buffer {
            setting.apus.insert("receive_buffer".to_owned(), i64::from(bytes).into());
        }
        setting.congestion = self.congestion.clone().or(setting.congestion);
        setting
    }
}

/// A link's rate as an argument; the plan's own check has the rest to say.
fn parse_link_mbps(text: &str) -> Result<f64, String> {
    text.parse()
        .map_err(|_| format!("it must be a number of Mb/s, in the lab from 1 to {LINK_MBPS_MAX}"))
}

/// The time of a measurement as an argument, likewise.
fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "it must be a number of seconds from 0.1 to 100000".to_owned())
}

/// Hosts as an argument, likewise.
fn parse_hosts(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("it must be a number of hosts from 2 to {HOSTS_MAX}"))
}

/// Connections as an argument, likewise.
fn parse_connections(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it must be a number of connections from 1 to 64".to_owned())
}

/// Measures and shows.
///
/// # Errors
/// When the plan is wrong, the privilege is missing, or a host or link fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let settings = args.options.settings(args.plan.as_ref(), args.hosts)?;
    let emulated =
        settings.iter().try_for_each(|setting| setting.check_emulated(cpu::allowed().len()));
    emulated.map_err(|error| Misuse(error.to_string()))?;
    privilege::acquire()?;
    let output = args.output.open()?;
    let stop = interrupt::handle()?;
    let discipline = HostDiscipline::probe();
    let venue = Emulated { network: None, discipline, slowed: Vec::new(), precedence: None };
    let mut campaign = Campaign { venue, stop, trials: 0, dir: args.dir.clone() };
    let result = campaign.run(&settings)?;
    output.deliver(&result)
}

/// Namespaces of this machine.
struct Emulated {
    /// What there is, and how it was made.
    network: Option<(Network, usize, Links)>,
    discipline: HostDiscipline,
    /// What makes the hosts slow, one for each.
    slowed: Vec<SlowProcessor>,
    precedence: Option<Precedence>,
}

impl Venue for Emulated {
    /// Makes the network anew for every setting: queues and what TCP remembers of the way begin empty.
    fn prepare(&mut self, setting: &Setting) -> Result<Vec<IpAddr>> {
        let ports = Ports {
            link_mbps: setting.link_mbps,
            switch_queue: setting.switch_queue()?,
            host_queue: setting.host_queue()?,
            host_discipline: self.discipline,
        };
        let links = Links { mtu: setting.mtu, ports };
        if let Some((old, ..)) = self.network.take() {
            old.down()?;
        }
        self.slowed.clear();
        self.precedence = setting.host_cpu.map(|_| Precedence::take());
        let network = Network::up(&lab(), setting.hosts, &links)?;
        if let Some(share) = setting.host_cpu {
            let processors = cpu::allowed().into_iter().take(setting.hosts);
            self.slowed = processors
                .map(|processor| SlowProcessor::start(processor, share))
                .collect::<Result<_>>()?;
        }
        let addresses = network.addresses();
        self.network = Some((network, setting.hosts, links));
        Ok(addresses)
    }

    fn command(&self, place: usize) -> Command {
        let (network, ..) = self.network.as_ref().expect("a setting was prepared");
        let program = std::env::current_exe().unwrap_or_else(|_| "apus".into());
        let mut on_host = network.on_host(place, &program.to_string_lossy());
        on_host.arg("lab-host");
        if self.slowed.is_empty() {
            return on_host;
        }
        // See [`Precedence`]; in a session's share of the processors, or without such shares.
        let mut command = Command::new("nice");
        command.args(["-n", "-20"]).arg(on_host.get_program()).args(on_host.get_args());
        command
    }

    fn processor(&self, place: usize) -> Option<usize> {
        self.slowed.get(place).map(SlowProcessor::number)
    }

    fn queues(&self) -> Result<Option<Queues>> {
        let (network, ..) = self.network.as_ref().expect("a setting was prepared");
        Queues::now(&network.switch()).map(Some)
    }

    /// Slow hosts are what is measured.
    fn shares_processors(&self) -> bool {
        self.slowed.is_empty()
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        if self.network.is_some() {
            // What cannot be removed now, `apus lab down` finds.
            let _ = network::remove(Some(&lab()));
        }
    }
}
