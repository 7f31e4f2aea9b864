//! Prints the round trip of one cache line between the CPUs on which benchmarks keep client and server, as a baseline for
//! `raw-shm`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use apus_bench::pin::Pin;
use apus_net::cpu::pin_current_thread;

/// Two lines, because the CPU fetches lines in pairs.
#[repr(align(128))]
struct Line(AtomicU64);

static PING: Line = Line(AtomicU64::new(0));
static PONG: Line = Line(AtomicU64::new(0));

const ROUNDS: u64 = 1_000_000;
const BATCH: u64 = 1_000;

fn main() -> std::io::Result<()> {
    let (client, server) = Pin::Split.cpus();
    let answers = thread::spawn(move || {
        server.map_or(Ok(()), pin_current_thread)?;
        for round in 1..=ROUNDS {
            while PING.0.load(Ordering::Acquire) != round {}
            PONG.0.store(round, Ordering::Release);
        }
        Ok::<_, std::io::Error>(())
    });
    client.map_or(Ok(()), pin_current_thread)?;
    let mut means = Vec::new();
    for batch in 0..ROUNDS / BATCH {
        let start = Instant::now();
        for round in 1..=BATCH {
            PING.0.store(batch * BATCH + round, Ordering::Release);
            while PONG.0.load(Ordering::Acquire) != batch * BATCH + round {}
        }
        means.push(start.elapsed().as_nanos() as u64 / BATCH);
    }
    means.sort_unstable();
    println!("round trip of a cache line: {} ns", means[means.len() / 2]);
    answers.join().expect("the other thread does not panic")
}
