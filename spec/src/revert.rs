//! Mended faults, each of which a constant brings back.

/// A rule that both nodes break. Each breaks the property that `tests/model/reverts.rs` names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Revert {
    /// Quick restart: another run has the same key, and so takes the tokens and proofs of the run before it (contact-1).
    KeyOutlivesRun,
    /// Quick restart: a call whose request was sent completely begins again with the next run (contact-6).
    SentBeginsAnew,
    /// Pause: a server forgets its history and remembers the client (once-1).
    HistoryBeforeToken,
    /// Pause: a proof does not age, so a copy of CONFIRM makes a forgotten client known again (contact-4).
    ProofsLast,
    /// A token is forgotten with its peer while its proof is fresh, and is made known twice (contact-4).
    TokensUnspent,
    /// A repeated request is taken once more when the first copy was answered and acknowledged (once-1).
    HistoryEndsWithRequest,
    /// A request that its server's application gave up is no longer taken (life-7).
    AbandonedNotTaken,
    /// A server does not say that it has given a request up (life-7).
    AbandonedNotSaid,
    /// An ABORT has a request that is arriving forgotten, and not taken (life-8).
    AbortedNotTaken,
    /// Move: packets from another address are those of another peer, with a history of its own (contact-7).
    MoveBeginsHistory,
    /// Move: an OPEN from another address that names a known token gets another one (contact-7).
    KnownByAddress,
    /// Move: a packet moves its peer to its address, without a proof (contact-7).
    MoveUnproven,
    /// Crossing first contacts: a peer that has just answered is doubted when it loses its path (contact-6).
    CrossingDoubts,
    /// A late answer to another OPEN puts the token of the first one in doubt (contact-5).
    LateTokenDoubts,
    /// *Token unknown* puts the token in doubt at once, although CONFIRM may be under way (contact-5).
    LostConfirmDoubts,
    /// *No such port*: a server forgets which requests it has refused (life-6).
    RefusalsForgotten,
    /// *No such port*: a server keeps a request that it has refused as one that it has taken, and says *finished* (life-6).
    RefusalTaken,
    /// *No such port*: a late refusal of a repeated OPEN ends a call (contact-3).
    LateNoContact,
    /// *No such port*: a refused CONFIRM ends a call as not executed, although its request was sent (contact-3).
    RefusedConfirmDenies,
    /// Late *unknown*: it ends a call whose response has begun to arrive (loss-13).
    LateUnknownEnds,
    /// The number of a call that has ended is that of the next one (life-2).
    NumbersReused,
    /// A peer that asks is forgotten, and the calls that wait for its answer wait for ever (contact-5).
    DoubtForgotten,
    /// Calls that are in memory completely begin again over UDP when memory ends (local-8).
    CarriedBeginsAnew,
    /// A request that was refused for the moment stays one that memory has not carried when it is there once more (local-8).
    PutOffForGood,
    /// An ABORT overtakes its request in memory (local-5).
    AbortOvertakes,
}

impl Revert {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::KeyOutlivesRun,
        Self::SentBeginsAnew,
        Self::HistoryBeforeToken,
        Self::ProofsLast,
        Self::TokensUnspent,
        Self::HistoryEndsWithRequest,
        Self::AbandonedNotTaken,
        Self::AbandonedNotSaid,
        Self::AbortedNotTaken,
        Self::MoveBeginsHistory,
        Self::KnownByAddress,
        Self::MoveUnproven,
        Self::CrossingDoubts,
        Self::LateTokenDoubts,
        Self::LostConfirmDoubts,
        Self::RefusalsForgotten,
        Self::RefusalTaken,
        Self::LateNoContact,
        Self::RefusedConfirmDenies,
        Self::LateUnknownEnds,
        Self::NumbersReused,
        Self::DoubtForgotten,
        Self::CarriedBeginsAnew,
        Self::PutOffForGood,
        Self::AbortOvertakes,
    ];
}
