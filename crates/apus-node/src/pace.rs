//! Schedules of calls: every load generator starts due calls here, and measures its lateness.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use apus_load::{Lateness, Poisson, RateError};

/// A schedule of calls.
#[derive(Debug)]
pub struct Pace {
    arrivals: Option<Arrivals>,
    /// Time since which a due call has waited for room.
    blocked_since_ns: Option<u64>,
}

/// Scheduled times, in nanoseconds since the start of the run.
struct Arrivals {
    next_ns: u64,
    later: Box<dyn Iterator<Item = u64> + Send>,
}

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").field("next_ns", &self.next_ns).finish_non_exhaustive()
    }
}

/// A due call.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// Start of its latency: the scheduled time in an open loop, the current time in a closed one.
    pub at_ns: u64,
    /// The current time.
    pub now_ns: u64,
    /// Whether it has a scheduled time.
    pub is_open: bool,
    /// Time for which there has been no room for it.
    pub blocked_ns: Option<u64>,
}

/// The next step after the due calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The next call is due after this time.
    Due(Duration),
    /// No more calls may be outstanding.
    NoRoom,
}

impl Pace {
    /// A closed loop: a call is due as soon as it may start.
    #[must_use]
    pub fn closed() -> Self {
        Self { arrivals: None, blocked_since_ns: None }
    }

    /// An open loop: calls are due at these times, in rising order.
    #[must_use]
    pub fn open(times_ns: impl Iterator<Item = u64> + Send + 'static) -> Self {
        let mut later = Box::new(times_ns);
        let next_ns = later.next().unwrap_or(u64::MAX);
        Self { arrivals: Some(Arrivals { next_ns, later }), ..Self::closed() }
    }

    /// An open loop at random times with the byte rate `gbps` of messages of `bytes_mean` bytes on average; 0 is a closed loop.
    ///
    /// # Errors
    /// If the rate is impossible.
    pub fn for_throughput(gbps: f64, bytes_mean: f64, seed: u64) -> Result<Self, RateError> {
        if gbps == 0.0 {
            return Ok(Self::closed());
        }
        Poisson::for_throughput(gbps, bytes_mean, seed).map(Self::open)
    }

    /// Starts the due calls, at most `most` of them, so that a backlog does not delay the handling of replies. `start` returns
    /// whether there was room for the call; without room, the call stays due.
    ///
    /// # Errors
    /// The errors of `start`.
    pub fn start_due(
        &mut self,
        most: usize,
        start_of_run: Instant,
        mut start: impl FnMut(Due) -> Result<bool>,
    ) -> Result<Next> {
        for _ in 0..most {
            let now_ns = nanos_since(start_of_run);
            let at_ns = self.arrivals.as_ref().map_or(now_ns, |arrivals| arrivals.next_ns);
            if at_ns > now_ns {
                return Ok(Next::Due(Duration::from_nanos(at_ns - now_ns)));
            }
            let blocked_ns = self.blocked_since_ns.map(|since_ns| now_ns - since_ns);
            if !start(Due { at_ns, now_ns, is_open: self.arrivals.is_some(), blocked_ns })? {
                self.blocked_since_ns.get_or_insert(now_ns);
                return Ok(Next::NoRoom);
            }
            self.blocked_since_ns = None;
            if let Some(arrivals) = &mut self.arrivals {
                arrivals.next_ns = arrivals.later.next().unwrap_or(u64::MAX);
            }
        }
        Ok(Next::Due(Duration::ZERO))
    }
}

impl Due {
    /// Notes a start in an open loop. Lateness because of missing room is lag, which is returned in nanoseconds; other lateness is
    /// the generator's own.
    pub fn note_start(&self, lateness: &mut Lateness) -> u64 {
        if self.is_open && self.blocked_ns.is_none() {
            lateness.record(self.at_ns, self.now_ns);
        }
        self.blocked_ns.filter(|_| self.is_open).unwrap_or(0)
    }
}

/// Nanoseconds since the start of the run.
#[must_use]
pub fn nanos_since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_is_always_due() {
        let mut started = 0;
        let next = Pace::closed().start_due(3, Instant::now(), |due| {
            assert_eq!(due.at_ns, due.now_ns);
            started += 1;
            Ok(true)
        });
        assert_eq!((next.unwrap(), started), (Next::Due(Duration::ZERO), 3));
    }

    #[test]
    fn an_open_loop_counts_from_the_intended_time() {
        let start = Instant::now();
        let mut pace = Pace::open([0, 1, u64::MAX].into_iter());
        let mut due = Vec::new();
        let next = pace.start_due(64, start, |call| {
            due.push(call.at_ns);
            Ok(true)
        });
        assert!(matches!(next.unwrap(), Next::Due(wait) if wait > Duration::from_secs(60)));
        assert_eq!(due, [0, 1]);
    }

    #[test]
    fn a_call_without_room_stays_due_and_is_no_lateness() {
        let mut pace = Pace::open([1, u64::MAX].into_iter());
        let start = Instant::now();
        while nanos_since(start) < 2 {}
        assert_eq!(pace.start_due(64, start, |_| Ok(false)).unwrap(), Next::NoRoom);
        let mut lateness = Lateness::new();
        let note = |due: Due| {
            assert_eq!((due.at_ns, due.note_start(&mut lateness)), (1, due.blocked_ns.unwrap()));
            Ok(true)
        };
        pace.start_due(64, start, note).unwrap();
        assert_eq!(lateness.started(), 0);
    }
}
