//! Peers with pending probes.

use std::collections::VecDeque;

use crate::slab::PeerKey;
use crate::time::Time;
use crate::timer::TICK;

/// Peers with pending probes, in turn.
#[derive(Debug, Default)]
pub(super) struct ProbeQueue {
    peers: VecDeque<PeerKey>,
    /// Time of the next probes.
    next: Time,
}

impl ProbeQueue {
    /// Returns the time of the next probes, if any are pending.
    #[inline]
    pub(super) fn next(&self) -> Option<Time> {
        (!self.peers.is_empty()).then_some(self.next)
    }

    pub(super) fn push(&mut self, now: Time, peer: PeerKey) {
        if self.peers.is_empty() {
            self.next = now + TICK;
        }
        self.peers.push_back(peer);
    }

    /// Begins a tick of probes; the next one follows a tick later.
    pub(super) fn begin(&mut self, now: Time) {
        self.next = now + TICK;
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn pop(&mut self) -> Option<PeerKey> {
        self.peers.pop_front()
    }
}
