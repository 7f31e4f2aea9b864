//! `apus node server`.

use std::net::SocketAddr;

use anyhow::Result;
use apus_bench::node::server::{self, Options};

use super::link::{LinkArgs, pin};
use crate::arguments;
use crate::output::{OutputArgs, different, measured, say};

/// Answer requests until Ctrl-C
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus node server
  apus node server --listen 0.0.0.0:20146
  apus node server --listen 10.0.0.1:20146 --ports 3 --port-threads 3 --seconds 60 --json server.json
  apus node server --listen 10.0.0.1:20146 --link both
  apus node server --listen 10.0.0.1:0 --link raw --body cp-node
  apus node server --protocol tcp --listen 10.0.0.1:0 --first-port 5000
  apus node server --listen 127.0.0.1:0 --fault loss=0.1,dup=0.05,reorder=0.05

Without --listen, only this machine can call the server; 0.0.0.0 is every address of the machine. The server prints one line with its \
address when it listens, then one line of statistics per second. A request of the wrong format, or for a reply longer than a message \
may be, is counted as wrong and answered with a few bytes.

--link raw answers hosts with the Linux Homa module (IP protocol 146). It needs CAP_NET_RAW ('setcap cap_net_raw+ep' on the program). \
The module must not be loaded on the same host, because it would take every packet of the protocol too; --link udp runs beside it. \
Messages then have at most 1,000,000 bytes. Clients with the stripped module need APUS_CONFIRM_PEERS=false.")]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// IP address and UDP port of the node; TCP uses only the IP address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:20146")]
    listen: SocketAddr,
    /// First port; with --protocol tcp, 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 4000)]
    first_port: u16,
    /// Number of ports, from the first on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    ports: u16,
    /// Threads that serve each port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    port_threads: u16,
    /// CPU to which all threads are pinned
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    /// Seconds until the end; 0 runs until Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.0, value_parser = arguments::seconds_or_endless)]
    seconds: f64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Serves and shows.
///
/// # Errors
/// When an address or port is busy, not ours or not allowed.
pub(super) fn run(args: &Args) -> Result<()> {
    let options = Options {
        link: args.link.options(),
        listen: args.listen,
        first_port: args.first_port,
        ports: args.ports,
        port_threads: args.port_threads,
        seconds: args.seconds,
    };
    options.check()?;
    pin(args.pin)?;
    let [json, html] = args.output.paths();
    different(&[json, html, ("--capture", args.link.capture.as_deref())])?;
    let output = args.output.open()?;
    output.deliver(&measured(|_, result| {
        server::run(&options, result, &mut |line| say(&args.output, line))
    })?)
}
