//! Watching real timers and polls, on a veth pair: suspension arms the timer with the long time if all parameters are there,
//! and never without one of them.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use apus_irq::{
    EpollParameters, Error, NapiParameters, Watch, busy_poll_packets, napis_can_be_set, set,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

mod pair;
#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;
use pair::Pair;
use skipped::skipped;

const PARAMETERS: NapiParameters = NapiParameters {
    threaded: None,
    defer_hard_irqs: 100,
    gro_flush_timeout_ns: 20_000,
    irq_suspend_timeout_ns: 20_000_000,
};

const ROUNDS: u8 = 100;

/// Requests and responses, whose server waits by an epoll set that prefers busy polling or does not.
fn talk(pair: &Pair, prefer_busy_poll: bool) {
    let (mut client, mut server) = pair.connect();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("the kernel has epoll");
    let parameters = EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll };
    parameters.set(&epoll.0).expect("the kernel has the parameters");
    epoll.add(&server, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("it is a socket");
    let asking = thread::spawn(move || {
        for round in 0..ROUNDS {
            client.write_all(&[round]).expect("it is connected");
            client.read_exact(&mut [0]).expect("it is connected");
        }
    });
    for _ in 0..ROUNDS {
        epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE).expect("it waits");
        let mut byte = [0];
        server.read_exact(&mut byte).expect("the event was for it");
        server.write_all(&byte).expect("it is connected");
    }
    asking.join().expect("it does not panic");
}

/// Whether the kernel refuses to be watched, or has no tracepoints. Everything else is a fault.
fn is_refused(error: &Error) -> bool {
    let Error::CannotWatch { source, .. } = error else { return false };
    [ErrorKind::PermissionDenied, ErrorKind::NotFound].contains(&source.kind())
}

#[test]
fn suspension_is_seen_in_the_timers_and_in_the_counter_of_busy_polling() {
    let Some(pair) = Pair::new("watch") else { return };
    if !napis_can_be_set().expect("the kernel answers") {
        return skipped("this kernel has no napi-set (Linux 6.13 and newer do)");
    }
    let napi = pair.napi();
    match pair.inside(1, || set(napi, &PARAMETERS)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return skipped("no CAP_NET_ADMIN in the initial user namespace");
        }
        done => done.expect("values within range"),
    }
    let watch = match Watch::open(Duration::from_nanos(PARAMETERS.irq_suspend_timeout_ns)) {
        Err(error @ Error::CannotWatch { .. }) if is_refused(&error) => return skipped(error),
        watch => watch.expect("it is open"),
    };
    let polled = || pair.inside(1, || busy_poll_packets(None).expect("the kernel has it"));
    let counts_of = |prefer| {
        let (counts, packets) = (watch.counts(), polled());
        talk(&pair, prefer);
        let since = watch.counts().since(&counts);
        assert!(since.softirq_ns.iter().sum::<u64>() > 0);
        let counts = since.of_device(&pair.device);
        println!("prefer {prefer}: {counts:?}");
        assert!(counts.softirq_polls > 0, "{counts:?}");
        (counts, polled() - packets)
    };
    let (with, packets) = counts_of(true);
    // Every return of `epoll_wait` with an event arms it, unless the event came while nothing was polled.
    assert!(with.long_rearms >= u64::from(ROUNDS) / 2, "{with:?}");
    assert!(with.threads.values().any(|it| it.long_rearms == with.long_rearms), "{with:?}");
    assert!(with.task_polls > 0, "{with:?}");
    // Softirqs may be first for each packet of a round, so a round proves little.
    let takes_some = || {
        let before = polled();
        talk(&pair, true);
        polled() > before
    };
    assert!(packets > 0 || (0..ROUNDS).any(|_| takes_some()), "no packet by busy polling");
    let (without, packets) = counts_of(false);
    assert_eq!((without.long_rearms, without.overruns, packets), (0, 0, 0), "{without:?}");
    // Deferral alone, which the timer serves in the meantime.
    assert!(without.short_rearms > 0 && without.expiries > 0, "{without:?}");
    watch.set_suspension(Duration::ZERO);
    let (unnamed, packets) = counts_of(true);
    assert_eq!(unnamed.long_rearms, 0, "{unnamed:?}");
    assert!(packets > 0 || (0..ROUNDS).any(|_| takes_some()), "no packet by busy polling");
}
