//! `apus bench`: the benchmarks of [`apus_bench`], a file each.

mod common;
mod delivery;
mod handoffs;
mod mix;
mod rate;
mod rtt;
mod scale;
mod stream;

use anyhow::Result;

/// Measure Apus beside TCP and raw UDP on this machine
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Bench {
    Rtt(rtt::Args),
    Rate(rate::Args),
    Stream(stream::Args),
    Mix(mix::Args),
    Delivery(delivery::Args),
    Handoffs(handoffs::Args),
    Scale(scale::Args),
}

/// Runs the benchmark chosen.
///
/// # Errors
/// As the benchmark does.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Rtt(args) => rtt::run(args),
        Bench::Rate(args) => rate::run(args),
        Bench::Stream(args) => stream::run(args),
        Bench::Mix(args) => mix::run(args),
        Bench::Delivery(args) => delivery::run(args),
        Bench::Handoffs(args) => handoffs::run(args),
        Bench::Scale(args) => scale::run(args),
    }
}
