//! The reasons why a datagram is not sealed, not opened, or ignored.

use crate::record::datagram::{Hint, Malformed};

/// The reason why a datagram is not sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The association is pending or has ended.
    #[error("the path has no keys")]
    NoKeys,
    /// The key is used up (seal-15). The association ends.
    #[error("the key of the path is used up")]
    Exhausted,
}

/// The reason why a datagram is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No node of this version sends such bytes.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The id is not known. The hint may be sent as an answer.
    #[error("the id of the path is not known")]
    UnknownId(Hint),
    /// The key of the epoch is not known, or no more. The hint may be sent as an answer.
    #[error("the key of the epoch is not known")]
    UnknownEpoch(Hint),
    /// The datagram waits until the handshake is complete.
    #[error("the datagram is kept until the peer is verified")]
    Kept,
    /// The peer is not verified, and too many datagrams wait for that.
    #[error("too many datagrams wait until the peer is verified")]
    Unverified,
    /// A datagram with this number was opened.
    #[error("a datagram with this number was opened")]
    Replayed,
    /// The number is below the replay window.
    #[error("the number is below the replay window")]
    TooOld,
    /// The tag does not fit.
    #[error("the tag does not fit")]
    Forged,
}

impl OpenError {
    /// Returns the hint that may be sent as an answer (seal-9).
    #[must_use]
    pub fn hint(self) -> Option<Hint> {
        match self {
            Self::UnknownId(hint) | Self::UnknownEpoch(hint) => Some(hint),
            _ => None,
        }
    }
}

/// The reason why a hint is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HintError {
    /// No node of this version sends such bytes.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The path has no keys, or others.
    #[error("the id is not that of the path")]
    WrongId,
    /// The number was not used, or not lately.
    #[error("the number was not used lately")]
    WrongNumber,
    /// The peer may not have had the time to install the keys.
    #[error("the peer may not have the keys yet")]
    Early,
    /// Another hint was believed in the last second.
    #[error("another hint came shortly before")]
    Frequent,
}
