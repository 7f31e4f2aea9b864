//! State shared by the tasks of a carrier.

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

/// Time for which a host without a carrier is not contacted again.
const ABSENT: Duration = Duration::from_secs(10);

pub(crate) struct CarrierState {
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
    /// The process's log.
    pub(crate) log: Option<String>,
    /// Hosts without a carrier, with the time at which that was found.
    absent: Mutex<HashMap<IpAddr, Instant>>,
    /// Carried connections.
    connections: Mutex<HashMap<u64, (Tuple, Option<Waker>)>>,
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CarrierState {
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

    /// Whether a host was recently found to have no carrier.
    pub(crate) fn is_absent(&self, ip: IpAddr) -> bool {
        let mut absent = lock(&self.absent);
        absent.retain(|_, since| since.elapsed() < ABSENT);
        absent.contains_key(&ip)
    }

    /// Notes that a host has no carrier.
    pub(crate) fn note_absent(&self, ip: IpAddr) {
        lock(&self.absent).insert(ip, Instant::now());
    }

    /// Adds a carried connection, for the lifetime of the returned value.
    pub(crate) fn begin_carrying(self: &Arc<Self>, tuple: Tuple) -> Listed {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.connections).insert(number, (tuple, None));
        Listed { shared: Arc::clone(self), number }
    }

    /// Carried connections.
    pub(crate) fn connections(&self) -> Vec<Tuple> {
        let mut all: Vec<Tuple> =
            lock(&self.connections).values().map(|(tuple, _)| *tuple).collect();
        all.sort_unstable();
        all
    }

    /// Switches carrying on, or off with a return of all connections to TCP. Returns whether that changes the state.
    pub(crate) fn switch(&self, carries: bool) -> bool {
        let changes = self.carries.swap(carries, Ordering::AcqRel) != carries;
        if changes && !carries {
            let tasks = |it: &(Tuple, Option<Waker>)| it.1.clone();
            let tasks: Vec<Waker> = lock(&self.connections).values().filter_map(tasks).collect();
            tasks.into_iter().for_each(Waker::wake); // They run here, and check the switch.
        }
        changes
    }

    /// Number of connections carried since the start.
    pub(crate) fn carried(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// A connection in the list of carried ones.
pub(crate) struct Listed {
    shared: Arc<CarrierState>,
    number: u64,
}

impl Listed {
    /// Sets the task that is woken when the carrier is switched off.
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
