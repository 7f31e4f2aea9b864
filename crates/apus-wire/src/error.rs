//! Reasons for refusing a packet.

use std::error::Error;
use std::fmt;

/// Reason for refusing a packet. The core counts and drops the packet without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// Shorter than the common header, or than its type requires (rule W2).
    TooShort {
        /// Bytes of the packet.
        length: usize,
        /// Bytes required.
        needed: usize,
    },
    /// The type byte is outside 0x10..=0x1D (rule W3).
    UnknownType(u8),
    /// The source port is 0, so no answer could be sent (rule W4).
    SourcePortZero,
    /// DATA of a message of zero bytes, which Homa does not have (rule W9).
    ZeroLengthMessage,
    /// DATA without payload (rule W9).
    EmptyPayload,
    /// DATA whose payload extends past the end of its message (rule W9).
    PastEnd {
        /// Message offset of the first payload byte.
        offset: u32,
        /// Payload bytes.
        payload: usize,
        /// Bytes of the message.
        message_length: u32,
    },
    /// GRANT or RESEND names a priority above 7 (rule W16).
    BadPriority(u8),
    /// RESEND requests a negative number of bytes other than -1, which means the whole message (rule W15).
    NegativeLength(i32),
}

impl ParseError {
    /// Names of all reasons, in the order of [`ParseError::index`].
    pub const NAMES: [&'static str; 8] = [
        "too_short",
        "unknown_type",
        "source_port_zero",
        "zero_length_message",
        "empty_payload",
        "past_end",
        "bad_priority",
        "negative_length",
    ];

    /// Returns the position of this reason in [`ParseError::NAMES`], for tables of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::TooShort { .. } => 0,
            Self::UnknownType(_) => 1,
            Self::SourcePortZero => 2,
            Self::ZeroLengthMessage => 3,
            Self::EmptyPayload => 4,
            Self::PastEnd { .. } => 5,
            Self::BadPriority(_) => 6,
            Self::NegativeLength(_) => 7,
        }
    }

    /// Returns the name of this reason without its numbers: `past_end`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { length, needed } => {
                write!(f, "packet of {length} bytes: expected at least {needed}")
            }
            Self::UnknownType(byte) => write!(f, "unknown packet type {byte:#04x}"),
            Self::SourcePortZero => f.write_str("source port is 0"),
            Self::ZeroLengthMessage => f.write_str("message of zero bytes"),
            Self::EmptyPayload => f.write_str("data packet without payload"),
            Self::PastEnd { offset, payload, message_length } => {
                write!(
                    f,
                    "{payload} bytes at {offset} go past the end of a message of {message_length} bytes"
                )
            }
            Self::BadPriority(level) => write!(f, "priority {level} is above 7"),
            Self::NegativeLength(length) => write!(f, "resend of {length} bytes"),
        }
    }
}

impl Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place_and_name() {
        let all = [
            ParseError::TooShort { length: 5, needed: 28 },
            ParseError::UnknownType(0x19),
            ParseError::SourcePortZero,
            ParseError::ZeroLengthMessage,
            ParseError::EmptyPayload,
            ParseError::PastEnd { offset: 90, payload: 20, message_length: 100 },
            ParseError::BadPriority(8),
            ParseError::NegativeLength(-2),
        ];
        assert_eq!(all.len(), ParseError::NAMES.len());
        for (index, error) in all.into_iter().enumerate() {
            assert_eq!(error.index(), index);
            assert_eq!(error.name(), ParseError::NAMES[index]);
        }
        assert_eq!(all[0].to_string(), "packet of 5 bytes: expected at least 28");
        assert_eq!(all[1].to_string(), "unknown packet type 0x19");
        assert_eq!(all[5].to_string(), "20 bytes at 90 go past the end of a message of 100 bytes");
    }
}
