//! `apus node client`.

use anyhow::Result;
use apus_node::client;
use apus_node::link::pin;
use apus_node::load_profile::LoadProfile;

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

A failed call is counted by the kind of its error, and the run continues; in a closed loop the next call starts 10 ms later. If a \
TCP connection breaks, the client opens all connections of its port again. The exit status is 1 if no call succeeded or a reply \
was wrong.")]
pub(crate) struct Args {
    #[command(flatten)]
    options: LoadProfile,
    #[command(flatten)]
    output: OutputArgs,
}

/// Generates load and shows the result, also when the run ends early.
///
/// # Errors
/// When the process may not run on the CPU, a server cannot be reached at the start, no call succeeds, a reply is wrong, or with
/// `--fail-fast` a call fails.
pub(super) fn run(args: &Args) -> Result<()> {
    let options = &args.options;
    options.check()?;
    pin(options.pin)?;
    let [json, html, csv] = args.output.paths();
    let (dump, capture) = (options.dump.as_deref(), options.link.capture.file());
    different(&[json, html, csv, ("--dump", dump), ("--capture", capture)])?;
    let (output, dump) = (args.output.open()?, dump.map(OutputFile::open).transpose()?);
    let mut outcome = client::Measured::default();
    let result = measured(|_, result| {
        outcome = client::run(options, result, &mut |line| say(&args.output, line))?;
        Ok(())
    })?;
    if let Some(file) = dump {
        file.write(&outcome.dump())?;
    }
    output.deliver(&result)?;
    outcome.conclude()
}
