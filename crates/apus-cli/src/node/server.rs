//! `apus node server`.

use anyhow::Result;
use apus_node::link::pin;
use apus_node::server::{self, ServerConfig};

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

Without --listen, only this machine can call the server; 0.0.0.0 is every address of the machine. The server prints one line with \
its address when it listens, then one line of statistics per second. It counts a request as wrong if its format is wrong or its \
reply would exceed the longest message, and answers it with a few bytes.

--link raw serves hosts with the Linux Homa module (IP protocol 146). It needs CAP_NET_RAW ('setcap cap_net_raw+ep' on the \
program), and messages have at most 1,000,000 bytes. The module must not be loaded on the same host, because it would also receive \
every packet of the protocol; --link udp works beside it. Clients with the stripped module need APUS_CONFIRM_PEERS=false.")]
pub(crate) struct Args {
    #[command(flatten)]
    options: ServerConfig,
    #[command(flatten)]
    output: OutputArgs,
}

/// Serves and shows.
///
/// # Errors
/// When the process may not run on the CPU, an address or port is busy, not ours or not allowed.
pub(super) fn run(args: &Args) -> Result<()> {
    args.options.check()?;
    pin(args.options.pin)?;
    let [json, html, csv] = args.output.paths();
    different(&[json, html, csv, ("--capture", args.options.link.capture.file())])?;
    let output = args.output.open()?;
    output.deliver(&measured(|_, result| {
        server::run(&args.options, result, &mut |line| say(&args.output, line))
    })?)
}
