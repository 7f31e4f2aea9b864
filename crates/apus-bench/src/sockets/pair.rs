//! The two processes of a measurement: starts them, waits for their reports, and checks that no bytes were lost.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::program::{ProgramConfig, ProgramResult, ROLE};
use crate::child::Child;
use crate::peer::{arguments, this_program};
use crate::pin::Pin;
use apus_load::stop;

/// Upper bound on the time of a process besides the time of the measurement.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Interval of checks for a request to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The results of a measurement.
pub(super) struct PairResult {
    pub(super) client: ProgramResult,
    pub(super) server: ProgramResult,
    /// The output of `apus run --explain` about the client's connection.
    pub(super) explanation: String,
}

/// Runs server and client. `preload` is the value of `LD_PRELOAD` of both, which then run as under `apus run --explain`; without
/// it, they are plain. `options` are the server's.
///
/// # Errors
/// If either cannot start, fails, does not report in time, or lost bytes.
pub(super) fn run(
    options: &ProgramConfig,
    pin: Pin,
    preload: Option<&OsStr>,
) -> Result<PairResult> {
    let (client_cpu, server_cpu) = pin.cpus();
    let mut server = Child::start(command(options, preload)?, server_cpu)?;
    let address = line(&mut server, TIMEOUT).context("the server")?;
    let ours = ProgramConfig { server: Some(address), ..options.clone() };
    let mut client = Child::start(command(&ours, preload)?, client_cpu)?;
    let duration = Duration::from_secs_f64(options.warm_up_s + options.seconds);
    let outcome = PairResult {
        client: report(&mut client, duration + TIMEOUT).context("the client")?,
        server: report(&mut server, TIMEOUT).context("the server")?,
        explanation: client.words().context("cannot read the output of the client")?,
    };
    let (sent, received) = (outcome.client.total_bytes, outcome.server.total_bytes);
    ensure!(sent == received, "the server received {received} of {sent} bytes");
    Ok(outcome)
}

/// The command of this program as the ordinary program. Its starter pins it, like `taskset`.
fn command(options: &ProgramConfig, preload: Option<&OsStr>) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command.args(arguments(ROLE, options)?);
    if let Some(preload) = preload {
        command.env("LD_PRELOAD", preload).env("APUS_EXPLAIN", "1");
    }
    Ok(command)
}

fn report(child: &mut Child, timeout: Duration) -> Result<ProgramResult> {
    let line = line(child, timeout)?;
    serde_json::from_str(&line).with_context(|| format!("cannot read its report `{line}`"))
}

/// The next line of a process.
fn line(child: &mut Child, timeout: Duration) -> Result<String> {
    let since = Instant::now();
    loop {
        stop::check()?;
        match child.line(LOOK) {
            Ok(line) => return Ok(line),
            Err(RecvTimeoutError::Timeout) if since.elapsed() < timeout => {}
            Err(_) => {
                return Err(match child.last_words() {
                    words if words.is_empty() => anyhow!("its process does not answer"),
                    words => anyhow!("its process ended: {words}"),
                });
            }
        }
    }
}
