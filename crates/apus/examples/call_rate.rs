//! Calls of 100 bytes through memory per second, beside a bare ring of cache lines between the same cores in the same second.
//!
//! `cargo xtask instructions` prints its line beside the counts of instructions. They do not show what costs most in a call through
//! memory, the cache lines that move between the cores, and times of a virtual machine differ by a factor of two from minute to minute.
//! The ratio to the ring can be compared. The ring does what `raw-shm` of `apus bench` does, and is built in seconds.

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apus::net::cpu;
use apus::{Address, Bytes, Config, Flush, Node};

/// Calls outstanding at once.
const OUTSTANDING: usize = 256;

/// Runs of each, in alternation.
const RUNS: usize = 9;

/// Length of a run.
const RUN: Duration = Duration::from_millis(50);

/// Words of a message of 100 bytes.
const WORDS: usize = 13;

/// Cells of a ring, more than can be outstanding.
const CELLS: usize = 1024;

type AnyError = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), AnyError> {
    let &[here, there, ..] = &cpu::allowed()[..] else {
        println!("skipped: calls beside a bare ring: they need two CPUs");
        return Ok(());
    };
    cpu::pin_current_thread(here)?;
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let (server, node) = (Node::start(&config)?, Node::start(&config)?);
    let port = server.bind(4000)?;
    let (client, to) = (node.client()?, Address::new(server.local_addr(), port.number()));
    let serving = thread::spawn({
        let port = port.clone();
        move || {
            cpu::pin_current_thread(there).expect("this process may use it");
            port.serve(|mut request| {
                let body = request.take_body();
                let _ = request.reply(body); // The client stays until all calls have ended.
            });
        }
    });
    let body = Bytes::from_static(&[7; 100]);
    let mut batch = Vec::new();
    let mut figures = [const { Vec::new() }; 3];
    for _ in 0..RUNS {
        let ring = ring_rate(there)?;
        let calls = rate(
            |number| Ok(client.send(to, body.clone(), number, Flush::Later)?),
            || {
                let ended = client.recv_many(&mut batch, OUTSTANDING, None)?;
                batch.drain(..).try_for_each(|response| response.result.map(drop))?;
                Ok(ended)
            },
        )?;
        for (values, value) in figures.iter_mut().zip([calls, ring, calls / ring]) {
            values.push(value);
        }
    }
    port.shutdown();
    serving.join().expect("the server does not panic");
    let [calls, ring, ratio] = figures.map(median);
    println!(
        "100 B calls through memory, {OUTSTANDING} outstanding: {:.2} M/s, a bare ring {:.1} M/s, ratio {ratio:.3}",
        calls / 1e6,
        ring / 1e6
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the calls per second of a run. `call` begins the call with a number. `finish` waits for the end of calls, and returns how
/// many have ended.
fn rate(
    mut call: impl FnMut(u64) -> Result<(), AnyError>,
    mut finish: impl FnMut() -> Result<usize, AnyError>,
) -> Result<f64, AnyError> {
    let (start, mut begun, mut ended) = (Instant::now(), 0, 0);
    while start.elapsed() < RUN {
        while begun < ended + OUTSTANDING as u64 {
            call(begun)?;
            begun += 1;
        }
        ended += finish()? as u64;
    }
    let rate = ended as f64 / start.elapsed().as_secs_f64();
    while ended < begun {
        ended += finish()? as u64;
    }
    Ok(rate)
}

/// Two cache lines: a stamp, which is written last, and a message.
#[repr(align(128))]
struct Cell {
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A ring that one thread writes and another reads. Its messages have numbers.
struct Ring(Box<[Cell]>);

impl Ring {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        let cell = |_| Cell { stamp: word(), words: std::array::from_fn(|_| word()) };
        Self((0..CELLS).map(cell).collect())
    }

    fn write(&self, number: u64, message: &[u64; WORDS]) {
        let cell = &self.0[number as usize % CELLS];
        for (to, word) in cell.words.iter().zip(message) {
            to.store(*word, Ordering::Relaxed);
        }
        cell.stamp.store(number + 1, Ordering::Release);
    }

    /// Reads the message with this number, if it was written.
    fn read(&self, number: u64) -> Option<[u64; WORDS]> {
        let cell = &self.0[number as usize % CELLS];
        let is_written = cell.stamp.load(Ordering::Acquire) == number + 1;
        is_written.then(|| std::array::from_fn(|word| cell.words[word].load(Ordering::Relaxed)))
    }
}

/// Returns the calls per second over two rings, to a thread on the other CPU that echoes.
fn ring_rate(there: usize) -> Result<f64, AnyError> {
    let rings = Arc::new([Ring::new(), Ring::new()]);
    let over = Arc::new(AtomicBool::new(false));
    let serving = thread::spawn({
        let (rings, over) = (Arc::clone(&rings), Arc::clone(&over));
        move || {
            cpu::pin_current_thread(there).expect("this process may use it");
            let [requests, responses] = &*rings;
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                while let Some(message) = requests.read(number) {
                    responses.write(number, &message);
                    number += 1;
                }
            }
        }
    });
    let [requests, responses] = &*rings;
    let mut next = 0;
    let rate = rate(
        |number| {
            requests.write(number, &[number; WORDS]);
            Ok(())
        },
        || {
            let first = next;
            while let Some(message) = responses.read(next) {
                assert_eq!(message[WORDS - 1], next);
                next += 1;
            }
            Ok((next - first) as usize)
        },
    );
    over.store(true, Ordering::Relaxed);
    serving.join().expect("the server does not panic");
    rate
}
