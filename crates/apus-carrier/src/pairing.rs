//! Streams that carriers of other hosts have opened, and the programs of this host that wait for them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use apus_sockets::introduction::Tuple;

/// Upper bound on the time for which a stream or a program waits for the other. A program introduces a connection after some calls,
/// and the other program may make fewer calls for the same bytes.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// Upper bound on waiting streams.
const STREAMS_MAX: usize = 1_024;

/// Streams `S` by their connections.
pub(crate) struct Pairing<S> {
    state: Mutex<Unpaired<S>>,
}

struct Unpaired<S> {
    streams: HashMap<Tuple, (S, Instant)>,
    programs: HashMap<Tuple, Waker>,
}

impl<S> Unpaired<S> {
    fn take(&mut self, tuple: &Tuple) -> Option<S> {
        self.streams.remove(tuple).map(|(stream, _)| stream)
    }

    /// The oldest stream of the host with the most streams.
    fn most_crowded(&self) -> Option<Tuple> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for tuple in self.streams.keys() {
            *counts.entry(tuple.client.ip()).or_default() += 1;
        }
        let (host, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let theirs = self.streams.iter().filter(|(tuple, _)| tuple.client.ip() == host);
        theirs.min_by_key(|(_, (_, since))| *since).map(|(tuple, _)| *tuple)
    }
}

impl<S> Pairing<S> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(Unpaired { streams: HashMap::new(), programs: HashMap::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, Unpaired<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream for a connection. If too many wait, the host with the most streams loses its oldest one, so each host has its
    /// share. Returns the host that lost a stream.
    pub(crate) fn bring(&self, tuple: Tuple, stream: S, now: Instant) -> Option<IpAddr> {
        let mut state = self.state();
        let mut gone: Vec<S> = Vec::new();
        let old: Vec<Tuple> = state
            .streams
            .iter()
            .filter(|(_, (_, since))| *since + WAIT < now)
            .map(|(tuple, _)| *tuple)
            .collect();
        gone.extend(old.iter().filter_map(|tuple| state.take(tuple)));
        let before = state.streams.insert(tuple, (stream, now)).map(|(stream, _)| stream);
        let loser = if state.streams.len() > STREAMS_MAX { state.most_crowded() } else { None };
        let lost = loser.and_then(|loser| state.take(&loser));
        let program = state.programs.remove(&tuple);
        drop(state); // Dropping a stream takes other locks.
        drop((gone, before, lost));
        if let Some(program) = program {
            program.wake();
        }
        loser.map(|loser| loser.client.ip())
    }

    /// Number of waiting streams.
    pub(crate) fn waiting(&self) -> usize {
        self.state().streams.len()
    }

    /// The stream for a connection, once it has arrived.
    pub(crate) fn stream_for(&self, tuple: Tuple) -> impl Future<Output = S> + Send + '_
    where
        S: Send,
    {
        let _leave = Leave { pairing: self, tuple };
        poll_fn(move |context| {
            let _ = &_leave;
            let mut state = self.state();
            if let Some((stream, _)) = state.streams.remove(&tuple) {
                return Poll::Ready(stream);
            }
            state.programs.insert(tuple, context.waker().clone());
            Poll::Pending
        })
    }
}

/// Removes a waiting program on drop.
struct Leave<'a, S> {
    pairing: &'a Pairing<S>,
    tuple: Tuple,
}

impl<S> Drop for Leave<'_, S> {
    fn drop(&mut self) {
        self.pairing.state().programs.remove(&self.tuple);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple { client: ([10, 0, 0, 1], port).into(), server: ([10, 0, 0, 2], 80).into() }
    }

    #[test]
    fn either_may_come_first() {
        let (pairing, mut context) = (Pairing::new(), Context::from_waker(Waker::noop()));
        let now = Instant::now();
        let mut first = pin!(pairing.stream_for(tuple(1)));
        assert_eq!(first.as_mut().poll(&mut context), Poll::Pending);
        pairing.bring(tuple(2), "two", now);
        assert_eq!(first.as_mut().poll(&mut context), Poll::Pending);
        pairing.bring(tuple(1), "one", now);
        assert_eq!(first.as_mut().poll(&mut context), Poll::Ready("one"));
        assert_eq!(pin!(pairing.stream_for(tuple(2))).poll(&mut context), Poll::Ready("two"));
    }

    #[test]
    fn streams_that_nobody_takes_are_dropped() {
        let pairing = Pairing::new();
        let now = Instant::now();
        for port in 0..2_000 {
            pairing.bring(tuple(port), (), now);
        }
        assert_eq!(pairing.waiting(), STREAMS_MAX);
        pairing.bring(tuple(2_000), (), now + 2 * WAIT);
        assert_eq!(pairing.waiting(), 1);
    }

    #[test]
    fn a_host_with_many_streams_leaves_room_for_others() {
        let pairing = Pairing::new();
        let now = Instant::now();
        let many = |port| (tuple(port), now + Duration::from_millis(port.into()));
        for (tuple, at) in (0..2_000).map(many) {
            pairing.bring(tuple, (), at);
        }
        let other = Tuple { client: ([10, 0, 0, 3], 1).into(), ..tuple(0) };
        let loser = pairing.bring(other, (), now);
        assert_eq!(loser, Some([10, 0, 0, 1].into()));
        assert!(pairing.state().streams.contains_key(&other));
        assert!(pairing.state().streams.contains_key(&tuple(1_999)), "the oldest one is gone");
    }
}
