//! What a carrier tells of itself: counters, and lines of a log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A line of each kind is logged this often at most. Strangers decide how often there is something to log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What a carrier does, and has done since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// Processes and connections that were refused.
    pub refused: Refused,
}

/// Processes, connections and streams that were refused, by the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Refused {
    /// Streams from another UDP port than that of the carriers: any user of a host may have such a port.
    pub foreign_port: u64,
    /// Streams for a connection whose client is at another host than the stream's node.
    pub foreign_client: u64,
}

/// Why something is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    ForeignPort,
    ForeignClient,
}

const REASONS: usize = Reason::ForeignClient as usize + 1;

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

/// Counts what the carrier does.
#[derive(Debug, Default)]
pub(crate) struct Counters([Counter; REASONS]);

impl Counters {
    /// Something is refused, and `line` says what.
    pub(crate) fn refuse(&self, reason: Reason, line: impl FnOnce() -> String) {
        let counter = &self.0[reason as usize];
        let count = counter.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = counter.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() > LOG_EVERY) {
            *logged = Some(Instant::now());
            drop(logged);
            crate::log::line(&format!("{} ({count} so far)", line()));
        }
    }

    pub(crate) fn refused(&self) -> Refused {
        let count = |reason: Reason| self.0[reason as usize].count.load(Ordering::Relaxed);
        Refused {
            foreign_port: count(Reason::ForeignPort),
            foreign_client: count(Reason::ForeignClient),
        }
    }
}
