//! The benchmark's hold on its server process: starts it, knows its address and CPU time, ends it.

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

/// The hidden command of the program that hands its two arguments, a role and its options, to
/// [`roles::serve`](crate::roles::serve).
pub const COMMAND: &str = "bench-peer";

/// The last line of a server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ServerReport {
    /// CPU time of the server's whole life, in seconds.
    pub(crate) cpu_s: f64,
    /// What it knows of its health.
    pub(crate) health: Health,
}

/// How long a server may take to start, and to end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A running server process: this program under one of its hidden commands.
pub(crate) struct Peer<A = SocketAddr> {
    child: Child,
    address: A,
    clock: ClockId,
}

impl<A: FromStr> Peer<A> {
    /// Starts this program in a role and waits until it serves.
    ///
    /// # Errors
    /// When it cannot start; the error has what it said.
    pub(crate) fn start(role: &str, options: &impl Serialize) -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.args(arguments(role, options)?);
        Self::spawn(command)
    }

    /// Starts a server that prints its address as its first line, and waits for that.
    ///
    /// # Errors
    /// When it cannot start; the error has what it said.
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

    /// Where it serves.
    pub(crate) fn address(&self) -> &A {
        &self.address
    }

    /// A meter of CPU time.
    pub(crate) fn meter(&self) -> Meter {
        Meter { server: self.clock }
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it ended before, or not well.
    pub(crate) fn finish(mut self) -> Result<ServerReport> {
        self.end()
    }

    /// Ends it and returns what it, or the tool it ran under, wrote to standard error.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub(crate) fn finish_with_words(mut self) -> Result<String> {
        self.end()?;
        self.child.words().context("cannot read what the server wrote")
    }

    fn end(&mut self) -> Result<ServerReport> {
        self.child.close_input();
        let line = self.child.line(TIMEOUT).unwrap_or_default();
        serde_json::from_str(&line).map_err(|_| ended(&mut self.child))
    }
}

/// The file of this program.
///
/// # Errors
/// When it cannot be found.
pub(crate) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's file")
}

/// The arguments that start this program in a role.
///
/// # Errors
/// When the options have no form in JSON.
pub(crate) fn arguments(role: &str, options: &impl Serialize) -> Result<[String; 3]> {
    let options = serde_json::to_string(options).context("the options of a role")?;
    Ok([COMMAND.to_owned(), role.to_owned(), options])
}

/// The other process: says that `address` is served, serves until standard input closes, and reports.
///
/// # Errors
/// When `serve` ends before, with its error, or when nobody can be told.
pub(crate) fn until_closed(
    address: impl Display,
    serve: impl FnOnce() -> Result<Infallible> + Send + 'static,
    health_probe: impl Fn() -> Health,
    output: &mut dyn Write,
) -> Result<()> {
    writeln!(output, "{address}").and_then(|()| output.flush()).context(GONE)?;
    let (closed, ended) = mpsc::channel();
    let failed = closed.clone();
    // Nobody listens any more when the other of the two has ended the process.
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

const GONE: &str = "the process that started this server is gone";

/// What a server that ended too early wrote.
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
    /// When the server is gone.
    pub(crate) fn read(self) -> Result<CpuTimes> {
        let server = self.server.now().context("the server process is gone")?;
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
