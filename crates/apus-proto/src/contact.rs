//! How far this node and a peer know each other's tokens (rules `contact-1` to `contact-8`).
//!
//! ```text
//! node that calls:      Opening ──TOKEN──▶ Met ──another run answers──▶ Over
//! node that is called:             CONFIRM──▶ Met ──its client restarts──▶ Over
//! ```

use std::time::Duration;

use apus_wire::{Header, Offer, Stamp, Token};

use crate::slab::PeerKey;
use crate::time::Time;

/// OPENs that go unanswered double the wait for the next, up to this many times.
const DOUBLINGS_MAX: u8 = 6;

/// A lost CONFIRM is sent again for this long; a TOKEN is worth nothing after twice the time.
const CONFIRM_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Contact {
    /// A peer of a native link, which has no tokens.
    Native,
    /// The peer was sent our token and has not told its own. Nothing else is sent there.
    Opening(Opening),
    /// Each knows the other's token.
    Met(Met),
    /// The run of the peer that gave the token is over, or has forgotten us. What is under way with
    /// it ends.
    Over,
}

#[derive(Debug)]
pub(crate) struct Opening {
    /// The peer whose token is in doubt, if this is not a first contact.
    pub(crate) doubts: Option<PeerKey>,
    /// Ports and id that the OPEN names.
    pub(crate) header: Header,
    /// OPENs sent.
    pub(crate) sent: u8,
    /// When the next one goes.
    pub(crate) next: Time,
}

#[derive(Debug)]
pub(crate) struct Met {
    /// What our packets to the peer carry.
    pub(crate) token: Token,
    /// The peer has used ours, so it knows us.
    pub(crate) knows_us: bool,
    /// What we confirmed with, and when; `None` at the node that was called.
    confirmed: Option<(Offer, Time)>,
    /// How often it was confirmed once more, and when.
    again: (u8, Time),
    /// When another TOKEN was answered.
    answered: Option<Time>,
    /// The peer that is being opened because this token is in doubt.
    pub(crate) doubted: Option<PeerKey>,
}

impl Opening {
    pub(crate) fn new(now: Time, header: Header, doubts: Option<PeerKey>) -> Self {
        Self { doubts, header, sent: 0, next: now }
    }

    /// An OPEN is sent; `rto` for the first answer, at most `longest`.
    pub(crate) fn note_sent(&mut self, now: Time, rto: Duration, longest: Duration) {
        let doublings = self.sent.min(DOUBLINGS_MAX);
        self.sent = self.sent.saturating_add(1);
        self.next = now + (rto * (1 << doublings)).min(longest);
    }
}

impl Met {
    /// The node that called has got `offer` and confirms it.
    pub(crate) fn confirming(now: Time, offer: Offer) -> Self {
        let confirmed = Some((offer, now));
        Self {
            token: offer.token,
            knows_us: false,
            confirmed,
            again: (0, now),
            answered: None,
            doubted: None,
        }
    }

    /// The node that was called: the peer has confirmed, and its token is `token`.
    pub(crate) fn confirmed(token: Token) -> Self {
        Self {
            token,
            knows_us: true,
            confirmed: None,
            again: (0, Time::ZERO),
            answered: None,
            doubted: None,
        }
    }

    /// Whether the peer has used our token, or may still be made to know its own.
    pub(crate) fn may_be_known(&self, now: Time) -> bool {
        let fresh = |(_, at): (Offer, Time)| now.saturating_since(at) <= CONFIRM_AGAIN;
        self.knows_us || self.confirmed.is_some_and(fresh)
    }

    /// Whether to answer another TOKEN: not as fast as the peer may ask, who may refuse each answer.
    pub(crate) fn may_confirm(&mut self, now: Time, spacing: Duration) -> bool {
        let may = self.answered.is_none_or(|at| now.saturating_since(at) >= spacing);
        if may {
            self.answered = Some(now);
        }
        may
    }

    /// The peer does not know its own token: what to confirm once more, if that was probably lost.
    pub(crate) fn confirm_again(&mut self, now: Time, spacing: Duration) -> Confirming {
        //= docs/protocol.md#contact-5
        let Some((offer, at)) = self.confirmed.filter(|_| !self.knows_us) else {
            return Confirming::Doubt;
        };
        let (times, last) = self.again;
        if now.saturating_since(at) > CONFIRM_AGAIN {
            Confirming::Doubt
        } else if times > 0
            && now.saturating_since(last) < spacing * (1 << times.min(DOUBLINGS_MAX))
        {
            Confirming::Wait
        } else {
            self.again = (times.saturating_add(1), now);
            Confirming::Again { offer, first: times == 0 }
        }
    }
}

/// What to do when the peer says that it does not know its token.
#[derive(Debug)]
pub(crate) enum Confirming {
    /// The CONFIRM was lost; for the `first` time, so what followed it is sent again as well.
    Again { offer: Offer, first: bool },
    /// It was sent just now.
    Wait,
    /// It had arrived: the peer's run is over, or it has forgotten us.
    Doubt,
}

impl Contact {
    pub(crate) fn met(&self) -> Option<&Met> {
        match self {
            Self::Met(met) => Some(met),
            _ => None,
        }
    }

    pub(crate) fn met_mut(&mut self) -> Option<&mut Met> {
        match self {
            Self::Met(met) => Some(met),
            _ => None,
        }
    }

    pub(crate) fn opening(&self) -> Option<&Opening> {
        match self {
            Self::Opening(opening) => Some(opening),
            _ => None,
        }
    }

    pub(crate) fn opening_mut(&mut self) -> Option<&mut Opening> {
        match self {
            Self::Opening(opening) => Some(opening),
            _ => None,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// What packets to the peer are stamped with; `None` on a native link.
    #[inline]
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Met(met) => Some(Stamp::new(met.token)),
            Self::Native | Self::Opening(_) | Self::Over => None,
        }
    }

    /// Whether messages may go to the peer.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        matches!(self, Self::Native | Self::Met(_))
    }
}
