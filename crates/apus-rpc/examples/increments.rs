//! A million counted increments while servers drain, end without notice and begin again, and packets are lost.
//!
//! `cargo run --release -p apus-rpc --example increments -- [CALLS [SEED]]` prints the counts, and fails if a call was executed twice.

#[path = "../tests/increments/mod.rs"]
mod increments;

use std::env;
use std::process::ExitCode;

use increments::Run;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (Ok(calls), Ok(seed)) = (next(1_000_000), next(1)) else {
        eprintln!("usage: increments [CALLS [SEED]]");
        return ExitCode::FAILURE;
    };
    let run = Run { calls, callers: 64, servers: 4, restarts: 40, loss: 0.02, seed };
    println!("{run:?}");
    let counts = run.count();
    println!("{counts:?}");
    if counts.are_right() {
        println!("acknowledged <= executed <= acknowledged + uncertain");
        return ExitCode::SUCCESS;
    }
    println!("FAILED: a call was executed twice, or acknowledged without its execution");
    ExitCode::FAILURE
}
