//! Questions of peers, RESEND and NEED_ACK, that wait until this node has read the packets that arrived while it was not scheduled.
//! The packets behind a question often answer it: an acknowledgement, or the missing data itself.

use apus_wire::{Header, Resend};

use crate::endpoint::Endpoint;
use crate::slab::PeerKey;
use crate::time::Time;

/// Upper bound on questions that wait. Further ones are answered at once.
const WAITING_MAX: usize = 256;

/// What a peer asks.
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

impl Endpoint {
    /// Answers no RESEND and no NEED_ACK until [`answer_questions`](Self::answer_questions): for a caller that was not scheduled
    /// for a while, while it reads the packets of that time.
    #[inline]
    pub fn postpone_questions(&mut self) {
        self.questions.wait = true;
    }

    /// Returns whether questions wait to be answered.
    #[must_use]
    #[inline]
    pub fn has_questions(&self) -> bool {
        !self.questions.waiting.is_empty()
    }

    /// Answers the questions that were postponed. A loop over at most 256 of them.
    #[inline]
    pub fn answer_questions(&mut self, now: Time) {
        self.questions.wait = false;
        if !self.questions.waiting.is_empty() {
            self.answer_waiting_questions(now);
        }
    }

    #[cold]
    fn answer_waiting_questions(&mut self, now: Time) {
        //= docs/protocol.md#loss-15
        for (peer, header, question) in std::mem::take(&mut self.questions.waiting) {
            if self.peers.get(peer).is_none() {
                continue;
            }
            match question {
                Question::Resend(resend) => self.answer_resend(now, peer, &header, resend),
                Question::NeedAck => self.answer_need_ack(now, peer, &header),
            }
        }
    }
}
