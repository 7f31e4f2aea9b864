//! `apus bench-server`, the hidden other half of `apus bench`: the same program in a process of its own.
//!
//! It prints the address it serves as one line, serves until its standard input closes, then prints one line of JSON and
//! ends. So it never outlives the benchmark, however that ends.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::process;
use std::thread;

use anyhow::{Context, Result};
use apus_net::cpu;
use serde::{Deserialize, Serialize};

use crate::failure;
use crate::output::print;
use crate::transport::{self, Health, NodeOptions, Transport};

/// Arguments of the hidden command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Transport to serve
    #[arg(long)]
    pub(crate) transport: Transport,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// CPU to stay on
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
}

/// The last line of a server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ServerReport {
    /// CPU time of the server's whole life, in seconds.
    pub(crate) cpu_s: f64,
    /// What it knows of its health.
    pub(crate) health: Health,
}

/// Serves until standard input closes.
///
/// # Errors
/// When the kernel refuses a socket or the CPU.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(cpu) = args.cpu {
        cpu::pin_current_thread(cpu).with_context(|| format!("cannot stay on CPU {cpu}"))?;
    }
    let server = transport::bind(args.transport, args.node)?;
    let (address, health_probe) = (server.address(), server.health_probe());
    thread::Builder::new().name("server".to_owned()).spawn(move || {
        let Err(error) = server.run();
        failure::print(&error);
        process::exit(failure::FAILED.into());
    })?;
    until_closed(address, health_probe)
}

/// Says that `address` is served, waits until standard input closes, and reports.
///
/// # Errors
/// When nobody can be told.
pub(crate) fn until_closed(address: SocketAddr, health_probe: impl Fn() -> Health) -> Result<()> {
    print(&format!("{address}\n"))?;
    io::stdin()
        .read_to_end(&mut Vec::new())
        .context("cannot wait for the end of standard input")?;
    let cpu_s = cpu::process_time().as_secs_f64();
    let report = ServerReport { cpu_s, health: health_probe() };
    print(&format!("{}\n", serde_json::to_string(&report)?))
}
