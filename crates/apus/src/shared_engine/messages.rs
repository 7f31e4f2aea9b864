//! Messages between a process and the shared engine that it uses.
//!
//! The messages of calls are those of calls between two processes ([`MessageKind`](apus_proto::MessageKind)). The engine stands for
//! all nodes of the network: before each request, an [`Address`](AttachKind::Address) names the node at the other end, and before a
//! request to the process also the identity that the node has shown ([`crate::shared_engine::peers`]). The engine passes trace
//! contexts on, and keeps the rules of the process's sockets.
//!
//! Messages of up to [`PIECE_MAX`] bytes stay in their order. Longer ones would be overtaken, so what has to come first is sent in
//! pieces.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use apus_proto::Words;

/// Version of these messages. An engine and a process of different versions do not work together.
pub(crate) const VERSION: u32 = 3;

/// Upper bound on the bytes of a piece.
pub(crate) const PIECE_MAX: usize = 2_048;

/// Upper bound on the different rules of the processes of one user.
pub(crate) const RULES_MAX: usize = 16;

/// Upper bounds on the text of a rule in bytes, and on its patterns. The engine compares a rule with all its peers at once.
pub(crate) const RULE_MAX: usize = 16 << 10;
pub(crate) const PATTERNS_MAX: usize = 64;

/// A message that is not part of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttachKind {
    /// The body is the address of the node at the other end of a call with this id, and from the engine also the number of the
    /// identity that the node has shown. Comes before a request, and before the ABORT of a request that the process serves.
    Address { id: u64 },
    /// The process may use the engine. The body is the address of the engine's node.
    Welcome { version: u32 },
    /// The process requests a port to serve.
    Open { port: u16 },
    /// The engine's answer to `Open`.
    Opened { port: u16, opened: Opened },
    /// The process has closed a client or a service.
    Close { port: u16 },
    /// A piece of the identity with this number, from the engine.
    Peer { number: u32, is_last: bool },
    /// A piece of the rule that a port of the process gets: patterns with commas between them. `number` comes back with the answer.
    /// `is_again`: a former engine kept the rule, so the port must not be used without it.
    Rule { port: u16, number: u32, is_last: bool, is_again: bool },
    /// The engine's answer to `Rule`.
    RuleSet { number: u32, answer: RuleAnswer },
}

/// The engine's answer to a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RuleAnswer {
    /// It holds from now on.
    Set = 0,
    /// The process has no identity, so it knows no peer by name.
    NoIdentity = 1,
    /// The engine has too many different rules, or the user has.
    TooMany = 2,
}

/// The engine's answer to a request for a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    Yes = 0,
    /// Another process serves it, or the process has too many ports.
    InUse = 1,
    /// The port is reserved for other users.
    Forbidden = 2,
}

/// Kinds whose lower four bits are those of no message of a call.
const PEER: u64 = 0x18;
const RULE: u64 = 0x19;
const RULE_SET: u64 = 0x1a;

impl AttachKind {
    pub(crate) fn encode(self) -> Words {
        match self {
            Self::Address { id } => [8, id],
            Self::Welcome { version } => [9, version.into()],
            Self::Open { port } => [10, port.into()],
            Self::Opened { port, opened } => [11, u64::from(port) | (opened as u64) << 16],
            Self::Close { port } => [12, port.into()],
            Self::Peer { number, is_last } => [PEER, u64::from(number) | u64::from(is_last) << 32],
            Self::Rule { port, number, is_last, is_again } => {
                let flags = u64::from(is_last) << 16 | u64::from(is_again) << 17;
                [RULE, u64::from(port) | flags | u64::from(number) << 32]
            }
            Self::RuleSet { number, answer } => {
                [RULE_SET, u64::from(number) | (answer as u64) << 32]
            }
        }
    }

    /// `None` for the words of a message of a call.
    #[inline]
    pub(crate) fn decode([kind, word]: Words) -> Option<Self> {
        let port = word as u16;
        Some(match kind {
            8 => Self::Address { id: word },
            9 => Self::Welcome { version: u32::try_from(word).unwrap_or(u32::MAX) },
            10 => Self::Open { port },
            11 => Self::Opened {
                port,
                opened: match word >> 16 {
                    0 => Opened::Yes,
                    1 => Opened::InUse,
                    _ => Opened::Forbidden,
                },
            },
            12 => Self::Close { port },
            PEER => Self::Peer { number: word as u32, is_last: word >> 32 != 0 },
            RULE => {
                let [is_last, is_again] = [16, 17].map(|bit| word >> bit & 1 != 0);
                Self::Rule { port, number: (word >> 32) as u32, is_last, is_again }
            }
            RULE_SET => Self::RuleSet {
                number: word as u32,
                answer: match word >> 32 {
                    0 => RuleAnswer::Set,
                    1 => RuleAnswer::NoIdentity,
                    _ => RuleAnswer::TooMany,
                },
            },
            _ => return None,
        })
    }
}

/// The patterns of a rule's text.
pub(crate) fn patterns(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty())
}

/// Bytes of an encoded address: port, scope, IP address.
const ADDRESS: usize = 22;

/// An address as bytes. IPv4 addresses have their mapped form.
pub(crate) fn encode_address(address: SocketAddr) -> [u8; ADDRESS] {
    let (ip, scope) = match address {
        SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
    };
    let mut bytes = [0; ADDRESS];
    bytes[..2].copy_from_slice(&address.port().to_le_bytes());
    bytes[2..6].copy_from_slice(&scope.to_le_bytes());
    bytes[6..].copy_from_slice(&ip.octets());
    bytes
}

/// Decodes the bytes of [`encode_address`].
pub(crate) fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes: &[u8; ADDRESS] = bytes.try_into().ok()?;
    let port = u16::from_le_bytes([bytes[0], bytes[1]]);
    let scope = u32::from_le_bytes(std::array::from_fn(|byte| bytes[2 + byte]));
    let ip = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|byte| bytes[6 + byte]));
    Some(match ip.to_ipv4_mapped() {
        Some(ip) => SocketAddr::new(IpAddr::from(ip), port),
        None => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

/// An address, and the number of the identity that the node has shown ([`crate::shared_engine::peers`]), as bytes.
pub(crate) fn encode_origin(address: SocketAddr, peer: u32) -> [u8; ADDRESS + 4] {
    let mut bytes = [0; ADDRESS + 4];
    bytes[..ADDRESS].copy_from_slice(&encode_address(address));
    bytes[ADDRESS..].copy_from_slice(&peer.to_le_bytes());
    bytes
}

/// Decodes the bytes of [`encode_origin`].
pub(crate) fn decode_origin(bytes: &[u8]) -> Option<(SocketAddr, u32)> {
    let (address, peer) = bytes.split_last_chunk()?;
    Some((decode_address(address)?, u32::from_le_bytes(*peer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_what_they_are() {
        for text in ["10.1.2.3:4000", "127.0.0.1:0", "[::]:20146", "[fe80::1%7]:5"] {
            let address = text.parse().unwrap();
            assert_eq!(decode_address(&encode_address(address)), Some(address));
            assert_eq!(decode_origin(&encode_origin(address, 7)), Some((address, 7)));
        }
        assert_eq!(decode_origin(&[0; ADDRESS]), None);
        assert_eq!(decode_address(&[0; ADDRESS - 1]), None);
    }

    #[test]
    fn words_say_what_a_message_is_about() {
        for kind in [
            AttachKind::Address { id: u64::MAX },
            AttachKind::Welcome { version: VERSION },
            AttachKind::Open { port: 7 },
            AttachKind::Opened { port: 65_535, opened: Opened::Forbidden },
            AttachKind::Opened { port: 1, opened: Opened::Yes },
            AttachKind::Close { port: 32_768 },
            AttachKind::Peer { number: u32::MAX, is_last: false },
            AttachKind::Peer { number: 1, is_last: true },
            AttachKind::Rule { port: u16::MAX, number: 0, is_last: false, is_again: true },
            AttachKind::Rule { port: 1, number: u32::MAX, is_last: true, is_again: false },
            AttachKind::RuleSet { number: u32::MAX, answer: RuleAnswer::Set },
            AttachKind::RuleSet { number: 7, answer: RuleAnswer::TooMany },
        ] {
            assert_eq!(apus_proto::MessageKind::decode(kind.encode()), None);
            assert_eq!(AttachKind::decode(kind.encode()), Some(kind));
        }
        let request = apus_proto::MessageKind::Request { from: 1, to: 2, remaining: None };
        assert_eq!(AttachKind::decode(request.encode(7)), None);
    }
}
