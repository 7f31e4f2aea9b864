//! The choice among protocols.

use serde::{Deserialize, Serialize};

use super::answer::{Operation, Parsed};
use super::{binary, resp, text};

/// The protocol of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// memcached's text protocol
    #[default]
    Text,
    /// memcached's binary protocol
    Binary,
    /// The protocol of Redis and Valkey
    Resp,
}

impl Protocol {
    /// The name in results.
    pub fn transport(self) -> &'static str {
        match self {
            Self::Text => "memcached-text",
            Self::Binary => "memcached-binary",
            Self::Resp => "resp",
        }
    }

    /// Adds a request about `key`. Only [`Operation::Set`] has a `value`.
    pub(super) fn request(
        self,
        operation: Operation,
        key: &[u8],
        value: &[u8],
        number: u32,
        out: &mut Vec<u8>,
    ) {
        match (self, operation) {
            (Self::Text, Operation::Get) => text::get(key, out),
            (Self::Text, Operation::Set) => text::set(key, value, out),
            (Self::Binary, Operation::Get) => binary::get(key, number, out),
            (Self::Binary, Operation::Set) => binary::set(key, value, number, out),
            (Self::Resp, Operation::Get) => resp::get(key, out),
            (Self::Resp, Operation::Set) => resp::set(key, value, out),
        }
    }

    /// Parses the answer to such a request.
    ///
    /// # Errors
    /// If the bytes are not an answer to it.
    pub(super) fn parse(
        self,
        operation: Operation,
        key: &[u8],
        number: u32,
        bytes: &[u8],
    ) -> Parsed {
        match self {
            Self::Text => text::parse(operation, key, bytes),
            Self::Binary => binary::parse(operation, number, bytes),
            Self::Resp => resp::parse(operation, bytes),
        }
    }
}
