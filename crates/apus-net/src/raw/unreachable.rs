//! ICMP port unreachable, which Homa in user space must send itself: the kernel only knows that there is a socket for the protocol.
//! Without it, a client of the module waits for its own timeout.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use apus_wire::IP_PROTOCOL;
use socket2::{Domain, Protocol, Socket, Type};

use super::filter;
use crate::address::{AddressFamily, RawAddress};
use crate::sys;

/// Bytes of the offending packet in an error: the minimum that hosts read.
type Head = [u8; 8];

/// A socket that only sends.
#[derive(Debug)]
pub(super) struct Unreachable {
    socket: Socket,
    family: AddressFamily,
}

impl Unreachable {
    pub(super) fn open(domain: Domain) -> io::Result<Self> {
        let (protocol, family) = match domain {
            Domain::IPV4 => (Protocol::ICMPV4, AddressFamily::V4),
            _ => (Protocol::ICMPV6, AddressFamily::V6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_nonblocking(true)?;
        sys::filter(socket.as_raw_fd(), &filter::nothing())?;
        Ok(Self { socket, family })
    }

    /// Reports to `peer` that the destination port of its packet, which begins with `head` and went to `local`, is not served.
    /// Returns `false` if the report could not be sent; the peer then waits for its timeout.
    pub(super) fn send(&self, peer: SocketAddr, local: IpAddr, head: Head) -> bool {
        let message = match (peer.ip(), local) {
            (IpAddr::V4(peer), IpAddr::V4(local)) => v4(peer, local, head),
            (IpAddr::V6(peer), IpAddr::V6(local)) => v6(peer, local, head),
            _ => return false,
        };
        RawAddress::encode(peer, self.family)
            .is_some_and(|to| sys::send_to(self.socket.as_raw_fd(), &message, Some(&to)).is_ok())
    }
}

/// Builds type 3, code 3 (RFC 792), with the header that the offending packet must have had.
fn v4(peer: Ipv4Addr, local: Ipv4Addr, head: Head) -> Vec<u8> {
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
    let mut header = [0; 20];
    header[..2].copy_from_slice(&[0x45, 0]);
    header[3] = 20 + 8;
    header[6..10].copy_from_slice(&[0x40, 0, 64, IP_PROTOCOL]);
    header[12..16].copy_from_slice(&peer.octets());
    header[16..].copy_from_slice(&local.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    message.extend_from_slice(&header);
    message.extend_from_slice(&head);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

/// Builds type 1, code 4 (RFC 4443). The kernel fills in the checksum of ICMPv6.
fn v6(peer: Ipv6Addr, local: Ipv6Addr, head: Head) -> Vec<u8> {
    let mut message = vec![1, 4, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&[0x60, 0, 0, 0, 0, 8, IP_PROTOCOL, 64]);
    message.extend_from_slice(&peer.octets());
    message.extend_from_slice(&local.octets());
    message.extend_from_slice(&head);
    message
}

/// Returns the checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let (words, _) = bytes.as_chunks();
    let sum: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    (!((folded & 0xFFFF) + (folded >> 16)) as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_headers_with_their_checksums_are_zero() {
        let [peer, local] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host));
        let message = v4(peer, local, [0x80, 0, 0x0F, 0xA0, 0, 0, 0, 0]);
        assert_eq!((message.len(), checksum(&message)), (36, [0, 0]));
        assert_eq!(checksum(&message[8..28]), [0, 0]);
        assert_eq!(message[8 + 9], IP_PROTOCOL);
        assert_eq!(message[20..28], [10, 0, 0, 1, 10, 0, 0, 2]);
    }
}
