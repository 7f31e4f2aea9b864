//! What a carrier tells of itself: counters, and events for a log (crate `tracing`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// An event of each kind is logged this often at most. Strangers decide how often there is something to log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What a carrier does, and has done since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Address of its node.
    pub listen: String,
    /// Since its start.
    pub uptime_s: u64,
    /// Where it logs.
    pub log: Option<String>,
    /// Whether new connections are carried.
    pub carries: bool,
    /// Networks of the hosts to and from which connections are carried; none: all hosts.
    pub hosts: Vec<String>,
    /// Processes of programs, and connections that they have introduced.
    pub guests: usize,
    /// Descriptors that further processes and connections may have.
    pub descriptors_left: usize,
    /// Connections that are carried.
    pub connections: Vec<Connection>,
    /// Streams of other carriers that wait for a program of this host.
    pub waiting_streams: usize,
    /// Connections that were carried, and those that are.
    pub carried: u64,
    /// Connections that were lost, because a carrier ended, a host was out of reach or an end did not keep to the rules.
    pub lost: u64,
    /// Processes, connections and streams that were refused.
    pub refused: Refused,
}

/// A connection that is carried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Connection {
    /// Address of the end that made it.
    pub client: String,
    /// Address of the end that accepted it.
    pub server: String,
}

/// Processes, connections and streams that were refused, by the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Refused {
    /// Processes of other users.
    pub foreign_user: u64,
    /// Introductions by a process that does not have that connection, or no longer, and messages that are none.
    pub not_introduced: u64,
    /// Processes and connections for which no descriptor is left.
    pub no_descriptor: u64,
    /// Streams from another UDP port than that of the carriers: any user of a host may have such a port.
    pub foreign_port: u64,
    /// Streams from hosts that are not in the list.
    pub foreign_host: u64,
    /// Streams for a connection whose client is at another host than the stream's node.
    pub foreign_client: u64,
    /// Streams of a host that has too many which wait.
    pub too_many: u64,
    /// Connections and streams while carrying was switched off.
    pub off: u64,
}

/// What is counted and logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
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

const EVENTS: usize = Event::Absent as usize + 1;

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

/// Counts what the carrier does.
#[derive(Debug, Default)]
pub(crate) struct Counters([Counter; EVENTS]);

impl Counters {
    /// Something happens, and `line` says what.
    pub(crate) fn note(&self, event: Event, line: impl FnOnce() -> String) {
        let counter = &self.0[event as usize];
        let count = counter.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = counter.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() > LOG_EVERY) {
            *logged = Some(Instant::now());
            drop(logged);
            tracing::warn!("{} ({count} so far)", line());
        }
    }

    /// How often it has happened.
    pub(crate) fn count(&self, event: Event) -> u64 {
        self.0[event as usize].count.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> Refused {
        Refused {
            foreign_user: self.count(Event::ForeignUser),
            not_introduced: self.count(Event::NotIntroduced),
            no_descriptor: self.count(Event::NoDescriptor),
            foreign_port: self.count(Event::ForeignPort),
            foreign_host: self.count(Event::ForeignHost),
            foreign_client: self.count(Event::ForeignClient),
            too_many: self.count(Event::TooMany),
            off: self.count(Event::Off),
        }
    }
}
