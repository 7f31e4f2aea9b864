//! Counters of a channel.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a channel, which only grow. From [`Channel::counters`](crate::Channel::counters).
#[derive(Debug, Default)]
pub struct ChannelCounters {
    pub(crate) moved: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) ejections: AtomicU64,
    pub(crate) health_changes: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) list_errors: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl ChannelCounters {
    /// Requests that were not executed and went to another endpoint at once.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Attempts that followed a pause: those of a [`RetryPolicy`](crate::RetryPolicy), and those of calls that wait until an
    /// endpoint is ready.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// Second copies of slow calls ([`Hedge`](crate::Hedge)).
    #[must_use]
    pub fn copies(&self) -> u64 {
        self.copies.load(Ordering::Relaxed)
    }

    /// Endpoints that were ejected because of failures or a drain; an endpoint counts each time.
    #[must_use]
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Endpoints whose service has ceased or begun to serve ([`ChannelBuilder::health`](crate::ChannelBuilder::health)); an endpoint
    /// counts each time.
    #[must_use]
    pub fn health_changes(&self) -> u64 {
        self.health_changes.load(Ordering::Relaxed)
    }

    /// Lists of endpoints that the resolver has given after the first one.
    #[must_use]
    pub fn lists(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }

    /// Errors that the resolver has given after the first list. The list before each stays.
    #[must_use]
    pub fn list_errors(&self) -> u64 {
        self.list_errors.load(Ordering::Relaxed)
    }
}
