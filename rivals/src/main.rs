//! `apus-rivals`: what people would pick instead of Apus between two processes of one host, measured by the benchmarks
//! of Apus ([`apus_bench`]) beside Apus, TCP and the floors. `docs/rivals.md` says how each rival is set up.
//!
//! * [`rivals`]: the table of them, with their versions; one file `with_…` for each;
//! * [`calls`]: the two sides of a rival that runs on tokio;
//! * [`socket`]: TCP or unix sockets, for the rivals that speak either.

// What tonic writes is no example of style.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    reason = "tonic wrote it"
)]
mod echo {
    include!(concat!(env!("OUT_DIR"), "/apus.rivals.Echo.rs"));
}

mod calls;
mod rivals;
mod socket;
mod with_iceoryx2;
mod with_quinn;
mod with_tarpc;
mod with_tonic;
mod with_zeromq;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use apus_bench::report::CONVENTIONS;
use apus_bench::{mix, peer, rate, roles, rtt, stream};
use apus_load::ResultFile;
use apus_load::progress::Progress;
use apus_load::record;
use apus_load::report::{self, Style};
use clap::{Args, Parser, Subcommand};

/// Measure tonic, tarpc, quinn, ZeroMQ and iceoryx2 beside Apus, TCP and raw UDP on this machine
#[derive(Debug, Parser)]
#[command(
    name = "apus-rivals",
    version,
    after_help = "Examples, from the root of the repository:
  cargo run --release --manifest-path rivals/Cargo.toml -- rtt --json rivals-rtt.json
  cargo run --release --manifest-path rivals/Cargo.toml -- stream --transports tonic,tcp-epoll,apus-shm
  apus report rivals-rtt.json --html rivals.html"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Round-trip time of a short call, one at a time
    #[command(
        after_help = "Example: rtt --transports tonic-unix,iceoryx2-poll,tcp-poll,apus-shm --runs 9"
    )]
    Rtt(Measurement<rtt::Options>),
    /// Short calls per second, and the CPU time of each
    #[command(after_help = "Example: rate --outstanding 64,256 --json rivals-rate.json")]
    Rate(Measurement<rate::Options>),
    /// Throughput of long messages
    #[command(after_help = "Example: stream --size 1MB --outstanding 8 --json rivals-stream.json")]
    Stream(Measurement<stream::Options>),
    /// Latency of short calls among long ones
    #[command(after_help = "Example: mix --percent 0 --transports tonic,zeromq,tcp-epoll,apus-shm")]
    Mix(Measurement<mix::Options>),
    /// Serve as the other process of a benchmark
    #[command(hide = true, name = peer::COMMAND)]
    BenchPeer {
        /// Role of the process
        role: String,
        /// Options of the role, in JSON
        options: String,
    },
}

/// What a benchmark is asked, and where its result goes.
#[derive(Debug, Args)]
struct Measurement<Options: Args> {
    #[command(flatten)]
    options: Options,
    /// Write all rows, warnings and series to FILE instead of tables to standard output; `apus report` reads it; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    rivals::add();
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apus-rivals: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Rtt(measurement) => measurement.run(rtt::measure),
        Command::Rate(measurement) => measurement.run(rate::measure),
        Command::Stream(measurement) => measurement.run(stream::measure),
        Command::Mix(measurement) => measurement.run(mix::measure),
        Command::BenchPeer { role, options } => roles::serve(&role, &options, &mut io::stdout()),
    }
}

impl<Options: Args> Measurement<Options> {
    fn run(
        &self,
        measure: fn(&Options, &dyn Progress, &mut ResultFile) -> Result<()>,
    ) -> Result<()> {
        eprintln!("{}", rivals::SKIPPED);
        let mut result = record::record(|result| measure(&self.options, &Steps, result))?;
        result.command = command_line();
        if result.rows.iter().any(|row| row.transport().starts_with("iceoryx2")) {
            with_iceoryx2::clean_up()?;
        }
        match &self.json {
            Some(path) if path.as_os_str() != "-" => Ok(result.write(path)?),
            Some(_) => print(&result.to_json()),
            None => print(&report::text(&result, &CONVENTIONS, Style::for_stdout())),
        }
    }
}

/// The command line that gives this result again, from the root of the repository.
fn command_line() -> String {
    let arguments: Vec<String> = env::args().skip(1).collect();
    format!("cargo run --release --manifest-path rivals/Cargo.toml -- {}", arguments.join(" "))
}

fn print(text: &str) -> Result<()> {
    io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// Progress as lines on a terminal, nothing elsewhere.
struct Steps;

impl Progress for Steps {
    fn lengthen(&self, _: u64) {}

    fn begin(&self, name: &str) {
        if io::stderr().is_terminal() {
            eprintln!("{name}");
        }
    }

    fn done(&self) {}
}
