//! The same from `shuttle`, with a clock and links of its own. Time passes when it is read. A short
//! sleep ends by its timer at once; a long one never does, so that no safety net hides a wake-up that
//! was lost.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use apus_net::Descriptors;
use apus_proto::Time;
pub(crate) use shuttle::hint::spin_loop;
use shuttle::sync::Condvar;
pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
pub(crate) use shuttle::sync::mpsc;
pub(crate) use shuttle::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
pub(crate) use shuttle::thread_local;

pub(crate) const TRIES: u32 = 1;

/// Sleeps longer than this end by a call or a packet only.
const SHORT: Duration = Duration::from_millis(1);

/// The environment of the threads: a clock, and the packets that wait at each link.
#[derive(Default)]
struct World {
    nanos: std::sync::atomic::AtomicU64,
    arrived: Mutex<BTreeMap<RawFd, VecDeque<(SocketAddr, Vec<u8>)>>>,
    changed: Condvar,
}

shuttle::lazy_static! {
    static ref WORLD: World = World::default();
}

fn pass(time: Duration) -> Time {
    let nanos = u64::try_from(time.as_nanos()).unwrap();
    Time::from_nanos(WORLD.nanos.fetch_add(nanos, Ordering::Relaxed))
}

pub(crate) fn now() -> Time {
    pass(Duration::from_micros(1))
}

pub(crate) mod thread {
    use std::time::Duration;

    pub(crate) use shuttle::thread::{
        Builder, JoinHandle, Thread, current, park, spawn, yield_now,
    };

    pub(crate) fn park_timeout(time: Duration) {
        if time <= super::SHORT {
            super::pass(time);
            yield_now();
        } else {
            park();
        }
    }
}

/// Puts a packet where the link with this descriptor finds it.
pub(crate) fn arrive(link: RawFd, from: SocketAddr, packet: Vec<u8>) {
    WORLD.arrived.lock().unwrap().entry(link).or_default().push_back((from, packet));
    WORLD.changed.notify_all();
}

pub(crate) fn take_arrived(link: RawFd) -> Option<(SocketAddr, Vec<u8>)> {
    WORLD.arrived.lock().unwrap().get_mut(&link)?.pop_front()
}

#[derive(Debug)]
pub(crate) struct Sleeper {
    called: AtomicBool,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { called: AtomicBool::new(false) })
    }

    pub(crate) fn sleep(&self, [link, ..]: Descriptors, timeout: Option<Duration>) {
        let mut arrived = WORLD.arrived.lock().unwrap();
        loop {
            let ready = arrived.get(&link).is_some_and(|packets| !packets.is_empty());
            if self.called.swap(false, Ordering::Relaxed) || ready {
                return;
            }
            if let Some(timeout) = timeout.filter(|timeout| *timeout <= SHORT) {
                drop(arrived);
                pass(timeout);
                thread::yield_now();
                return;
            }
            arrived = WORLD.changed.wait(arrived).unwrap();
        }
    }

    pub(crate) fn discard_wake(&self) {
        self.called.store(false, Ordering::Relaxed);
    }

    pub(crate) fn wake(&self) {
        let arrived = WORLD.arrived.lock().unwrap();
        self.called.store(true, Ordering::Relaxed);
        drop(arrived);
        WORLD.changed.notify_all();
    }
}

/// No thread of the model watches a descriptor: its event loops sleep on their `Sleeper`.
#[derive(Debug)]
pub(crate) enum EventSource {}

impl EventSource {
    pub(crate) fn new(_: Descriptors, _: &Sleeper) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn set_timer(&self, _: Option<Duration>) {
        match *self {}
    }
}

impl AsFd for EventSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}
