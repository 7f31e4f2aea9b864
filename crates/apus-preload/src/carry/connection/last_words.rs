//! The end of a connection between hosts: the kernel may report it before the carrier has shown what the peer wrote before.
//!
//! The end of TCP counts once the *last words* of the peer are here: that it has closed or ended its direction, that it has returned to
//! TCP for good, or that its process has ended. Words come in order, so all bytes are here then as well.

use std::sync::atomic::{AtomicBool, Ordering};

use apus_shm::PeerSegment;
use apus_sockets::layout;

/// Whether the peer has said that it writes nothing more into its ring, or its carrier has said so.
pub(super) fn have_come(peer: &PeerSegment) -> bool {
    let shut = peer.load(layout::SHUT, Ordering::Acquire);
    matches!(shut, layout::ENDS | layout::HAS_ENDED) || !was_lost(peer)
}

/// Whether the peer ended without a word of that, if it ended: a carrier was lost.
pub(super) fn was_lost(peer: &PeerSegment) -> bool {
    let has_left = peer.load(layout::LEFT, Ordering::Acquire) == layout::HAS_LEFT;
    !is_set(peer, layout::CLOSED) && !is_set(peer, layout::DIED) && !has_left
}

fn is_set(peer: &PeerSegment, word: usize) -> bool {
    peer.load(word, Ordering::Acquire) != 0
}

/// What the kernel has said before the last words came.
#[derive(Default)]
pub(super) struct Ending {
    met_end: AtomicBool,
    met_reset: AtomicBool,
    lost: AtomicBool,
    told_loss: AtomicBool,
}

impl Ending {
    /// TCP has ended. True if that is new.
    pub(super) fn meet_end(&self) -> bool {
        !self.met_end.swap(true, Ordering::AcqRel)
    }

    /// Whether TCP had ended before the last words came.
    pub(super) fn has_met_end(&self) -> bool {
        self.met_end.load(Ordering::Acquire)
    }

    /// The connection is about to be reset, because the peer was lost.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Tells the program that the peer was lost. True if it was not told before.
    pub(super) fn tell_loss(&self) -> bool {
        !self.told_loss.swap(true, Ordering::AcqRel)
    }

    /// TCP was reset, which the kernel says once: the program is to know it after the bytes that were sent before.
    pub(super) fn meet_reset(&self) {
        self.met_reset.store(true, Ordering::Release);
    }

    /// Whether the program is to know of a reset. True once.
    pub(super) fn take_reset(&self) -> bool {
        self.met_reset.swap(false, Ordering::AcqRel)
    }
}
