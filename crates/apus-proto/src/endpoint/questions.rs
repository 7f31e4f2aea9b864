//! Questions of peers, RESEND and NEED_ACK, that wait until this node has read the packets that arrived while it was not scheduled.
//! The packets behind a question often answer it: an acknowledgement, or the missing data itself.

use apus_wire::{Header, Resend};

use crate::slab::PeerKey;

/// Upper bound on questions that wait. Further ones are answered at once.
const WAITING_MAX: usize = 256;

/// A question of a peer, to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    Resend(Resend),
    NeedAck,
}

/// Questions that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// Whether questions wait.
    wait: bool,
    waiting: Vec<(PeerKey, Header, Question)>,
}

impl Questions {
    /// Has questions wait from now on.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.wait = true;
    }

    /// Has questions wait no longer. Returns those that have waited.
    #[inline]
    pub(super) fn end(&mut self) -> Vec<(PeerKey, Header, Question)> {
        self.wait = false;
        std::mem::take(&mut self.waiting)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps a question for later. Returns `false` if it must be answered now.
    #[inline]
    pub(super) fn postpone(&mut self, peer: PeerKey, header: &Header, question: Question) -> bool {
        let waits = self.wait && self.waiting.len() < WAITING_MAX;
        if waits {
            self.waiting.push((peer, *header, question));
        }
        waits
    }
}
