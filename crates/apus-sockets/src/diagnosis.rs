//! The kernel's answer about the socket at one end of a connection (`sock_diag(7)`): its user and its identity.

use std::net::{IpAddr, SocketAddr};

/// A TCP socket of a network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The user that created it.
    pub uid: u32,
    /// The number that no other socket of the host ever has (`SO_COOKIE`).
    pub cookie: u64,
    /// The inode of its file, as in `fstat`.
    pub inode: u32,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const HEADER: usize = 16;
/// Offset of the cookie in an `inet_diag_sockid`.
const COOKIE: usize = 40;
const ID: usize = 48;

/// Returns the request for the socket that is bound to `local` and connected to `peer`. Both must be [`canonical`]. The answer has
/// the [`sequence`].
#[must_use]
pub fn request(local: SocketAddr, peer: SocketAddr, sequence: u32) -> Vec<u8> {
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut request = Vec::with_capacity(HEADER + 8 + ID);
    request.extend(((HEADER + 8 + ID) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    request.extend([0; 4]); // The sender.
    request.extend([family, IPPROTO_TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes()); // In any state.
    request.extend(local.port().to_be_bytes());
    request.extend(peer.port().to_be_bytes());
    for ip in [local.ip(), peer.ip()] {
        match ip {
            IpAddr::V4(ip) => request.extend(ip.octets().into_iter().chain([0; 12])),
            IpAddr::V6(ip) => request.extend(ip.octets()),
        }
    }
    request.extend([0; 4]); // At any interface.
    request.extend([0xff; 8]); // With any cookie.
    request
}

/// Returns the sequence number of an answer, which is its request's.
#[must_use]
pub fn sequence(answer: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(answer.get(8..12)?.try_into().ok()?))
}

/// Parses the kernel's answer. Returns `None` if there is no such socket.
#[must_use]
pub fn answer(answer: &[u8]) -> Option<Found> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let message = answer.get(HEADER..).filter(|_| kind == SOCK_DIAG_BY_FAMILY)?;
    let word = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    // `struct inet_diag_msg`: four bytes, the id, and the times, queues, user and inode.
    let cookie = [word(4 + COOKIE)?, word(4 + COOKIE + 4)?];
    let (uid, inode) = (word(4 + ID + 12)?, word(4 + ID + 16)?);
    Some(Found { uid, cookie: u64::from(cookie[1]) << 32 | u64::from(cookie[0]), inode })
}

/// Returns the inode and the user of the socket that is bound to `local` and connected to `peer`, from a text of `/proc/net/tcp` or
/// `/proc/net/tcp6`. Both addresses must be [`canonical`].
#[must_use]
pub fn inode_and_user_in(text: &str, local: SocketAddr, peer: SocketAddr) -> Option<(u32, u32)> {
    let address = |text: &str| {
        let (ip, port) = text.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        // Words of the address, in the machine's byte order.
        let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok();
        let ip = match ip.len() {
            8 => IpAddr::from(word(0)?.to_ne_bytes()),
            32 => {
                let mut bytes = [0; 16];
                for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                    part.copy_from_slice(&word(8 * index)?.to_ne_bytes());
                }
                IpAddr::from(bytes)
            }
            _ => return None,
        };
        Some(canonical(SocketAddr::new(ip, port)))
    };
    text.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let ends = [address(columns.next()?)?, address(columns.next()?)?];
        (ends == [local, peer]).then(|| {
            let user = columns.nth(4)?.parse().ok()?;
            Some((columns.nth(1)?.parse().ok()?, user))
        })?
    })
}

/// Converts IPv4 addresses in the form of IPv6 sockets to plain IPv4 addresses.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
