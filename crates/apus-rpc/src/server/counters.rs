//! Counters of a server.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::envelope::Refusals;

/// Counters of a server since it was built. From [`Serving::counters`](crate::Serving::counters).
#[derive(Default, Debug)]
pub struct ServerCounters {
    pub(crate) refusals: Refusals,
    pub(crate) begun: AtomicU64,
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) given_up: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) unknown_methods: AtomicU64,
    pub(crate) over_limits: AtomicU64,
    pub(crate) withheld: AtomicU64,
    pub(crate) intercepted: AtomicU64,
    pub(crate) drained: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ServerCounters {
    /// Requests whose bytes were refused, by reason.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Requests for which a handler was called.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Requests whose handler has returned a response.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.succeeded.load(Ordering::Relaxed)
    }

    /// Requests whose handler has returned an error, those that [panicked](Self::panics), and streams that the server has ended with
    /// [`Code::ResourceExhausted`](crate::Code::ResourceExhausted).
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Other requests whose handler was dropped before its end.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Handlers that panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Requests for a method that the server does not have.
    #[must_use]
    pub fn unknown_methods(&self) -> u64 {
        self.unknown_methods.load(Ordering::Relaxed)
    }

    /// Requests beyond [`concurrency`](crate::ServerBuilder::concurrency) or [`per_peer`](crate::ServerBuilder::per_peer).
    #[must_use]
    pub fn over_limits(&self) -> u64 {
        self.over_limits.load(Ordering::Relaxed)
    }

    /// Messages of streams that found [`stream_buffer`](crate::ServerBuilder::stream_buffer) or
    /// [`stream_buffer_per_host`](crate::ServerBuilder::stream_buffer_per_host) full: their clients waited with further ones. A call
    /// whose first message found no room is counted as well; it has failed.
    #[must_use]
    pub fn withheld(&self) -> u64 {
        self.withheld.load(Ordering::Relaxed)
    }

    /// Requests that an interceptor has refused.
    #[must_use]
    pub fn intercepted(&self) -> u64 {
        self.intercepted.load(Ordering::Relaxed)
    }

    /// Requests that arrived while the server drained.
    #[must_use]
    pub fn drained(&self) -> u64 {
        self.drained.load(Ordering::Relaxed)
    }
}
