//! The end of a connection between hosts, which the kernel may report before the carrier has shown the peer's earlier bytes.
//!
//! The end of TCP counts only after the peer's *last words*: it has closed or ended its direction, has returned to TCP for good,
//! or its process has ended. Words arrive in order, so all bytes have arrived by then.

use std::sync::atomic::{AtomicBool, Ordering};

use apus_shm::PeerSegment;
use apus_sockets::layout;

/// Whether the last words have arrived, from the peer or from its carrier.
pub(super) fn have_come(peer: &PeerSegment) -> bool {
    let shut = peer.load(layout::SHUT, Ordering::Acquire);
    matches!(shut, layout::ENDS | layout::HAS_ENDED) || !was_lost(peer)
}

/// For an ended peer: whether it ended without last words, because a carrier was lost.
pub(super) fn was_lost(peer: &PeerSegment) -> bool {
    let has_left = peer.load(layout::LEFT, Ordering::Acquire) == layout::HAS_LEFT;
    !is_set(peer, layout::CLOSED) && !is_set(peer, layout::DIED) && !has_left
}

fn is_set(peer: &PeerSegment, word: usize) -> bool {
    peer.load(word, Ordering::Acquire) != 0
}

/// The kernel's reports before the last words arrived.
#[derive(Default)]
pub(super) struct Ending {
    met_end: AtomicBool,
    met_reset: AtomicBool,
    lost: AtomicBool,
    loss_reported: AtomicBool,
}

impl Ending {
    /// TCP has ended. Returns `true` the first time.
    pub(super) fn meet_end(&self) -> bool {
        !self.met_end.swap(true, Ordering::AcqRel)
    }

    /// Whether TCP ended before the last words arrived.
    pub(super) fn has_met_end(&self) -> bool {
        self.met_end.load(Ordering::Acquire)
    }

    /// The connection is about to be reset because the peer was lost.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Marks the loss as reported to the program. Returns `true` if it was not reported before.
    pub(super) fn report_loss(&self) -> bool {
        !self.loss_reported.swap(true, Ordering::AcqRel)
    }

    /// TCP was reset, which the kernel reports once. The program gets the error after the bytes that were sent before.
    pub(super) fn meet_reset(&self) {
        self.met_reset.store(true, Ordering::Release);
    }

    /// Whether the program still has to learn of a reset. Returns `true` once.
    pub(super) fn take_reset(&self) -> bool {
        self.met_reset.swap(false, Ordering::AcqRel)
    }
}
