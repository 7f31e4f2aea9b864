//! The state of an endpoint that its calls change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use apus::Address;

use crate::client::resolve::Endpoint;

/// An endpoint of a channel.
#[derive(Debug)]
pub(crate) struct EndpointState {
    pub(crate) endpoint: Endpoint,
    /// Distinguishes the endpoints that a channel has had.
    pub(crate) number: u32,
    /// Of the calls under way, in bytes; each call counts as its request and [`CALL_COST`].
    load: AtomicU64,
    /// Failures of the peer since the last answer.
    failures: AtomicU32,
}

/// The load of a call beside the bytes of its request.
const CALL_COST: u64 = 1024;

impl EndpointState {
    pub(crate) fn new(endpoint: Endpoint, number: u32) -> Self {
        Self { endpoint, number, load: AtomicU64::new(0), failures: AtomicU32::new(0) }
    }

    pub(crate) fn load(&self) -> u64 {
        self.load.load(Ordering::Relaxed)
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Counts a failure. Returns the number of failures since the last answer.
    pub(crate) fn fail(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// The peer has answered.
    pub(crate) fn answered(&self) {
        // The line stays shared between threads while all goes well.
        if self.failures() != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}

/// An attempt of a call at an endpoint, which counts as load until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) state: Arc<EndpointState>,
    cost: u64,
}

impl InFlight {
    pub(crate) fn new(state: Arc<EndpointState>, length: usize) -> Self {
        let cost = CALL_COST + length as u64;
        state.load.fetch_add(cost, Ordering::Relaxed);
        Self { state, cost }
    }

    pub(crate) fn address(&self) -> Address {
        self.state.endpoint.address()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.load.fetch_sub(self.cost, Ordering::Relaxed);
    }
}
