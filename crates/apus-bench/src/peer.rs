//! The server process of a benchmark: its start, address, CPU time and end.

use std::convert::Infallible;
use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow};
use apus_load::Row;
use apus_net::cpu;
use derive_more::Sub;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::child::Child;
use apus_node::transport::interface::Health;

/// The program's hidden command that passes its two arguments, a role and its options, to [`roles::serve`](crate::roles::serve).
pub const COMMAND: &str = "bench-peer";

/// The last line of a server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ServerReport {
    /// CPU time over the server's life, in seconds.
    pub(crate) cpu_s: f64,
    /// The health that it reports.
    pub(crate) health: Health,
}

/// Upper bound on the time of a server's start and end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A running server process: this program under one of its hidden commands.
pub(crate) struct ServerProcess<A = SocketAddr> {
    child: Child,
    address: A,
    clock: ClockId,
}

impl<A: FromStr> ServerProcess<A> {
    /// Starts this program in a role, and waits until it serves.
    ///
    /// # Errors
    /// If it cannot start. The error has its error text.
    pub(crate) fn start(role: &str, options: &impl Serialize) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.args(arguments(role, options)?);
        Self::spawn(command)
    }

    /// Starts a server that prints its address as its first line, and waits for the line.
    ///
    /// # Errors
    /// If it cannot start. The error has its error text.
    pub(crate) fn spawn(command: Command) -> Result<Self> {
        let mut child = Child::start(command, None)?;
        let clock = clock_getcpuclockid(Pid::from_raw(child.id() as i32))
            .context("CPU clock of the server")?;
        let address = child.line(TIMEOUT).ok().and_then(|line| line.parse().ok());
        match address {
            Some(address) => Ok(Self { child, address, clock }),
            None => Err(ended(&mut child)),
        }
    }

    /// The server's address.
    pub(crate) fn address(&self) -> &A {
        &self.address
    }

    /// A meter of CPU time.
    pub(crate) fn meter(&self) -> Meter {
        Meter { server: self.clock }
    }

    /// Ends the server.
    ///
    /// # Errors
    /// If it exited earlier, or with an error.
    pub(crate) fn finish(mut self) -> Result<ServerReport> {
        self.end()
    }

    /// Ends the server. Returns its standard error, which may come from a tool around it.
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish).
    pub(crate) fn finish_with_words(mut self) -> Result<String> {
        self.end()?;
        self.child.words().context("cannot read the output of the server")
    }

    fn end(&mut self) -> Result<ServerReport> {
        self.child.close_input();
        let line = self.child.line(TIMEOUT).unwrap_or_default();
        serde_json::from_str(&line).map_err(|_| ended(&mut self.child))
    }
}

/// The path of this program.
///
/// # Errors
/// If the path is unknown.
pub(crate) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's file")
}

/// The arguments that start this program in a role.
///
/// # Errors
/// If the options have no form in JSON.
pub(crate) fn arguments(role: &str, options: &impl Serialize) -> Result<[String; 3]> {
    let options = serde_json::to_string(options).context("the options of a role")?;
    Ok([COMMAND.to_owned(), role.to_owned(), options])
}

/// The server's side: prints `address`, serves until standard input closes, and prints a report.
///
/// # Errors
/// If `serve` ends earlier, with its error, or if output fails.
pub(crate) fn until_closed(
    address: impl Display,
    serve: impl FnOnce() -> Result<Infallible> + Send + 'static,
    health_probe: impl Fn() -> Health,
    output: &mut dyn Write,
) -> Result<()> {
    writeln!(output, "{address}").and_then(|()| output.flush()).context(GONE)?;
    let (closed, ended) = mpsc::channel();
    let failed = closed.clone();
    // The receiver is gone if the other thread has ended the process.
    let serve = move || drop(failed.send(serve().map(|never| match never {})));
    thread::Builder::new().name("server".to_owned()).spawn(serve)?;
    let wait = move || {
        let read = io::stdin().read_to_end(&mut Vec::new());
        drop(closed.send(read.map(drop).context("cannot wait for the end of standard input")));
    };
    thread::Builder::new().name("leader".to_owned()).spawn(wait)?;
    ended.recv().context("the server's thread panicked")??;
    let cpu_s = cpu::process_time().as_secs_f64();
    let report = serde_json::to_string(&ServerReport { cpu_s, health: health_probe() })?;
    writeln!(output, "{report}").and_then(|()| output.flush()).context(GONE)
}

const GONE: &str = "the process that started this server has ended";

/// The error of a server that exited too early.
fn ended(child: &mut Child) -> Error {
    match child.last_words().as_str() {
        "" => anyhow!("the server process does not answer"),
        words => anyhow!("the server process ended: {words}"),
    }
}

/// Reads the CPU time of both processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    server: ClockId,
}

impl Meter {
    /// CPU time of this process and of the server so far.
    ///
    /// # Errors
    /// If the server is gone.
    pub(crate) fn read(self) -> Result<CpuTimes> {
        let server = self.server.now().context("the server process has ended")?;
        Ok(CpuTimes { client: cpu::process_time(), server: server.into() })
    }
}

/// CPU time of both sides.
#[derive(Clone, Copy, Debug, Default, Sub)]
pub(crate) struct CpuTimes {
    /// The benchmark's own process.
    pub(crate) client: Duration,
    /// The server process.
    pub(crate) server: Duration,
}

impl CpuTimes {
    /// Adds the seconds of both sides to a row.
    pub(crate) fn set(self, row: Row) -> Row {
        row.set("client_cpu_s", self.client.as_secs_f64())
            .set("server_cpu_s", self.server.as_secs_f64())
    }
}
