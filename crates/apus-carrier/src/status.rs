//! A carrier's status: counters, and events for a log (crate `tracing`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Least time between two log lines of a kind, because other hosts and processes cause the events.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The current state of a carrier, and its counters since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// PID of its process.
    pub pid: u32,
    /// Address of its node.
    pub listen: String,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Its log.
    pub log: Option<String>,
    /// Whether new connections are carried.
    pub carries: bool,
    /// Networks of the hosts to and from which connections are carried; empty for all hosts.
    pub hosts: Vec<String>,
    /// Number of processes, and of connections that they have introduced.
    pub guests: usize,
    /// Number of descriptors left for further processes and connections.
    pub descriptors_left: usize,
    /// Carried connections.
    pub connections: Vec<CarriedConnection>,
    /// Number of other carriers' streams that wait for a program of this host.
    pub waiting_streams: usize,
    /// Number of connections carried since the start.
    pub carried: u64,
    /// Connections that were lost because a carrier exited, a host was unreachable or an end violated the protocol.
    pub lost: u64,
    /// Processes, connections and streams that were refused.
    pub refused: Refused,
}

/// A carried connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CarriedConnection {
    /// Address of the connecting end.
    pub client: String,
    /// Address of the accepting end.
    pub server: String,
}

/// Processes, connections and streams that were refused, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Refused {
    /// Processes of other users.
    pub foreign_user: u64,
    /// Introductions of connections that the process does not have, or no longer has, and malformed messages.
    pub not_introduced: u64,
    /// Processes and connections without a free descriptor.
    pub no_descriptor: u64,
    /// Streams from another UDP port than the carriers': any user of a host may have such a port.
    pub foreign_port: u64,
    /// Streams from hosts that are not in the list.
    pub foreign_host: u64,
    /// Streams for a connection whose client is at another host than the stream's node.
    pub foreign_client: u64,
    /// Streams of a host with too many waiting streams.
    pub too_many: u64,
    /// Connections and streams refused while carrying was switched off.
    pub off: u64,
}

/// An event that is counted and logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incident {
    ForeignUser,
    NotIntroduced,
    NoDescriptor,
    ForeignPort,
    ForeignHost,
    ForeignClient,
    TooMany,
    Off,
    /// A connection was lost.
    Lost,
    /// A host has no carrier.
    Absent,
}

const EVENTS: usize = Incident::Absent as usize + 1;

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

/// Counters of events.
#[derive(Debug, Default)]
pub(crate) struct Counters([Counter; EVENTS]);

impl Counters {
    /// Counts an event, and logs `line` if it is due.
    pub(crate) fn note(&self, event: Incident, line: impl FnOnce() -> String) {
        let counter = &self.0[event as usize];
        let count = counter.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = counter.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() > LOG_EVERY) {
            *logged = Some(Instant::now());
            drop(logged);
            tracing::warn!("{} ({count} so far)", line());
        }
    }

    /// Number of these events.
    pub(crate) fn count(&self, event: Incident) -> u64 {
        self.0[event as usize].count.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> Refused {
        Refused {
            foreign_user: self.count(Incident::ForeignUser),
            not_introduced: self.count(Incident::NotIntroduced),
            no_descriptor: self.count(Incident::NoDescriptor),
            foreign_port: self.count(Incident::ForeignPort),
            foreign_host: self.count(Incident::ForeignHost),
            foreign_client: self.count(Incident::ForeignClient),
            too_many: self.count(Incident::TooMany),
            off: self.count(Incident::Off),
        }
    }
}
