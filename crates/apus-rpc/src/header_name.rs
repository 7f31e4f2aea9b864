//! Names of metadata, and the static table of the frequent ones.

use std::fmt;

use bytes::Bytes;

/// The frequent names, which the wire format writes as an index ([rule](https://github.com/apus-rpc/apus/blob/main/docs/rpc-wire.md#E9)).
//= docs/rpc-wire.md#E9
pub const STATIC_NAMES: [&str; 32] = [
    "content-type",
    "content-encoding",
    "accept-encoding",
    "user-agent",
    "authorization",
    "date",
    "server",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-timeout",
    "grpc-message-type",
    "grpc-previous-rpc-attempts",
    "grpc-retry-pushback-ms",
    "grpc-trace-bin",
    "grpc-tags-bin",
    "grpc-server-stats-bin",
    "endpoint-load-metrics-bin",
    "traceparent",
    "tracestate",
    "baggage",
    "b3",
    "x-request-id",
    "x-correlation-id",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-real-ip",
    "x-api-key",
    "x-tenant-id",
    "x-user-id",
    "x-session-id",
    "idempotency-key",
    "connect-protocol-version",
];

/// A name of metadata: an entry of the static table, or bytes that are a valid name.
#[derive(Clone, Eq)]
pub(crate) enum HeaderName {
    Static(u8),
    Other(Bytes),
}

impl HeaderName {
    /// Returns `None` for a text that is not a valid name.
    pub(crate) fn new(text: &str) -> Option<Self> {
        if let Some(index) = STATIC_NAMES.iter().position(|name| *name == text) {
            return Some(Self::Static(u8::try_from(index).expect("the table has 32 names")));
        }
        Self::other(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// A name that is written out. Returns `None` for bytes that are not a valid name.
    //= docs/rpc-wire.md#E9
    pub(crate) fn other(bytes: Bytes) -> Option<Self> {
        let is_of_name = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        (!bytes.is_empty() && bytes.iter().all(is_of_name)).then_some(Self::Other(bytes))
    }

    /// The name at an index of the table.
    pub(crate) fn at(index: u8) -> Option<Self> {
        (usize::from(index) < STATIC_NAMES.len()).then_some(Self::Static(index))
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static(index) => STATIC_NAMES[usize::from(*index)],
            Self::Other(bytes) => str::from_utf8(bytes).expect("names are ASCII"),
        }
    }

    /// Whether its values are bytes.
    //= docs/rpc-wire.md#E10
    pub(crate) fn is_binary(&self) -> bool {
        self.as_str().ends_with("-bin")
    }
}

impl PartialEq for HeaderName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Debug for HeaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_valid_names_each_once() {
        //= docs/rpc-wire.md#E9
        for (index, name) in STATIC_NAMES.iter().enumerate() {
            assert!(HeaderName::other(Bytes::from_static(name.as_bytes())).is_some(), "{name}");
            assert_eq!(STATIC_NAMES.iter().position(|other| other == name), Some(index));
        }
        assert_eq!(HeaderName::at(31).map(|name| name.is_binary()), Some(false));
        assert_eq!(HeaderName::at(32), None);
    }
}
