//! Peers whose probes wait for their turn.

use std::collections::VecDeque;

use crate::slab::PeerKey;
use crate::time::Time;
use crate::timer::TICK;

/// Peers with probes that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    peers: VecDeque<PeerKey>,
    /// When the next probes go.
    next: Time,
}

impl Turns {
    /// When the next probes go.
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

    /// Probes go now; the next ones a tick later.
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
