//! Suspension itself: whether a packet is held while the application is busy, and until which timer, on a veth pair. Four parameters have
//! to be there at once; without any of them, nothing is held.
//!
//! A packet that is held comes no sooner than its timer, and one of a row with a shorter timer, or that is not held, comes sooner than those
//! of rows with longer ones. So no assertion depends on how fast the machine is.
//!
//! The receiver needs GRO and the sender no TSO, or local TCP traffic bypasses the NAPI instance.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use apus_irq::{EpollParameters, NapiParameters, incoming_napi, napis_can_be_set, set};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::Pid;

mod pair;
#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;
use pair::Pair;
use skipped::skipped;

/// Defer, gro-flush and irq-suspend in microseconds, prefer, and how long a packet is held in milliseconds.
const TABLE: [(u32, u64, u64, bool, Option<u64>); 13] = [
    (0, 0, 0, true, None),
    (100, 20, 0, true, None),
    (100, 20, 0, false, None),
    (100, 20, 5_000, true, Some(5)),
    (100, 20, 20_000, true, Some(20)),
    (100, 20, 50_000, true, Some(50)),
    // Its short timer unmasks the interrupt when it expires for the first time. A busy machine may need more than 20 µs until the
    // long one is set.
    (1, 1_000, 20_000, true, Some(20)),
    (100, 20, 20_000, false, None),
    (0, 20, 20_000, true, None),
    (100, 0, 20_000, true, None),
    (0, 0, 20_000, true, None),
    // Without suspension, a long gro-flush defers as long.
    (100, 5_000, 0, true, Some(5)),
    // A suspension that is shorter than gro-flush is the one that counts.
    (100, 20_000, 5_000, true, Some(5)),
];

/// The second packet of a round follows the first event by so much.
const SECOND_AFTER: Duration = Duration::from_millis(2);

/// If the thread does not come back from a step within this time, another process had the CPU, and the round does not count.
const GAP_MAX: Duration = Duration::from_micros(100);

/// Rounds that count.
const ROUNDS: usize = 15;

/// Rounds at most, with those that do not count.
const ROUNDS_MAX: usize = 1_000;

/// The times from the event of a first packet until a second one is delivered, while the application is busy, the shortest first; `None`
/// if the machine was so busy that few rounds count.
///
/// One thread on one CPU is sender and receiver: a poll by interrupt then ends in the call that sends, before the thread waits for
/// the event. On another CPU it may end later, and set the short timer after the thread has set the long one.
fn held(pair: &Pair, prefer_busy_poll: bool) -> Option<Vec<Duration>> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu().expect("Linux has it")).expect("a CPU of this machine");
    sched_setaffinity(Pid::from_raw(0), &here).expect("this thread runs there");
    let (sender, receiver) = pair.connect();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("the kernel has epoll");
    let parameters = EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll };
    parameters.set(&epoll.0).expect("the kernel has the parameters");
    epoll.add(&receiver, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("it is a socket");
    let rounds = (0..ROUNDS_MAX).filter_map(|_| round(&sender, &receiver, &epoll));
    let mut times: Vec<Duration> = rounds.take(ROUNDS).collect();
    assert!(incoming_napi(&receiver).expect("it is a socket").is_some());
    times.sort();
    (times.len() == ROUNDS).then_some(times)
}

/// How long it took in one round; `None` if the thread did not run when it had to.
fn round(mut sender: &TcpStream, receiver: &TcpStream, epoll: &Epoll) -> Option<Duration> {
    let begins = Instant::now();
    sender.write_all(b"1").expect("it is connected");
    let mut events = [EpollEvent::empty()];
    assert_eq!(epoll.wait(&mut events, EpollTimeout::NONE).expect("it waits"), 1);
    let since = Instant::now();
    read_byte(receiver);
    while since.elapsed() < SECOND_AFTER {
        std::hint::spin_loop();
    }
    sender.write_all(b"2").expect("it is connected");
    let is_sent_in_time = since.elapsed() < SECOND_AFTER + GAP_MAX;
    let (delivered, is_seen_in_time) = read_byte(receiver);
    let counts = since - begins < GAP_MAX && is_sent_in_time && is_seen_in_time;
    counts.then_some(delivered - since)
}

/// Reads a byte without a poll of the NAPI instance and without sleeping. Returns when it was read, and whether that is when it
/// was delivered.
fn read_byte(mut socket: &TcpStream) -> (Instant, bool) {
    let began = Instant::now();
    // When the look before this one began: a process loses the CPU mostly at the end of a system call.
    let mut before = began;
    loop {
        let looked = Instant::now();
        match socket.read(&mut [0]) {
            Ok(1) => {
                let delivered = Instant::now();
                return (delivered, delivered - before < GAP_MAX);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(looked - began < Duration::from_secs(60), "no packet");
            }
            other => panic!("{other:?}"),
        }
        before = looked;
    }
}

#[test]
fn packets_are_held_until_the_timer_that_all_four_parameters_say() {
    let Some(pair) = Pair::new("hold") else { return };
    if !napis_can_be_set().expect("the kernel answers") {
        return skipped("this kernel has no napi-set (Linux 6.13 and newer do)");
    }
    let napi = pair.napi();
    let (mut wrong, mut earliest) = (Vec::new(), Vec::new());
    for (defer_hard_irqs, gro_us, suspend_us, prefer, expected_ms) in TABLE {
        let parameters = NapiParameters {
            threaded: None,
            defer_hard_irqs,
            gro_flush_timeout_ns: gro_us * 1_000,
            irq_suspend_timeout_ns: suspend_us * 1_000,
        };
        match pair.inside(1, || set(napi, &parameters)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return skipped("no CAP_NET_ADMIN in the initial user namespace");
            }
            done => done.expect("values within range"),
        }
        let Some(times) = held(&pair, prefer) else {
            return skipped("other processes take the CPU too often");
        };
        let median = times[ROUNDS / 2];
        let row = format!("{parameters:?}, prefer {prefer}: {median:?}");
        println!("{row}");
        let timer = Duration::from_millis(expected_ms.unwrap_or(0));
        if median < timer * 85 / 100 {
            wrong.push(row);
        }
        earliest.push((timer, times[0]));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The least disturbed round of each row: rows with a longer timer are later.
    for (timer, time) in &earliest {
        let sooner = earliest.iter().find(|(longer, other)| longer > timer && other <= time);
        assert_eq!(sooner, None, "{timer:?}: {time:?}");
    }
}
