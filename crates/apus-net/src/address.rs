//! Socket addresses in the kernel's form, without `unsafe`: `sockaddr_in` and `sockaddr_in6` are plain bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const V4_LEN: u32 = size_of::<libc::sockaddr_in>() as u32;
const V6_LEN: u32 = size_of::<libc::sockaddr_in6>() as u32;

/// Prefix of the IPv4-mapped form of 127.0.0.0/8.
const MAPPED_127: [u8; 13] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127];

/// Address families that a socket can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddressFamily {
    V4,
    V6,
    /// An IPv6 socket that reaches IPv4 peers as `::ffff:a.b.c.d`.
    Both,
}

/// A `sockaddr_in` or `sockaddr_in6` and its length.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(crate) struct RawAddress {
    /// The bytes of the structure, with room for the longer of the two.
    pub(crate) bytes: [u8; V6_LEN as usize],
    pub(crate) len: u32,
}

impl RawAddress {
    /// An empty address for the kernel to fill.
    pub(crate) const EMPTY: Self = Self { bytes: [0; V6_LEN as usize], len: V6_LEN };

    /// Encodes an address. Returns `None` if a socket of this family cannot reach it.
    pub(crate) fn encode(to: SocketAddr, family: AddressFamily) -> Option<Self> {
        match (to, family) {
            (SocketAddr::V4(to), AddressFamily::V4) => {
                let mut raw = Self { len: V4_LEN, ..Self::EMPTY };
                raw.bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                raw.bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
                raw.bytes[4..8].copy_from_slice(&to.ip().octets());
                Some(raw)
            }
            (SocketAddr::V4(to), AddressFamily::Both) => {
                Some(Self::v6(&SocketAddrV6::new(to.ip().to_ipv6_mapped(), to.port(), 0, 0)))
            }
            (SocketAddr::V6(to), AddressFamily::V6 | AddressFamily::Both) => Some(Self::v6(&to)),
            (SocketAddr::V4(_), AddressFamily::V6) | (SocketAddr::V6(_), AddressFamily::V4) => None,
        }
    }

    fn v6(to: &SocketAddrV6) -> Self {
        let mut raw = Self { len: V6_LEN, ..Self::EMPTY };
        raw.bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        raw.bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
        raw.bytes[8..24].copy_from_slice(&to.ip().octets());
        raw.bytes[24..28].copy_from_slice(&to.scope_id().to_ne_bytes());
        raw
    }

    /// Returns whether the address is one that only this machine can have. Cheap; ignores the addresses of interfaces.
    #[inline]
    pub(crate) fn is_loopback(&self) -> bool {
        let ip = &self.bytes[8..24];
        match i32::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]])) {
            libc::AF_INET => self.bytes[4] == 127,
            _ => *ip == Ipv6Addr::LOCALHOST.octets() || ip[..13] == MAPPED_127,
        }
    }

    /// Decodes the address. IPv4-mapped IPv6 addresses become IPv4, and flow labels are dropped. Returns `None` for other families.
    pub(crate) fn decode(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let family = i32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        if family == libc::AF_INET && self.len >= V4_LEN {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            return Some(SocketAddr::new(IpAddr::V4(ip), port));
        }
        if family != libc::AF_INET6 || self.len < V6_LEN {
            return None;
        }
        let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).expect("16 bytes"));
        if let Some(ip) = ip.to_ipv4_mapped() {
            return Some(SocketAddr::new(IpAddr::V4(ip), port));
        }
        let scope = u32::from_ne_bytes(bytes[24..28].try_into().expect("4 bytes"));
        Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_kernels_form() {
        for (text, family) in [
            ("10.1.2.3:20146", AddressFamily::V4),
            ("10.1.2.3:20146", AddressFamily::Both),
            ("[2001:db8::7]:9", AddressFamily::V6),
            ("[fe80::1%3]:9", AddressFamily::Both),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::encode(address, family).unwrap();
            assert_eq!(raw.decode(), Some(address), "{text} {family:?}");
        }
    }

    #[test]
    fn a_socket_of_one_family_does_not_reach_the_other() {
        assert!(RawAddress::encode("10.1.2.3:1".parse().unwrap(), AddressFamily::V6).is_none());
        assert!(RawAddress::encode("[::1]:1".parse().unwrap(), AddressFamily::V4).is_none());
    }

    #[test]
    fn loopback_addresses_are_known_in_every_form() {
        for (text, expected) in
            [("127.9.1.2:1", true), ("10.0.0.127:1", false), ("[::1]:1", true), ("[::2]:1", false)]
        {
            let raw = RawAddress::encode(text.parse().unwrap(), AddressFamily::Both).unwrap();
            assert_eq!(raw.is_loopback(), expected, "{text}");
        }
        let raw = RawAddress::encode("127.0.0.1:1".parse().unwrap(), AddressFamily::V4).unwrap();
        assert!(raw.is_loopback());
    }

    #[test]
    fn nonsense_from_the_kernel_is_no_address() {
        assert_eq!(RawAddress::EMPTY.decode(), None);
        let mut raw = RawAddress::encode("10.1.2.3:1".parse().unwrap(), AddressFamily::V4).unwrap();
        raw.len = 4;
        assert_eq!(raw.decode(), None);
    }
}
