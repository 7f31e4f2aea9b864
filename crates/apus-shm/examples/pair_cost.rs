//! Measures the cost of a pair: round trips, messages and bytes, between two spinning threads of this process.
//!
//! ```text
//! taskset -c 0,1 cargo run --release -p apus-shm --example pair_cost
//! ```

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apus_shm::{MessageReceiver, Pair, PendingPair, Trust, Words};
use bytes::Bytes;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

const SECOND: Duration = Duration::from_secs(1);

fn pair() -> (Pair, Pair) {
    let kind = SockType::SeqPacket;
    let (a, b) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)
        .expect("a pair of sockets");
    let pending =
        |socket: OwnedFd| PendingPair::send(socket, Trust::InPlace, || true).expect("memory");
    let (a, b) = (pending(a), pending(b));
    let complete = |pending: PendingPair| pending.complete().expect("a peer").expect("its offer");
    (complete(a), complete(b))
}

#[derive(Default)]
struct Inbox(Vec<(Words, Bytes)>);

impl MessageReceiver for Inbox {
    fn admits(&mut self, _: Words, _: usize) -> bool {
        true
    }

    fn message(&mut self, words: Words, body: Bytes) {
        self.0.push((words, body));
    }
}

/// Sends `outstanding` messages of `length`, and a message for each answer. Returns the answers per second, and the median of the
/// round trips.
fn measure(length: usize, outstanding: usize) -> (u64, Duration) {
    let (mut client, mut server) = pair();
    let ends = AtomicBool::new(false);
    let body = Bytes::from(vec![1; length]);
    let mut times = Vec::with_capacity(1 << 22);
    let mut answers = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut inbox = Inbox::default();
            while !ends.load(Ordering::Relaxed) {
                server.receive(&mut inbox, 64).expect("an honest peer");
                for (words, body) in inbox.0.drain(..) {
                    server.send(words, &body).expect("an honest peer");
                }
                server.advance(256 << 10).expect("memory");
                server.flush();
            }
        });
        let mut inbox = Inbox::default();
        let start = Instant::now();
        let now = || start.elapsed().as_nanos() as u64;
        (0..outstanding).for_each(|_| client.send([now(), 0], &body).expect("an honest peer"));
        while start.elapsed() < SECOND {
            client.advance(256 << 10).expect("memory");
            client.flush();
            client.receive(&mut inbox, 64).expect("an honest peer");
            for (words, _) in inbox.0.drain(..) {
                answers += 1;
                times.push(now() - words[0]);
                client.send([now(), 0], &body).expect("an honest peer");
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    times.sort_unstable();
    (answers, Duration::from_nanos(times[times.len() / 2]))
}

/// Measures a cache line that moves back and forth.
fn cache_line() -> Duration {
    let (there, back) = (AtomicU64::new(0), AtomicU64::new(0));
    let rounds = 1_000_000;
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                while there.load(Ordering::Acquire) != round {}
                back.store(round, Ordering::Release);
            }
        });
        for round in 1..=rounds {
            there.store(round, Ordering::Release);
            while back.load(Ordering::Acquire) != round {}
        }
    });
    start.elapsed() / rounds as u32
}

fn main() {
    println!("cache line, round trip: {:?}", cache_line());
    for (length, outstanding) in
        [(100, 1), (100, 64), (4_000, 1), (500_000, 1), (500_000, 8), (16 << 20, 1)]
    {
        let (answers, median) = measure(length, outstanding);
        let gbps = answers as f64 * length as f64 * 8e-9;
        println!(
            "{length:>9} B, {outstanding:>2} outstanding: {answers:>9} a second, p50 {median:?}, {gbps:.1} Gb/s each way"
        );
    }
}
