//! `apus lab up`, `down`, `exec` and `status`: a lab to work in by hand.

use anyhow::Result;
use apus_lab::network::HOSTS_MAX;
use apus_lab::plan::LINK_MBPS_MAX;
use apus_lab::up;

use crate::arguments;
use crate::output::print;

/// Name of a lab unless told otherwise.
const LAB: &str = "lab";

/// Create a lab: hosts and a switch between them
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab up
  sudo apus lab up big --hosts 40 --link-mbps 20
  sudo apus lab exec h0 -- ping -c 3 10.213.0.2

Host hN has the address 10.213.0.N+1. The lab stays until `apus lab down`.")]
pub(crate) struct Up {
    /// Name of the lab
    #[arg(value_name = "LAB", default_value = LAB)]
    lab: String,
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=HOSTS_MAX as i64))]
    hosts: u16,
    /// Rate of each link in Mb/s, in each direction
    #[arg(long, value_name = "MBPS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=LINK_MBPS_MAX as i64))]
    link_mbps: u32,
    /// Longest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=9000))]
    mtu: u32,
    /// Bytes in each of the eight classes of a switch port
    #[arg(long, value_name = "BYTES", default_value = "128kB", value_parser = arguments::size)]
    switch_queue: u32,
    /// Bytes in the queue of a host's own link
    #[arg(long, value_name = "BYTES", default_value = "30kB", value_parser = arguments::size)]
    host_queue: u32,
}

/// Remove a lab or all labs, also those of a killed program
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab down
  sudo apus lab down big

Ends the processes in the lab's namespaces, then removes the namespaces with their links and queues.")]
pub(crate) struct Down {
    /// Name of the lab [default: all]
    #[arg(value_name = "LAB")]
    lab: Option<String>,
}

/// Run a program on a host of a lab
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab exec h0 -- apus node server --listen 0.0.0.0:20146
  sudo apus lab exec --lab big h7 -- ip -s link")]
pub(crate) struct Exec {
    /// Name of the lab
    #[arg(long, value_name = "LAB", default_value = LAB)]
    lab: String,
    /// Host: h0, h1, …, or switch
    #[arg(value_name = "HOST")]
    host: String,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    program: Vec<String>,
}

/// Show the labs of this machine
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab status
  apus lab status

Without root the processes are not shown.")]
pub(crate) struct Status {}

/// Makes a lab.
///
/// # Errors
/// As [`up::up`].
pub(super) fn up(args: &Up) -> Result<()> {
    let options = up::Options {
        lab: args.lab.clone(),
        hosts: args.hosts.into(),
        link_mbps: args.link_mbps,
        mtu: args.mtu,
        switch_queue: args.switch_queue,
        host_queue: args.host_queue,
    };
    print(&up::up(&options)?)
}

/// Removes labs.
///
/// # Errors
/// As [`up::down`].
pub(super) fn down(args: &Down) -> Result<()> {
    print(&up::down(args.lab.as_deref())?)
}

/// Becomes the program, on the host.
///
/// # Errors
/// As [`up::exec`].
pub(super) fn exec(args: &Exec) -> Result<()> {
    match up::exec(&args.lab, &args.host, &args.program)? {}
}

/// Shows what there is.
///
/// # Errors
/// As [`up::status`].
pub(super) fn status(_: &Status) -> Result<()> {
    print(&up::status()?)
}
