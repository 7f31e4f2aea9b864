//! What the tasks of a carrier share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use apus::{Node, Stream};
use apus_sockets::introduction::Tuple;

use crate::bells::Bells;
use crate::guests::{Guest, Guests};
use crate::pairing::Pairing;
use crate::program::ProgramChannel;
use crate::settings::{Hosts, Settings};
use crate::status::Counters;

/// A host without a carrier is not asked again for this long.
const ABSENT: Duration = Duration::from_secs(10);

pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) port: u16,
    pub(crate) hosts: Hosts,
    pub(crate) pairing: Pairing<Stream>,
    pub(crate) bells: Bells<(ProgramChannel, Guest)>,
    pub(crate) guests: Arc<Guests>,
    pub(crate) counters: Counters,
    /// Whether new connections are carried.
    pub(crate) carries: AtomicBool,
    pub(crate) since: Instant,
    /// Where the process logs.
    pub(crate) log: Option<String>,
    /// Hosts that have no carrier, and since when that is known.
    absent: Mutex<HashMap<IpAddr, Instant>>,
    /// Connections that are carried.
    connections: Mutex<HashMap<u64, (Tuple, Option<Waker>)>>,
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(node: Node, settings: &Settings, guests: Arc<Guests>) -> Arc<Self> {
        Arc::new(Self {
            node,
            port: settings.port,
            hosts: settings.hosts.clone(),
            log: settings.log.clone(),
            pairing: Pairing::new(),
            bells: Bells::new(),
            guests,
            counters: Counters::default(),
            carries: AtomicBool::new(true),
            since: Instant::now(),
            absent: Mutex::default(),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Whether a host was found to have no carrier a short time ago.
    pub(crate) fn is_absent(&self, ip: IpAddr) -> bool {
        let mut absent = lock(&self.absent);
        absent.retain(|_, since| since.elapsed() < ABSENT);
        absent.contains_key(&ip)
    }

    /// A host has no carrier.
    pub(crate) fn note_absent(&self, ip: IpAddr) {
        lock(&self.absent).insert(ip, Instant::now());
    }

    /// A connection is carried, as long as the value lives.
    pub(crate) fn begin_carrying(self: &Arc<Self>, tuple: Tuple) -> Listed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.connections).insert(number, (tuple, None));
        Listed { shared: Arc::clone(self), number }
    }

    /// Connections that are carried.
    pub(crate) fn connections(&self) -> Vec<Tuple> {
        let mut all: Vec<Tuple> =
            lock(&self.connections).values().map(|(tuple, _)| *tuple).collect();
        all.sort_unstable();
        all
    }

    /// Carries new connections, or has all return to TCP. True if that changes anything.
    pub(crate) fn switch(&self, carries: bool) -> bool {
        let changes = self.carries.swap(carries, Ordering::AcqRel) != carries;
        if changes && !carries {
            let tasks = |it: &(Tuple, Option<Waker>)| it.1.clone();
            let tasks: Vec<Waker> = lock(&self.connections).values().filter_map(tasks).collect();
            tasks.into_iter().for_each(Waker::wake); // They run here, and look at the list.
        }
        changes
    }

    /// Connections that were carried, and those that are.
    pub(crate) fn carried(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// A connection in the list of those that are carried.
pub(crate) struct Listed {
    shared: Arc<Shared>,
    number: u64,
}

impl Listed {
    /// The task that is woken when the carrier is switched off.
    pub(crate) fn is_task(&self, waker: &Waker) {
        let mut connections = lock(&self.shared.connections);
        if let Some((_, known @ None)) = connections.get_mut(&self.number) {
            *known = Some(waker.clone());
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.shared.connections).remove(&self.number);
    }
}
