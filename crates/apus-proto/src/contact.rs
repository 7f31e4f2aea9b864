//! The contact with a peer: a state machine that learns the peer's token, doubts it, and ends (rules `contact-1` to `contact-8`
//! of docs/protocol.md).
//!
//! ```text
//! this node calls:      opening ──TOKEN──▶ confirming ──packet──▶ met ──another run answers──▶ over
//! this node is called:                            CONFIRM──▶ met ──its client restarts──▶ over
//! a token is in doubt:  asking ──TOKEN, the old token──▶ forgotten
//!                       asking ──TOKEN, a new token──▶ confirming
//! ```
//!
//! | state | meaning |
//! |---|---|
//! | opening | OPEN is sent until the peer answers; calls wait |
//! | asking | the same on behalf of another peer, whose token is in doubt; has no calls |
//! | confirming | CONFIRM was sent, and no packet shows yet that it arrived; calls are sent |
//! | met | each node knows the other's token |
//! | over | the run that gave the token has ended, or has forgotten this node; RPCs with it end |
//!
//! A contact that is confirming or met may be *in doubt*: another peer, the asking one, finds out whether its token is still
//! known. A peer of a native link has no tokens and no events.
//!
//! | event | cause |
//! |---|---|
//! | OPEN | the peer asks whether this node knows the token that it has given to the peer |
//! | TOKEN | the peer has answered an OPEN, or requests a proof of this node's address |
//! | CONFIRM | the peer has answered a TOKEN |
//! | RPC_UNKNOWN | the peer has refused an OPEN or a CONFIRM; or it does not know its own token, which the packet repeats |
//! | another packet | it carries this node's token, and comes from the peer's address or from another one |
//! | answer | the asking peer has got a token, or has been refused |
//! | silence | a call begins after a long silence |
//! | path taken | calls by this peer's path go to another peer from now on |
//!
//! `contact/table.txt` lists the reaction to every event in every state, with its rule; a test compares it with the code. One step
//! changes one contact. The endpoint carries the reaction out afterwards: *ask* puts the contact in doubt, *end* ends it, and the
//! answer to an asking peer is an event of the contact in doubt.

use std::time::Duration;

use apus_wire::{Credentials, Header, Proof, RpcId, Stamp, Token, UnknownReason};

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
    /// As `Opening`, to find out whether another peer still knows its token.
    Asking(PeerKey, Opening),
    /// Each node knows the other's token, or this node's CONFIRM is under way.
    Met(Met),
    /// The peer's run that gave the token is over, or has forgotten this node. RPCs with it end.
    Over,
}

#[derive(Debug)]
pub(crate) struct Opening {
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
    /// This node's CONFIRM, until the peer uses this node's token. `None` at the node that was called.
    confirming: Option<Confirming>,
    /// Time of the last answer to another TOKEN.
    answered: Option<Time>,
    /// The peer that asks whether this token is still known.
    pub(crate) asking: Option<PeerKey>,
}

/// A CONFIRM of this node.
#[derive(Debug)]
struct Confirming {
    proof: Proof,
    /// Time of the first CONFIRM.
    since: Time,
    /// Number of its repetitions, and the time of the last one.
    again: (u8, Time),
}

/// A packet for a contact.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// An OPEN names the token that this node has given to the peer.
    Open,
    /// A TOKEN came from the peer's address.
    Token(Credentials),
    /// A CONFIRM says that the peer has chosen the token `theirs`. `proven`: its proof belongs to this node's token and the
    /// sender's address. `moved`: that is not the peer's address.
    Confirm { theirs: Token, proven: bool, moved: bool },
    /// An RPC_UNKNOWN that answers an OPEN or a CONFIRM of this node came from the peer's address.
    ContactRefused(UnknownReason),
    /// The peer does not know its own token, speaks another version, or has no room for this node.
    TokenRefused(UnknownReason),
    /// Another packet with this node's token came from the peer's address.
    Packet,
    /// A packet with this node's token came from another address.
    Elsewhere,
}

/// The reaction to a packet. The endpoint carries it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Ignore,
    /// Count a dropped packet, because its token does not fit the state.
    DropToken,
    /// Count a dropped packet, because its proof does not fit.
    DropProof,
    /// Answer as a node that does not know the token.
    RefuseToken,
    /// Send TOKEN with the token that the peer has already.
    OfferSame,
    /// Send TOKEN with a new token, if the port is served.
    OfferNew,
    /// Drop the CONFIRM as one without a proof, and send TOKEN with a new token, if the port is served.
    OfferAnother(Token),
    /// The peer's token is known: send CONFIRM and the packets that have waited.
    Begin(Proof),
    /// Send CONFIRM.
    Confirm(Proof),
    /// Send CONFIRM, and the request that was sent with the first one.
    ConfirmWithRequest(Proof),
    /// The sender of a packet must prove that it receives at its address: send TOKEN to it with the peer's token.
    AskProof(Token),
    /// The peer has moved to the sender's address.
    Move,
    /// Send OPEN as another peer that asks on behalf of this one.
    Ask,
    /// This peer asks on behalf of the other one: have its OPEN name the call of the packet, if it names none.
    AskFor(PeerKey),
    /// This peer has asked on behalf of another one and got this answer: a token, or the reason for a refusal.
    Answer(PeerKey, Result<Credentials, UnknownReason>),
    /// The port is not served, or this node has no right: end the call that the OPEN names, and send OPEN for the others.
    FailCall(UnknownReason),
    /// That was so when the CONFIRM arrived: end the call that it names.
    FailConfirmed(UnknownReason),
    /// End all calls of this peer, or of the one on whose behalf it asks, because the peer speaks another version.
    FailVersion(Option<PeerKey>),
    /// The peer has no room for this node: mark the call, which is repeated.
    NoteNoRoom,
}

/// Consequence for a peer when calls by its path go to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathTaken {
    /// The contact has not begun, and ends.
    Ends,
    /// The token is doubted.
    Doubts,
    Stays,
}

impl Contact {
    /// Handles a packet about an RPC with this node's token from the peer's address. Returns whether the peer is met.
    #[inline]
    pub(crate) fn receive(&mut self) -> bool {
        //= docs/protocol.md#contact-1
        let Self::Met(met) = self else { return false };
        met.confirming = None;
        true
    }

    /// Handles every other packet. `spacing` is the minimum time between two CONFIRMs.
    pub(crate) fn handle(&mut self, now: Time, spacing: Duration, event: Event) -> Act {
        use UnknownReason as Reason;
        match (&mut *self, event) {
            //= docs/protocol.md#contact-3
            (Self::Met(_), Event::Open) => Act::OfferSame,
            (_, Event::Open) => Act::OfferNew,

            //= docs/protocol.md#contact-4
            (Self::Opening(_), Event::Token(credentials)) => {
                self.confirm(now, credentials);
                Act::Begin(credentials.proof)
            }
            //= docs/protocol.md#contact-5
            (Self::Asking(doubted, _), Event::Token(credentials)) => {
                Act::Answer(*doubted, Ok(credentials))
            }
            (Self::Met(met), Event::Token(credentials)) => met.on_token(now, spacing, credentials),
            (Self::Native | Self::Over, Event::Token(_)) => Act::Ignore,

            //= docs/protocol.md#contact-4
            (Self::Over, Event::Confirm { theirs, .. }) => Act::OfferAnother(theirs),
            //= docs/protocol.md#contact-7
            (Self::Met(met), Event::Confirm { theirs, proven: true, moved })
                if met.token == theirs =>
            {
                if moved {
                    Act::Move
                } else {
                    Act::Ignore
                }
            }
            (_, Event::Confirm { .. }) => Act::DropProof,

            //= docs/protocol.md#contact-8
            (Self::Opening(_), Event::ContactRefused(Reason::OtherVersion)) => {
                Act::FailVersion(None)
            }
            (Self::Asking(doubted, _), Event::ContactRefused(Reason::OtherVersion)) => {
                Act::FailVersion(Some(*doubted))
            }
            //= docs/protocol.md#contact-3
            (Self::Opening(_), Event::ContactRefused(reason)) if reason.is_about_contact() => {
                Act::FailCall(reason)
            }
            (Self::Asking(doubted, _), Event::ContactRefused(reason))
                if reason.is_about_contact() =>
            {
                Act::Answer(*doubted, Err(reason))
            }
            (Self::Met(met), Event::ContactRefused(reason))
                if reason.is_about_contact() && !met.knows_us() =>
            {
                Act::FailConfirmed(reason)
            }
            (Self::Over, Event::ContactRefused(_)) => Act::DropToken,
            (_, Event::ContactRefused(_)) => Act::Ignore,

            //= docs/protocol.md#contact-4
            (Self::Met(_), Event::TokenRefused(Reason::OverBudget)) => Act::NoteNoRoom,
            //= docs/protocol.md#contact-5
            (Self::Met(met), Event::TokenRefused(reason)) => {
                met.on_token_refused(now, spacing, reason)
            }
            (_, Event::TokenRefused(_)) => Act::DropToken,

            //= docs/protocol.md#contact-7
            (Self::Met(met), Event::Elsewhere) => Act::AskProof(met.token),
            //= docs/protocol.md#contact-6
            (Self::Over, Event::Packet | Event::Elsewhere) => Act::RefuseToken,
            (_, Event::Packet | Event::Elsewhere) => Act::DropToken,
        }
    }

    /// Begins to use the peer's token, which this node confirms.
    pub(crate) fn confirm(&mut self, now: Time, credentials: Credentials) {
        let confirming = Confirming { proof: credentials.proof, since: now, again: (0, now) };
        let met = Met::confirmed(credentials.token);
        *self = Self::Met(Met { confirming: Some(confirming), ..met });
    }

    /// Returns whether another peer may ask on behalf of this one.
    pub(crate) fn may_be_doubted(&self) -> bool {
        self.met().is_some_and(|met| met.asking.is_none())
    }

    /// Records the peer that asks on behalf of this one.
    pub(crate) fn note_asking(&mut self, asking: Option<PeerKey>) {
        if let Self::Met(met) = self {
            met.asking = asking;
        }
    }

    /// Handles the answer to the peer that asks on behalf of this one. Returns whether it names this peer's token.
    pub(crate) fn on_answer(&mut self, token: Option<Token>) -> bool {
        self.note_asking(None);
        self.met().is_some_and(|met| token == Some(met.token))
    }

    /// Chooses the consequence when calls by this peer's path go to another one. This peer may be an earlier run, or the same
    /// run that called this node while this node called it.
    pub(crate) fn on_path_taken(&self, now: Time) -> PathTaken {
        match self {
            //= docs/protocol.md#contact-6
            Self::Opening(_) => PathTaken::Ends,
            // The peer has just answered this node's OPEN while it sent its own.
            Self::Met(met) if !met.knows_us() && met.may_be_known(now) => PathTaken::Stays,
            Self::Met(_) => PathTaken::Doubts,
            Self::Native | Self::Asking(..) | Self::Over => PathTaken::Stays,
        }
    }

    pub(crate) fn met(&self) -> Option<&Met> {
        match self {
            Self::Met(met) => Some(met),
            _ => None,
        }
    }

    /// Returns the OPENs sent to the peer, if they have not been answered.
    pub(crate) fn opening(&self) -> Option<&Opening> {
        match self {
            Self::Opening(opening) | Self::Asking(_, opening) => Some(opening),
            _ => None,
        }
    }

    pub(crate) fn opening_mut(&mut self) -> Option<&mut Opening> {
        match self {
            Self::Opening(opening) | Self::Asking(_, opening) => Some(opening),
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
            Self::Native | Self::Opening(_) | Self::Asking(..) | Self::Over => None,
        }
    }

    /// Returns whether messages may be sent to the peer.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        matches!(self, Self::Native | Self::Met(_))
    }
}

impl Opening {
    pub(crate) fn new(now: Time, header: Header) -> Self {
        Self { header, sent: 0, next: now }
    }

    /// Returns whether the OPEN names a call.
    pub(crate) fn names_call(&self) -> bool {
        self.header.sender_id.client_form() != RpcId(0)
    }

    /// Records an OPEN. The wait for the next one is `rto`, doubled for each earlier OPEN, and at most `longest`.
    pub(crate) fn note_sent(&mut self, now: Time, rto: Duration, longest: Duration) {
        let doublings = self.sent.min(DOUBLINGS_MAX);
        self.sent = self.sent.saturating_add(1);
        self.next = now + (rto * (1 << doublings)).min(longest);
    }
}

impl Met {
    /// State of the node that was called, after a CONFIRM with the peer's `token`.
    pub(crate) fn confirmed(token: Token) -> Self {
        Self { token, confirming: None, answered: None, asking: None }
    }

    /// Returns whether the peer has used this node's token, and so knows it.
    #[inline]
    pub(crate) fn knows_us(&self) -> bool {
        self.confirming.is_none()
    }

    /// Returns whether the peer has used this node's token, or a repeated CONFIRM may still reach it.
    pub(crate) fn may_be_known(&self, now: Time) -> bool {
        self.confirming.as_ref().is_none_or(|confirming| confirming.is_fresh(now))
    }

    /// Handles a TOKEN: with the same token, the peer requests a proof that this node receives at the address of its packets,
    /// or answers twice. Another token answers another OPEN, as long as this node's CONFIRM may be under way.
    fn on_token(&mut self, now: Time, spacing: Duration, credentials: Credentials) -> Act {
        if self.token != credentials.token {
            return if self.may_be_known(now) { Act::Ignore } else { self.doubt() };
        }
        // The spacing limits the answers to a peer that refuses each of them.
        if self.answered.is_some_and(|at| now.saturating_since(at) < spacing) {
            return Act::Ignore;
        }
        self.answered = Some(now);
        Act::Confirm(credentials.proof)
    }

    /// Handles a peer that does not know its own token: another CONFIRM is sent if the first one was probably lost. If it had
    /// arrived, the peer's run is over, or the peer has forgotten this node.
    fn on_token_refused(&mut self, now: Time, spacing: Duration, reason: UnknownReason) -> Act {
        let Some(confirming) = self.confirming.as_mut().filter(|it| it.is_fresh(now)) else {
            return self.asking.map_or(Act::Ask, Act::AskFor);
        };
        let proof = confirming.proof;
        match confirming.repeat(now, spacing) {
            _ if reason != UnknownReason::TokenUnknown => self.doubt(),
            Some(1) => Act::ConfirmWithRequest(proof),
            Some(_) => Act::Confirm(proof),
            None => Act::Ignore,
        }
    }

    /// Doubts the token, unless it is in doubt already.
    fn doubt(&self) -> Act {
        if self.asking.is_none() { Act::Ask } else { Act::Ignore }
    }
}

impl Confirming {
    /// Returns whether a repeated CONFIRM may still reach the peer.
    fn is_fresh(&self, now: Time) -> bool {
        now.saturating_since(self.since) <= CONFIRM_AGAIN
    }

    /// Counts a repetition of the CONFIRM, and returns its number; `None` if the last one is too recent for another one.
    fn repeat(&mut self, now: Time, spacing: Duration) -> Option<u8> {
        let (times, last) = self.again;
        let wait = spacing * (1 << times.min(DOUBLINGS_MAX));
        if times > 0 && now.saturating_since(last) < wait {
            return None;
        }
        self.again = (times.saturating_add(1), now);
        Some(self.again.0)
    }
}

#[cfg(test)]
mod tests;
