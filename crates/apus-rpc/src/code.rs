//! Codes of a status: gRPC's, by number and name.

use std::fmt;

/// How a call ended, for programs. The numbers and meanings are gRPC's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The caller gave the call up, or its handler was dropped.
    Cancelled = 1,
    /// The cause is not known, or has a code that this version does not know.
    Unknown = 2,
    /// The client gave an argument that is wrong whatever the state of the system is.
    InvalidArgument = 3,
    /// The deadline passed. The request may have been executed.
    DeadlineExceeded = 4,
    /// The entity that the request names does not exist.
    NotFound = 5,
    /// The entity that the request would create exists.
    AlreadyExists = 6,
    /// The caller is known, and may not do this.
    PermissionDenied = 7,
    /// A quota, a limit or memory is exhausted.
    ResourceExhausted = 8,
    /// The system is not in the state that the request needs. The same request fails again until that state changes.
    FailedPrecondition = 9,
    /// A conflict with other requests ended this one, for example of two transactions.
    Aborted = 10,
    /// A position is past the valid range of the current state.
    OutOfRange = 11,
    /// The server does not have this method.
    Unimplemented = 12,
    /// An invariant is broken, as by a handler that panicked.
    Internal = 13,
    /// The server cannot be reached or does not take requests now. Another attempt may succeed.
    Unavailable = 14,
    /// Data is lost or damaged for good.
    DataLoss = 15,
    /// The caller has no valid credentials.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, each at the place of its number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code with this number; [`Code::Unknown`] for other numbers.
    ///
    /// ```
    /// use apus_rpc::Code;
    /// assert_eq!(Code::from_number(14), Code::Unavailable);
    /// assert_eq!(Code::from_number(99), Code::Unknown);
    /// ```
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        let code = usize::try_from(number).ok().and_then(|number| Self::ALL.get(number));
        code.copied().unwrap_or(Self::Unknown)
    }

    /// The number, 0 to 16.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name, as in gRPC: `DEADLINE_EXCEEDED`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_at_the_place_of_its_number() {
        for (number, code) in (0..).zip(Code::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(Code::from_number(number.into()), code);
        }
        assert_eq!(Code::from_number(u64::MAX), Code::Unknown);
    }
}
