//! `apus node client`.

use std::path::PathBuf;

use anyhow::Result;
use apus_bench::message::parse_workload;
use apus_bench::node::client;
use apus_bench::node::options::Options;
use apus_load::Workload;

use super::link::{LinkArgs, pin};
use crate::arguments;
use crate::output::{OutputArgs, OutputFile, different, measured, say};

/// Generate load and measure it
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus node client --servers 10.0.0.2:4000
  apus node client --servers 10.0.0.2:4000,10.0.0.3:4000 --workload w4 --gbps 5 --client-max 200 --seconds 30
  apus node client --servers 127.0.0.1:4000@7001 --workload mix --verify --fault loss=0.1
  apus node client --servers homa://10.0.0.2:4000 --link raw --workload w4
  apus node client --servers homa://10.0.0.2:4000 --link raw --body cp-node --workload w4
  apus node client --servers 10.0.0.2:5000 --protocol tcp --workload w3 --gbps 2 --ports 4 --json tcp.json
  apus node client --servers 10.0.0.2:4000 --unloaded 1000 --workload w3

Prints one line of statistics per second. Latency is the time from the intended start of a call (in a closed loop, from its start) \
to the last byte of the reply.

A failed call is counted by the kind of its error, and the run continues; in a closed loop the next call starts 10 ms later. If a TCP \
connection breaks, all connections of its port are opened again. The exit status is 1 if no call succeeded or a reply was wrong.")]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// Servers: HOST:PORT of the first port; HOST:PORT@UDPPORT if the node's UDP port is not 20146; homa://HOST:PORT for IP protocol 146
    #[arg(long, value_name = "ADDR,…", value_delimiter = ',', required = true)]
    servers: Vec<String>,
    /// Number of ports to call on each server, from the given port on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    server_ports: u16,
    /// Lengths of requests: w1 to w5, a size, mix, or weight:size,…
    #[arg(long, value_name = "WORKLOAD", default_value = "100", value_parser = parse_workload)]
    workload: Workload,
    /// Longest request; longer ones are cut. The Linux module takes no more than the default
    #[arg(long, value_name = "BYTES", default_value = "1MB", value_parser = arguments::size)]
    longest: u32,
    /// Load: request bytes in Gb/s, with exponential gaps between requests; 0 is a closed loop
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, default_value_t = 0.0, value_parser = arguments::gbps_or_closed_loop)]
    gbps: f64,
    /// Most outstanding calls, over all ports [default: 1; with --gbps, 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    client_max: Option<u32>,
    /// Client ports, each with a thread that sends
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    ports: u16,
    /// Threads that wait for replies at each port; with 0, as always with TCP, the sending thread waits too
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=256))]
    port_receivers: u16,
    /// Request replies of 100 bytes instead of replies as long as the request
    #[arg(long)]
    one_way: bool,
    /// Instead of a load, make N calls of every length of the workload, one at a time
    #[arg(long, value_name = "N", conflicts_with_all = ["gbps", "client_max", "verify"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    unloaded: Option<u32>,
    /// Check every byte of every request and reply, and that no request is executed twice
    #[arg(long)]
    verify: bool,
    /// End the run at the first call that fails
    #[arg(long)]
    fail_fast: bool,
    /// Seconds until the end; 0 runs until Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.0, value_parser = arguments::seconds_or_endless)]
    seconds: f64,
    /// Write the newest 500,000 calls to FILE, one per line: bytes of the request, round trip in µs
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// CPU to which all threads are pinned
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            link: self.link.options(),
            servers: self.servers.clone(),
            server_ports: self.server_ports,
            workload: self.workload.clone(),
            longest: self.longest,
            gbps: self.gbps,
            client_max: self.client_max,
            ports: self.ports,
            port_receivers: self.port_receivers,
            one_way: self.one_way,
            unloaded: self.unloaded,
            verify: self.verify,
            fail_fast: self.fail_fast,
            seconds: self.seconds,
            dump: self.dump.is_some(),
        }
    }
}

/// Generates load and shows what came of it, also when it ends early.
///
/// # Errors
/// When a server cannot be reached at the start, no call succeeds, a reply is wrong, or with `--fail-fast` a call fails.
pub(super) fn run(args: &Args) -> Result<()> {
    let options = args.options();
    options.check()?;
    pin(args.pin)?;
    let [json, html] = args.output.paths();
    let (dump, capture) = (args.dump.as_deref(), args.link.capture.as_deref());
    different(&[json, html, ("--dump", dump), ("--capture", capture)])?;
    let (output, dump) = (args.output.open()?, dump.map(OutputFile::open).transpose()?);
    let mut outcome = client::Measured::default();
    let result = measured(|_, result| {
        outcome = client::run(&options, result, &mut |line| say(&args.output, line))?;
        Ok(())
    })?;
    if let Some(file) = dump {
        file.write(&outcome.dump())?;
    }
    output.deliver(&result)?;
    outcome.conclude()
}
