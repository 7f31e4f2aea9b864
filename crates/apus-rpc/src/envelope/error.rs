//! The reasons why a message is refused.

use crate::code::Code;
use crate::status::Status;

/// Why the bytes of a message are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The message does not begin with an envelope.
    #[error("the message has no envelope of apus-rpc")]
    NotAnEnvelope,
    /// The envelope is of another version.
    #[error("the envelope has version {version}, and this node speaks version 1")]
    OtherVersion {
        /// The version of the sender.
        version: u8,
    },
    /// The message ends within its envelope.
    #[error("the message ends within its envelope")]
    TooShort,
    /// A number has more bytes than it needs, or more than 64 bits.
    #[error("a number of the envelope has too many bytes")]
    BadVarint,
    /// The request has an unknown kind.
    #[error("the request has the unknown kind {kind}")]
    UnknownKind {
        /// The kind.
        kind: u8,
    },
    /// The head is longer than the limit.
    #[error("the head of the message is longer than the limit of {limit} bytes (head_max)")]
    HeadTooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The message has more pairs of metadata than the limit.
    #[error("{count} pairs of metadata: at most {limit} are allowed (pairs_max)")]
    TooManyPairs {
        /// Number of pairs.
        count: u64,
        /// The limit.
        limit: usize,
    },
    /// The path is not `/SERVICE/METHOD`.
    #[error("the path is not of the form /SERVICE/METHOD")]
    BadPath,
    /// A name of metadata has a character that is not allowed.
    #[error("a name of metadata has a character that is not allowed")]
    BadName,
    /// A name of metadata is not in the static table.
    #[error("the static table has no name {index}")]
    UnknownName {
        /// The index.
        index: u8,
    },
    /// A value of metadata has a character that is not allowed.
    #[error("a value of metadata has a character that is not allowed")]
    BadValue,
    /// The message of a status is not UTF-8.
    #[error("the message of the status is not UTF-8")]
    BadMessage,
    /// The flags of a response contradict each other.
    #[error("the flags END and MORE exclude each other")]
    BadFlags,
    /// The body is longer than the limit.
    #[error("body of {length} bytes: at most {limit} are allowed (frame_max)")]
    FrameTooLong {
        /// Length of the body, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
}

impl EnvelopeError {
    /// The names of all reasons, each at the place of its counter.
    pub(crate) const REASONS: [&str; 14] = [
        "not_an_envelope",
        "other_version",
        "too_short",
        "bad_varint",
        "unknown_kind",
        "head_too_long",
        "too_many_pairs",
        "bad_path",
        "bad_name",
        "unknown_name",
        "bad_value",
        "bad_message",
        "bad_flags",
        "frame_too_long",
    ];

    /// The place of the reason in the table of names.
    pub(crate) fn place(&self) -> usize {
        match self {
            Self::NotAnEnvelope => 0,
            Self::OtherVersion { .. } => 1,
            Self::TooShort => 2,
            Self::BadVarint => 3,
            Self::UnknownKind { .. } => 4,
            Self::HeadTooLong { .. } => 5,
            Self::TooManyPairs { .. } => 6,
            Self::BadPath => 7,
            Self::BadName => 8,
            Self::UnknownName { .. } => 9,
            Self::BadValue => 10,
            Self::BadMessage => 11,
            Self::BadFlags => 12,
            Self::FrameTooLong { .. } => 13,
        }
    }

    /// The name of the reason, as in docs/rpc-wire.md and in counters: `head_too_long`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        Self::REASONS[self.place()]
    }

    /// The code of the status that a refused message leads to.
    //= docs/rpc-wire.md#E15
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotAnEnvelope | Self::OtherVersion { .. } | Self::UnknownKind { .. } => {
                Code::Unimplemented
            }
            Self::HeadTooLong { .. } | Self::TooManyPairs { .. } | Self::FrameTooLong { .. } => {
                Code::ResourceExhausted
            }
            _ => Code::Internal,
        }
    }

    /// The status of a call whose response is refused.
    //= docs/rpc-wire.md#E16
    pub(crate) fn of_response(self) -> Status {
        Status::new(self.code(), format!("the response is refused ({}): {self}", self.reason()))
    }

    /// The status that answers a refused request.
    //= docs/rpc-wire.md#E15
    pub(crate) fn of_request(self) -> Status {
        let text = format!("the request is refused ({}): {self}", self.reason());
        Status::new(self.code(), text).not_executed()
    }
}
