//! Streams that carriers of other hosts have opened, and the programs of this host that wait for them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use apus_sockets::introduction::Tuple;

/// How long one of the two waits for the other one. A program introduces a connection after some calls, and the other one may make
/// fewer calls for the same bytes.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// Streams that wait at a time. Further ones are refused.
const STREAMS_MAX: usize = 1_024;

/// Streams `S`, by the connections that they are for.
pub(crate) struct Pairing<S> {
    state: Mutex<State<S>>,
}

struct State<S> {
    streams: HashMap<Tuple, (S, Instant)>,
    programs: HashMap<Tuple, Waker>,
}

impl<S> Pairing<S> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { streams: HashMap::new(), programs: HashMap::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream has come for a connection. It is dropped if too many wait.
    pub(crate) fn bring(&self, tuple: Tuple, stream: S, now: Instant) {
        let mut state = self.state();
        let old: Vec<Tuple> = state
            .streams
            .iter()
            .filter(|(_, (_, since))| *since + WAIT < now)
            .map(|(tuple, _)| *tuple)
            .collect();
        let old: Vec<_> = old.into_iter().map(|tuple| state.streams.remove(&tuple)).collect();
        let before =
            (state.streams.len() < STREAMS_MAX).then(|| state.streams.insert(tuple, (stream, now)));
        let program = state.programs.remove(&tuple);
        drop(state); // A stream that is dropped takes locks of its own.
        drop((old, before));
        if let Some(program) = program {
            program.wake();
        }
    }

    /// The stream for a connection, once it has come.
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

/// A program waits no longer.
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
        assert_eq!(pairing.state().streams.len(), STREAMS_MAX);
        pairing.bring(tuple(2_000), (), now + 2 * WAIT);
        assert_eq!(pairing.state().streams.len(), 1);
    }
}
