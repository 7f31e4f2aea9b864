//! The messages between the two ends of a connection when they meet, between a program and the carrier of its host, and between the
//! carriers of two hosts.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::layout;

/// UDP port of carriers, and port of their listener within Apus, unless the variable [`PORT_VARIABLE`] sets another one.
pub const PORT: u16 = 20_147;

/// Environment variable with the UDP port of carriers. Programs with it carry connections between hosts.
pub const PORT_VARIABLE: &std::ffi::CStr = c"APUS_CARRIER";

/// Returns the abstract name of the unix socket of a user's carrier at a UDP port. Names belong to a network namespace.
#[must_use]
pub fn carrier_name(uid: u32, port: u16) -> String {
    format!("apus-carrier/{uid}/{port}")
}

/// Returns the name of the file by which the ends of a connection meet in a directory that their network namespaces share. It has
/// 41 bytes for any two addresses: the connecting end's and the accepting end's.
#[must_use]
pub fn file_name(client: SocketAddr, server: SocketAddr) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(format!("{client}/{server}").as_bytes());
    format!("apus-tcp-{:032x}", hasher.finish128().as_u128())
}

/// The message by which a carrier asks a program to return a connection to TCP for good.
pub const LEAVE: u8 = b'L';

/// The message of a side whose peer's bell is full. A full bell wakes no thread that waits in an edge-triggered epoll set, so the
/// peer's library empties it and wakes its threads.
pub const FULL: u8 = b'F';

/// Purpose of a socket that one end has connected to the other. The secret number assigns a bell to its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hello {
    /// Messages between the answering threads. A segment accompanies it, and a descriptor that proves its sender.
    Channel(u128),
    /// Bytes that wake the other end.
    Bell(u128),
}

/// Kind of a socket that is a bell.
const BELL: u64 = layout::MAGIC ^ u64::MAX;

impl Hello {
    /// Length of a message in bytes.
    pub const BYTES: usize = 24;

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Self::Channel(number) => (layout::MAGIC, number),
            Self::Bell(number) => (BELL, number),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&kind.to_ne_bytes());
        bytes[8..].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    /// Parses a message. Returns `None` for other bytes and other versions.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let number = u128::from_ne_bytes(std::array::from_fn(|at| bytes[8 + at]));
        match u64::from_ne_bytes(std::array::from_fn(|at| bytes[at])) {
            layout::MAGIC => Some(Self::Channel(number)),
            BELL => Some(Self::Bell(number)),
            _ => None,
        }
    }
}

/// A connection, as the program at one end describes it to its carrier. Its segment accompanies the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// `SO_COOKIE` of the socket.
    pub cookie: u64,
    /// Number of the socket that is the bell ([`Hello::Bell`]).
    pub number: u128,
    /// Whether this end accepted the connection.
    pub accepted: bool,
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the other end.
    pub peer: SocketAddr,
}

impl Introduction {
    /// Length of a message in bytes.
    pub const BYTES: usize = 33 + 2 * ADDRESS;

    /// Encodes the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_ne_bytes());
        bytes[16] = u8::from(self.accepted);
        put(&mut bytes[17..17 + ADDRESS], self.local);
        put(&mut bytes[17 + ADDRESS..17 + 2 * ADDRESS], self.peer);
        bytes[17 + 2 * ADDRESS..].copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }

    /// Parses a message. Returns `None` for other bytes and other versions.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        (word(0) == layout::MAGIC && bytes[16] <= 1).then(|| Self {
            cookie: word(8),
            accepted: bytes[16] == 1,
            local: get(&bytes[17..17 + ADDRESS]),
            peer: get(&bytes[17 + ADDRESS..17 + 2 * ADDRESS]),
            number: u128::from_ne_bytes(std::array::from_fn(|at| bytes[17 + 2 * ADDRESS + at])),
        })
    }

    /// Returns the connection's name: the addresses of the connecting and of the accepting end.
    #[must_use]
    pub fn tuple(&self) -> Tuple {
        let (client, server) =
            if self.accepted { (self.peer, self.local) } else { (self.local, self.peer) };
        Tuple { client, server }
    }
}

/// The two addresses of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tuple {
    /// The connecting end.
    pub client: SocketAddr,
    /// The accepting end.
    pub server: SocketAddr,
}

impl Tuple {
    /// Length of a message in bytes.
    pub const BYTES: usize = 8 + 2 * ADDRESS;

    /// Encodes the first message over a stream, which names the connection.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&CARRIERS.to_le_bytes());
        put(&mut bytes[8..8 + ADDRESS], self.client);
        put(&mut bytes[8 + ADDRESS..], self.server);
        bytes
    }

    /// Parses such a message. Returns `None` for other bytes and other versions.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        bytes.starts_with(&CARRIERS.to_le_bytes()).then(|| Self {
            client: get(&bytes[8..8 + ADDRESS]),
            server: get(&bytes[8 + ADDRESS..]),
        })
    }
}

/// Version of the words and of the frames' length between carriers.
const CARRIERS: u64 = u64::from_le_bytes(*b"apuscar4");

/// Length of an address in bytes: IPv6, and the port in network byte order.
const ADDRESS: usize = 18;

fn put(bytes: &mut [u8], address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
}

fn get(bytes: &[u8]) -> SocketAddr {
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..16]).expect("an address has 18 bytes"));
    SocketAddr::new(IpAddr::V6(ip).to_canonical(), u16::from_be_bytes([bytes[16], bytes[17]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn both_ends_name_a_connection_alike() {
        let (a, b) = (address("10.0.0.1:40000"), address("10.0.0.2:80"));
        let made = Introduction { cookie: 7, number: 9, accepted: false, local: a, peer: b };
        let accepted = Introduction { cookie: 8, number: 9, accepted: true, local: b, peer: a };
        assert_eq!(made.tuple(), accepted.tuple());
        assert_eq!(Introduction::parse(&made.to_bytes()), Some(made));
        assert_eq!(Introduction::parse(&accepted.to_bytes()), Some(accepted));
        assert_eq!(Tuple::parse(&made.tuple().to_bytes()), Some(made.tuple()));
    }

    #[test]
    fn a_bell_says_to_which_channel_it_belongs() {
        for hello in [Hello::Channel(1 << 100), Hello::Bell(7)] {
            let bytes = hello.to_bytes();
            assert_eq!(Hello::parse(&bytes), Some(hello));
            assert_eq!(Hello::parse(&bytes[1..]), None);
        }
        assert_eq!(Hello::parse(&[0; Hello::BYTES]), None);
    }

    #[test]
    fn other_messages_are_none() {
        let tuple = Tuple { client: address("[fe80::1]:1"), server: address("[::1]:65535") };
        let mut bytes = tuple.to_bytes();
        assert_eq!(Tuple::parse(&bytes), Some(tuple));
        bytes[7] ^= 1;
        assert_eq!(Tuple::parse(&bytes), None);
        assert_eq!(Introduction::parse(&bytes), None);
        assert_eq!(Introduction::parse(&[0; Introduction::BYTES]), None);
    }
}
