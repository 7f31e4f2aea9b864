//! Messages between a process and the shared engine that it uses.
//!
//! The messages of calls are those of calls between two processes ([`MessageKind`](apus_proto::MessageKind)). The engine stands for
//! all nodes of the network: before each request, an [`Address`](AttachKind::Address) names the node at the other end. The engine
//! passes trace contexts on.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use apus_proto::Words;

/// Version of these messages. An engine and a process of different versions do not work together.
pub(crate) const VERSION: u32 = 2;

/// A message that is not part of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttachKind {
    /// The body is the address of the node at the other end of a call with this id. Comes before a request, and before the ABORT of
    /// a request that the process serves.
    Address { id: u64 },
    /// The process may use the engine. The body is the address of the engine's node.
    Welcome { version: u32 },
    /// The process requests a port to serve.
    Open { port: u16 },
    /// The engine's answer to `Open`.
    Opened { port: u16, opened: Opened },
    /// The process has closed a client or a service.
    Close { port: u16 },
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

impl AttachKind {
    pub(crate) fn encode(self) -> Words {
        match self {
            Self::Address { id } => [8, id],
            Self::Welcome { version } => [9, version.into()],
            Self::Open { port } => [10, port.into()],
            Self::Opened { port, opened } => [11, u64::from(port) | (opened as u64) << 16],
            Self::Close { port } => [12, port.into()],
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
            _ => return None,
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_what_they_are() {
        for text in ["10.1.2.3:4000", "127.0.0.1:0", "[::]:20146", "[fe80::1%7]:5"] {
            let address = text.parse().unwrap();
            assert_eq!(decode_address(&encode_address(address)), Some(address));
        }
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
        ] {
            assert_eq!(AttachKind::decode(kind.encode()), Some(kind));
        }
        let request = apus_proto::MessageKind::Request { from: 1, to: 2, remaining: None };
        assert_eq!(AttachKind::decode(request.encode(7)), None);
    }
}
