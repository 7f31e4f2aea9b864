//! Suspension itself: how long a packet is held while the application is busy, on a veth pair. Four parameters have to be
//! there at once; without any of them, nothing is held.
//!
//! The receiver needs GRO and the sender no TSO, or local TCP traffic bypasses the NAPI instance.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use apus_irq::{EpollParameters, NapiParameters, incoming_napi, napis_can_be_set, set};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

mod pair;
#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;
use pair::Pair;
use skipped::skipped;

/// Defer, gro-flush and irq-suspend in microseconds, prefer, and how long a packet is held in milliseconds.
const TABLE: [(u32, u64, u64, bool, Option<u64>); 11] = [
    (0, 0, 0, true, None),
    (100, 20, 0, true, None),
    (100, 20, 0, false, None),
    (100, 20, 5_000, true, Some(5)),
    (100, 20, 20_000, true, Some(20)),
    (100, 20, 50_000, true, Some(50)),
    (1, 1_000, 20_000, true, Some(20)),
    (100, 20, 20_000, false, None),
    (0, 20, 20_000, true, None),
    (100, 0, 20_000, true, None),
    (0, 0, 20_000, true, None),
];

/// The second packet of a round follows the first event by so much.
const SECOND_AFTER: Duration = Duration::from_millis(2);

/// Rounds, of which the median counts.
const ROUNDS: usize = 15;

/// Reads a byte without a poll of the NAPI instance; how long after `since` it was there.
fn busy_read(mut socket: &TcpStream, since: Instant) -> Duration {
    loop {
        match socket.read(&mut [0]) {
            Ok(1) => return since.elapsed(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(since.elapsed() < Duration::from_secs(60), "no packet");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The median time from the event of a first packet until a second one is delivered, while the application is busy.
fn held(pair: &Pair, prefer_busy_poll: bool) -> Duration {
    let (mut sender, receiver) = pair.connect();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("the kernel has epoll");
    let parameters = EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll };
    parameters.set(&epoll.0).expect("the kernel has the parameters");
    epoll.add(&receiver, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("it is a socket");
    let (event_was, events) = mpsc::channel::<Instant>();
    sender.write_all(b"1").expect("it is connected");
    let sending = thread::spawn(move || {
        for since in events {
            while since.elapsed() < SECOND_AFTER {
                std::hint::spin_loop();
            }
            sender.write_all(b"2").expect("it is connected");
            sender = next_round(sender);
        }
    });
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let mut events = [EpollEvent::empty()];
            let found = epoll.wait(&mut events, EpollTimeout::NONE).expect("it waits");
            let since = Instant::now();
            assert_eq!(found, 1);
            event_was.send(since).expect("the sender waits for it");
            busy_read(&receiver, since);
            let time = busy_read(&receiver, since);
            // The queue is polled until it is empty and its interrupt is back, and the next round begins.
            let _ = epoll.wait(&mut events, EpollTimeout::from(1_u8)).expect("it waits");
            (&receiver).write_all(b"n").expect("it is connected");
            time
        })
        .collect();
    assert!(incoming_napi(&receiver).expect("it is a socket").is_some());
    drop(event_was);
    sending.join().expect("it does not panic");
    times.sort();
    times[ROUNDS / 2]
}

/// Waits for the receiver's word and sends the first packet of the next round.
fn next_round(mut sender: TcpStream) -> TcpStream {
    sender.read_exact(&mut [0]).expect("it is connected");
    sender.write_all(b"1").expect("it is connected");
    sender
}

#[test]
fn packets_are_held_as_long_as_all_four_parameters_say() {
    let Some(pair) = Pair::new("hold") else { return };
    if !napis_can_be_set().expect("the kernel answers") {
        return skipped("this kernel has no napi-set (Linux 6.13 and newer do)");
    }
    let napi = pair.napi();
    let mut wrong = Vec::new();
    for (defer_hard_irqs, gro_us, suspend_us, prefer, expected_ms) in TABLE {
        let parameters = NapiParameters {
            defer_hard_irqs,
            gro_flush_timeout_ns: gro_us * 1_000,
            irq_suspend_timeout_ns: suspend_us * 1_000,
        };
        match pair.inside(1, || set(napi, &parameters)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return skipped("no CAP_NET_ADMIN in the first user namespace");
            }
            done => done.expect("values within range"),
        }
        let time = held(&pair, prefer);
        let row = format!("{parameters:?}, prefer {prefer}: {time:?}");
        println!("{row}");
        let is_right = match expected_ms.map(Duration::from_millis) {
            Some(expected) => time.abs_diff(expected) <= expected * 15 / 100,
            None => time < SECOND_AFTER * 2,
        };
        if !is_right {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
