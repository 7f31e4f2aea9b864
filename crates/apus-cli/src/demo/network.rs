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
use apus_sim::{Plan, Protocol, results};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::table::{Contenders, Line, Unit, is_of};
use crate::interrupt;
use crate::output::print;
use crate::progress::Bar;
use crate::sim::{STEPS, simulate};

/// The hidden command that measures in the lab. It is a process of its own, so that only the lab of an ordinary user runs
/// in that user's namespaces, and not what was measured before.
pub(crate) const LAB_COMMAND: &str = "demo-lab";

/// Lengths of calls: 90 % have 100 B, 9 % 10 kB, 1 % 1 MB.
const LENGTHS: &str = "mix";

/// What was measured in a network, and where.
pub(super) struct Network {
    pub(super) lines: [Line; 3],
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
        None => match lab_apart(seconds) {
            Ok(measured) => return Ok(emulated_network(measured, result)),
            Err(error) => format!("the lab failed ({error:#})"),
        },
    };
    match simulate_all(seconds, result) {
        Err(error) if error.is::<Stopped>() => result.warn(CUT_SHORT),
        simulated => simulated?,
    }
    let description = format!(
        "Network: SIMULATED, because {obstacle}: 16 hosts, 10 Gb/s links, 80 % load. \
         ×: multiples of the time on an idle network."
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

/// Adds what the lab measured.
fn emulated_network(measured: ResultFile, result: &mut ResultFile) -> Network {
    let refused = measured.rows.iter().any(Row::is_refused);
    measured.warnings.into_iter().for_each(|warning| result.warn(warning));
    result.rows.extend(measured.rows);
    result.series.extend(measured.series);
    let how = if privilege::is_root() { "as root" } else { "in a user namespace, without root" };
    let description =
        format!("Network: emulated on this machine {how}: 5 hosts, 100 Mb/s links, 80 % load.");
    Network { lines: emulated_lines(refused), description }
}

/// What the lab measures.
fn setting(seconds: f64) -> Setting {
    Setting {
        hosts: 5,
        link_mbps: 100.0,
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
pub(crate) fn lab(seconds: f64) -> Result<()> {
    privilege::acquire()?;
    interrupt::handle()?;
    print(&emulated::run(&[setting(seconds)], None, &Bar::new())?.to_json())
}

/// Measures in the lab, in a process of its own.
fn lab_apart(seconds: f64) -> Result<ResultFile> {
    let child = Command::new(env::current_exe()?)
        .args([LAB_COMMAND, &seconds.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // The signals that reach this process are passed on to all of that one's.
        .process_group(0)
        .spawn()?;
    let Output { status, stdout, .. } = output(child)?;
    if !status.success() {
        bail!("{status}");
    }
    ResultFile::parse(&String::from_utf8(stdout)?, Path::new("-"))
}

/// How often a request to stop is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a process writes until it ends, which a request to stop makes it do.
fn output(child: Child) -> Result<Output> {
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
        drop(ended);
        output
    })
    .context("the lab's process")
}

const EMULATED: Contenders =
    Contenders { apus: "apus-udp", tcp: &["tcp-epoll"], other: &[], other_name: "" };

fn emulated_lines(refused: bool) -> [Line; 3] {
    let line = |name, key, is_in| Line {
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
        line("network: 100-byte call, typical", "short_p50_us", is_short),
        line("network: 100-byte call, slowest 1 %", "short_p99_us", is_short),
        line("network: longest calls, slowest 1 %", "p99_us", is_long),
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
            ..Plan::default()
        };
        results::record(&simulate(&plan, &progress)?, result);
    }
    Ok(())
}

/// One switch.
const TOPOLOGY: &str = "single-16";

const SIMULATED: Contenders = Contenders {
    apus: "apus",
    tcp: &["tcp-newreno", "tcp-cubic"],
    other: &["dctcp"],
    other_name: "DCTCP",
};

fn simulated_lines() -> [Line; 3] {
    let line = |name, key, is_in| Line {
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
        line("network: 100 bytes, typical", "p50_slowdown", is_short),
        line("network: 100 bytes, slowest 1 %", "p99_slowdown", is_short),
        line("network: longest, slowest 1 %", "p99_slowdown", is_long),
    ]
}
