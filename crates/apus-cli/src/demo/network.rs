//! Calls under load in a network: emulated where this user can make network namespaces, otherwise simulated.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apus::net::cpu;
use apus_lab::plan::Setting;
use apus_lab::{emulated, privilege};
use apus_load::progress::Progress as _;
use apus_load::stop::{self, CUT_SHORT, Stopped};
use apus_load::{ResultFile, Row};
use apus_sim::{Buffers, HomaPlan, Plan, Protocol, results};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::table::{ComparedFigure, Contenders, Unit, is_of};
use crate::interrupt;
use crate::output::print;
use crate::progress::Bar;
use crate::sim::{STEPS, simulate};

/// The hidden command that measures in the lab. It is a process of its own, so that only the lab of an ordinary user runs in that
/// user's namespaces, and not the earlier measurements.
pub(crate) const LAB_COMMAND: &str = "demo-lab";

/// Lengths of calls: 90 % have 100 B, 9 % 10 kB, 1 % 1 MB.
const LENGTHS: &str = "mix";

/// Measurements in a network, and the kind of network.
pub(super) struct Network {
    pub(super) lines: [ComparedFigure; 3],
    /// Whether the network was emulated or simulated, and why.
    pub(super) description: String,
}

/// Measures in a lab or in the simulator; adds the rows, curves and warnings. `seconds` is the length of a run between two
/// processes; all times here are multiples of it.
///
/// # Errors
/// When the simulator fails.
pub(super) fn measure(seconds: f64, result: &mut ResultFile) -> Result<Network> {
    let obstacle = match obstacle() {
        Some(obstacle) => obstacle,
        None => match emulate(seconds) {
            Ok(emulated) => return Ok(emulated.network(result)),
            Err(error) => format!("the lab failed ({error:#})"),
        },
    };
    match simulate_all(seconds, result) {
        Err(error) if error.is::<Stopped>() => result.warn(CUT_SHORT),
        simulated => simulated?,
    }
    let description = format!(
        "Network: SIMULATED, because {obstacle}: 16 hosts, 10 Gb/s links, 80 % load. \
         ×: multiples of the time on an idle network. DCTCP stands in the column unix."
    );
    Ok(Network { lines: simulated_lines(), description })
}

/// Why there is no lab here.
fn obstacle() -> Option<String> {
    if cpu::allowed().len() == 1 {
        return Some("the lab needs two CPUs".to_owned());
    }
    privilege::obstacle()
}

/// Rates of the emulated links in Mb/s: the second where this machine is too small or too busy for the first.
const LINKS_MBPS: [f64; 2] = [100.0, 25.0];

/// Measurements of the lab.
struct Emulated {
    measured: ResultFile,
    link_mbps: f64,
    /// The load of the processors in refused runs.
    too_busy: Vec<(f64, Option<f64>)>,
}

/// Measures in the lab, with slower links if the machine is too busy for the usual ones.
fn emulate(seconds: f64) -> Result<Emulated> {
    let mut too_busy = Vec::new();
    let [mut link_mbps, lower] = LINKS_MBPS;
    loop {
        let measured = lab_apart(seconds, link_mbps)?;
        let refused = measured.rows.iter().find(|row| row.is_refused());
        let stops = stop::requested() || link_mbps <= lower;
        if let Some(row) = refused {
            too_busy.push((link_mbps, row.number("cpu_busy_pct")));
            if !stops {
                link_mbps = lower;
                continue;
            }
        }
        return Ok(Emulated { measured, link_mbps, too_busy });
    }
}

impl Emulated {
    /// Adds the measurements to a result.
    fn network(self, result: &mut ResultFile) -> Network {
        let Self { measured, link_mbps, too_busy } = self;
        let refused = measured.rows.iter().any(Row::is_refused);
        measured.warnings.into_iter().for_each(|warning| result.warn(warning));
        result.rows.extend(measured.rows);
        result.series.extend(measured.series);
        let how =
            if privilege::is_root() { "as root" } else { "in a user namespace, without root" };
        let mut description = format!(
            "Network: emulated on this machine {how}: 5 hosts, {link_mbps} Mb/s links, 80 % load. \
             Its nodes speak plain (insecure)."
        );
        description += &in_words(&too_busy, refused);
        Network { lines: emulated_lines(refused), description }
    }
}

/// A sentence about the rates at which the machine was too busy, and the consequence.
fn in_words(too_busy: &[(f64, Option<f64>)], refused: bool) -> String {
    if too_busy.is_empty() {
        return String::new();
    }
    let one = |(mbps, busy): &(f64, Option<f64>)| match busy {
        Some(busy) => format!("processors {busy:.0} % busy at {mbps} Mb/s"),
        None => format!("processors too busy at {mbps} Mb/s"),
    };
    let list: Vec<String> = too_busy.iter().map(one).collect();
    let end = match refused {
        false => "the rate of the links was reduced",
        true => "so the figures do not describe the network",
    };
    format!(" ({}; {end})", list.join(", "))
}

/// The setting that the lab measures.
fn setting(seconds: f64, link_mbps: f64) -> Setting {
    Setting {
        hosts: 5,
        link_mbps,
        workload: LENGTHS.to_owned(),
        seconds: 8.0 * seconds,
        warmup_s: 2.0 * seconds,
        drain_s: 2.0 * seconds,
        connections: vec![1, 4],
        ..Setting::default()
    }
}

/// Measures in the lab, in this process; writes the result to standard output.
///
/// # Errors
/// When the privilege is missing, or a host or link fails.
pub(crate) fn lab(seconds: f64, link_mbps: f64) -> Result<()> {
    privilege::acquire()?;
    interrupt::handle()?;
    interrupt::stop_at_end_of_input()?;
    print(&emulated::run(&[setting(seconds, link_mbps)], None, &Bar::new())?.to_json())
}

/// Measures in the lab, in a process of its own.
fn lab_apart(seconds: f64, link_mbps: f64) -> Result<ResultFile> {
    let child = Command::new(env::current_exe()?)
        .args([LAB_COMMAND, &seconds.to_string(), &link_mbps.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The signals that reach this process are passed on to all of that one's.
        .process_group(0)
        .spawn()?;
    let id = child.id();
    let Output { status, stdout, .. } = output(child)?;
    if !status.success() {
        // It removes its lab itself, unless it was killed.
        emulated::remove_of(id).with_context(|| status.to_string())?;
        bail!("{status}");
    }
    ResultFile::parse(&String::from_utf8(stdout)?, Path::new("-"))
}

/// Interval of checks for a request to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reads the output of a process until it ends. A request to stop ends it, and so does the end of its input with this process.
fn output(mut child: Child) -> Result<Output> {
    let input = child.stdin.take();
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let (ended, wait) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while wait.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if stop::requested() {
                    // It may have ended just now.
                    let _ = killpg(group, Signal::SIGTERM);
                    return;
                }
            }
        });
        let output = child.wait_with_output();
        drop((input, ended));
        output
    })
    .context("the lab's process")
}

const EMULATED: Contenders =
    Contenders { apus: "apus-udp", tcp: &["tcp-epoll"], other: &[], other_name: "unix sockets" };

fn emulated_lines(refused: bool) -> [ComparedFigure; 3] {
    let line = |name, key, is_in| ComparedFigure {
        name,
        key,
        unit: Unit::Time,
        is_in,
        contenders: EMULATED,
        refused,
    };
    let is_short: fn(&_, &_) -> _ = |row, transport| is_of(row, "lab", transport);
    let is_long: fn(&Row, &_) -> _ = |row, transport| {
        let bench = row.text("bench").and_then(|bench| bench.strip_prefix("lab sizes of "));
        bench == Some(transport) && row.transport().starts_with("10:")
    };
    [
        line("network: 100 B, p50", "short_p50_us", is_short),
        line("network: 100 B, p99", "short_p99_us", is_short),
        line("network: longest, p99", "p99_us", is_long),
    ]
}

/// Simulates the same messages under every transport.
fn simulate_all(seconds: f64, result: &mut ResultFile) -> Result<()> {
    let transports = [Protocol::Apus, Protocol::TcpNewreno, Protocol::TcpCubic, Protocol::Dctcp];
    let progress = Bar::new();
    progress.lengthen(transports.len() as u64 * STEPS);
    for transport in transports {
        let plan = Plan {
            topology: TOPOLOGY.parse().map_err(anyhow::Error::msg)?,
            workload: LENGTHS.parse().map_err(anyhow::Error::msg)?,
            transport,
            sim_ms: 100.0 * seconds,
            buffers: Buffers::PortBytes(PORT_BYTES),
            homa: HomaPlan { resend_min_us: Some(RESEND_MIN_US), ..HomaPlan::default() },
            ..Plan::default()
        };
        results::record(&simulate(&plan, &progress)?, result);
    }
    Ok(())
}

/// The buffer of each port of the switch, for every transport.
const PORT_BYTES: u64 = 200_000;

/// The core's default, because the switch can lose packets.
const RESEND_MIN_US: u64 = 2_000;

/// One switch.
const TOPOLOGY: &str = "single-16";

const SIMULATED: Contenders = Contenders {
    apus: "apus",
    tcp: &["tcp-newreno", "tcp-cubic"],
    other: &["dctcp"],
    other_name: "DCTCP",
};

fn simulated_lines() -> [ComparedFigure; 3] {
    let line = |name, key, is_in| ComparedFigure {
        name,
        key,
        unit: Unit::Slowdown,
        is_in,
        contenders: SIMULATED,
        refused: false,
    };
    let is_short: fn(&Row, &_) -> _ = |row, transport| {
        let decile = row.text("decile").unwrap_or_default();
        is_of(row, "sim slowdown", transport) && decile.starts_with("01 ")
    };
    let is_long: fn(&Row, &_) -> _ = |row, transport| {
        let decile = row.text("decile").unwrap_or_default();
        is_of(row, "sim slowdown", transport) && decile.starts_with("10 ")
    };
    [
        line("network: 100 B, p50", "p50_slowdown", is_short),
        line("network: 100 B, p99", "p99_slowdown", is_short),
        line("network: longest, p99", "p99_slowdown", is_long),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_links_are_reported() {
        assert_eq!(in_words(&[], false), "");
        let slowed = in_words(&[(100.0, Some(88.2))], false);
        assert_eq!(
            slowed,
            " (processors 88 % busy at 100 Mb/s; the rate of the links was reduced)"
        );
        let refused = in_words(&[(100.0, Some(99.0)), (25.0, None)], true);
        assert!(
            refused.contains("too busy at 25 Mb/s; so the figures do not describe the network"),
            "{refused}"
        );
    }
}
