//! The exchange of tokens between this node and a peer (rules `contact-1` to `contact-8`).
//!
//! ```text
//! node that calls:      Opening ──TOKEN──▶ Met ──another run answers──▶ Over
//! node that is called:             CONFIRM──▶ Met ──its client restarts──▶ Over
//! ```

use std::time::Duration;

use apus_wire::{Header, Offer, Stamp, Token};

use crate::slab::PeerKey;
use crate::time::Time;

/// Upper bound on the doublings of the wait between unanswered OPENs.
const DOUBLINGS_MAX: u8 = 6;

/// Time in which a lost CONFIRM is sent again. A TOKEN expires after twice this time.
const CONFIRM_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Contact {
    /// A peer of a native link, which has no tokens.
    Native,
    /// This node has sent its token and has not received the peer's. It sends nothing else to the peer.
    Opening(Opening),
    /// Each node knows the other's token.
    Met(Met),
    /// The peer's run that gave the token is over, or has forgotten this node. RPCs with it end.
    Over,
}

#[derive(Debug)]
pub(crate) struct Opening {
    /// The peer whose token is in doubt, if this is not a first contact.
    pub(crate) doubts: Option<PeerKey>,
    /// Ports and id that the OPEN names.
    pub(crate) header: Header,
    /// Number of OPENs sent.
    pub(crate) sent: u8,
    /// Time of the next OPEN.
    pub(crate) next: Time,
}

#[derive(Debug)]
pub(crate) struct Met {
    /// The token in packets to the peer.
    pub(crate) token: Token,
    /// Whether the peer has used this node's token, and so knows it.
    pub(crate) knows_us: bool,
    /// The confirmed offer and the time of its CONFIRM; `None` at the node that was called.
    confirmed: Option<(Offer, Time)>,
    /// Number of repetitions of the CONFIRM, and the time of the last one.
    again: (u8, Time),
    /// Time of the last answer to another TOKEN.
    answered: Option<Time>,
    /// The peer that is being opened because this token is in doubt.
    pub(crate) doubted: Option<PeerKey>,
}

impl Opening {
    pub(crate) fn new(now: Time, header: Header, doubts: Option<PeerKey>) -> Self {
        Self { doubts, header, sent: 0, next: now }
    }

    /// Records an OPEN. The wait for the next one is `rto`, doubled for each earlier OPEN, and at most `longest`.
    pub(crate) fn note_sent(&mut self, now: Time, rto: Duration, longest: Duration) {
        let doublings = self.sent.min(DOUBLINGS_MAX);
        self.sent = self.sent.saturating_add(1);
        self.next = now + (rto * (1 << doublings)).min(longest);
    }
}

impl Met {
    /// State of the node that called and confirms `offer`.
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

    /// State of the node that was called, after a CONFIRM with the peer's `token`.
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

    /// Returns whether the peer has used this node's token, or a repeated CONFIRM may still reach it.
    pub(crate) fn may_be_known(&self, now: Time) -> bool {
        let fresh = |(_, at): (Offer, Time)| now.saturating_since(at) <= CONFIRM_AGAIN;
        self.knows_us || self.confirmed.is_some_and(fresh)
    }

    /// Returns whether to answer another TOKEN. The spacing limits the answers to a peer that refuses each of them.
    pub(crate) fn may_confirm(&mut self, now: Time, spacing: Duration) -> bool {
        let may = self.answered.is_none_or(|at| now.saturating_since(at) >= spacing);
        if may {
            self.answered = Some(now);
        }
        may
    }

    /// Chooses the reaction to a peer that does not know its own token: another CONFIRM, if the first one was probably lost.
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

/// Reaction to a peer that does not know its own token.
#[derive(Debug)]
pub(crate) enum Confirming {
    /// The CONFIRM was lost. `first` is true for its first repetition, with which the packets after the CONFIRM are sent again as
    /// well.
    Again { offer: Offer, first: bool },
    /// The last CONFIRM is too recent for another one.
    Wait,
    /// The CONFIRM had arrived: the peer's run is over, or it has forgotten this node.
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

    /// Returns the stamp of packets to the peer; `None` on a native link.
    #[inline]
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Met(met) => Some(Stamp::new(met.token)),
            Self::Native | Self::Opening(_) | Self::Over => None,
        }
    }

    /// Returns whether messages may be sent to the peer.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        matches!(self, Self::Native | Self::Met(_))
    }
}
