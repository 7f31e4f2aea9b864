//! A campaign in its own lab: network namespaces of this machine as hosts.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use apus::net::cpu;
use apus_load::ResultFile;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;

use crate::campaign::{Campaign, Testbed};
use crate::network::{self, Links, Network};
use crate::plan::Setting;
use crate::processor::{Precedence, SlowProcessor};
use crate::queues::Queues;
use crate::switch::{HostDiscipline, Ports};

/// The program's hidden command that calls [`agent::run`](crate::agent::run).
pub const AGENT_COMMAND: &str = "lab-agent";

/// Name of the lab of a process that [runs](run) a campaign.
fn lab_of(process: u32) -> String {
    format!("run{process}")
}

/// Name of this run's lab.
fn lab() -> String {
    lab_of(std::process::id())
}

/// Removes the lab that a [run] in a process left, if there is one. The process has ended.
///
/// # Errors
/// If a part cannot be removed.
pub fn remove_of(process: u32) -> Result<()> {
    network::remove(Some(&lab_of(process))).map(drop)
}

/// Checks that this machine can emulate the settings.
///
/// # Errors
/// [`Misuse`] with the key of the plan, its value and the allowed values.
pub fn check(settings: &[Setting]) -> Result<()> {
    let processors = cpu::allowed().len();
    let checked = settings.iter().try_for_each(|setting| setting.check_emulated(processors));
    checked.map_err(|error| Misuse(error.to_string()).into())
}

/// Measures all settings in a lab that is removed at the end. `dir` keeps a result for each setting; existing results are not
/// measured again.
///
/// A user other than root must call [`privilege::acquire`](crate::privilege::acquire) first.
///
/// # Errors
/// If a host or link fails, or a file cannot be written.
pub fn run(
    settings: &[Setting],
    dir: Option<PathBuf>,
    progress: &dyn Progress,
) -> Result<ResultFile> {
    let discipline = HostDiscipline::probe();
    let testbed = Emulated {
        network: None,
        discipline,
        rto_min_ms: None,
        slowed: Vec::new(),
        precedence: None,
    };
    Campaign::new(testbed, dir, progress).run(settings)
}

/// Namespaces of this machine.
struct Emulated {
    /// The current network, with its number of hosts and its links.
    network: Option<(Network, usize, Links)>,
    discipline: HostDiscipline,
    /// Lower bound on TCP's retransmission timeout on the hosts, in ms, if it is not the kernel's.
    rto_min_ms: Option<u32>,
    /// The slow processors, one for each host.
    slowed: Vec<SlowProcessor>,
    precedence: Option<Precedence>,
}

impl Testbed for Emulated {
    /// Creates a new network for every setting, so that queues and TCP's path metrics start empty.
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
        self.rto_min_ms = None;
        self.network = Some((network, setting.hosts, links));
        Ok(addresses)
    }

    fn set_rto_min(&mut self, ms: Option<u32>) -> Result<()> {
        if self.rto_min_ms != ms {
            let (network, ..) = self.network.as_ref().expect("a setting was prepared");
            network.set_rto_min(ms)?;
            self.rto_min_ms = ms;
        }
        Ok(())
    }

    fn command(&self, place: usize) -> Command {
        let (network, ..) = self.network.as_ref().expect("a setting was prepared");
        let program = std::env::current_exe().unwrap_or_else(|_| "apus".into());
        let mut on_host = network.on_host(place, &program.to_string_lossy());
        // The network belongs to the lab.
        on_host.arg(AGENT_COMMAND).env("APUS_INSECURE", "true");
        if self.slowed.is_empty() {
            return on_host;
        }
        // See [`Precedence`]. The niceness applies within a session's share of the processors, or globally without such shares.
        let mut command = Command::new("nice");
        command.args(["-n", "-20"]).arg(on_host.get_program()).args(on_host.get_args());
        command.env("APUS_INSECURE", "true");
        command
    }

    fn processor(&self, place: usize) -> Option<usize> {
        self.slowed.get(place).map(SlowProcessor::number)
    }

    fn queues(&self) -> Result<Option<Queues>> {
        let (network, ..) = self.network.as_ref().expect("a setting was prepared");
        Queues::now(&network.switch()).map(Some)
    }

    /// Slow hosts are intended to be the limit.
    fn shares_processors(&self) -> bool {
        self.slowed.is_empty()
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        if self.network.is_some() {
            // `apus lab down` removes any remains.
            let _ = network::remove(Some(&lab()));
        }
    }
}
