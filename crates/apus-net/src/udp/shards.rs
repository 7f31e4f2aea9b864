//! Several links at one address, so that several engines can serve it at once.
//!
//! The kernel is told to give each datagram to the link that [`shard_of`] names for its sender. So all traffic with one peer, in
//! both directions, belongs to one link, and the engines need not know of each other's RPCs. What decides is a classic BPF program
//! of 20 instructions on the group of sockets (`SO_ATTACH_REUSEPORT_CBPF`), which needs no privilege.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use super::{LinkError, UdpConfig, UdpLink, check_setting};
use crate::sys;

/// Links that can share an address.
pub const SHARDS_MAX: usize = 64;

impl UdpLink {
    /// Opens `shards` links (1 to [`SHARDS_MAX`]) at one address; the traffic of each peer goes by the
    /// link whose place [`shard_of`] tells. While they are open, other processes of the same user can join the port and would
    /// get packets meant for these (`SO_REUSEPORT`).
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), [`LinkError::Setting`] for another number of shards, and [`LinkError::Steering`] when the kernel refuses the program.
    pub fn bind_shards(
        addr: SocketAddr,
        config: &UdpConfig,
        shards: usize,
    ) -> Result<Vec<Self>, LinkError> {
        check_setting("shards", shards, 1..=SHARDS_MAX)?;
        if shards == 1 {
            return Ok(vec![Self::bind(addr, config)?]);
        }
        let first = Self::bind_one(addr, config, true)?;
        let addr = first.local;
        let program = program(u32::try_from(shards).expect("checked above"));
        sys::steer(first.socket.as_raw_fd(), &program)
            .map_err(|source| LinkError::Steering { addr, source })?;
        let mut links = vec![first];
        for _ in 1..shards {
            // The kernel numbers the sockets in the order in which they are bound.
            links.push(Self::bind_one(addr, config, true)?);
        }
        Ok(links)
    }
}

/// Spreads what differs in the low bits of ports and addresses over all bits.
const SPREAD_PORT: u32 = 0x85EB_CA6B;
const SPREAD_ALL: u32 = 0x9E37_79B1;

/// Which of `shards` links has the traffic with a peer.
#[must_use]
pub fn shard_of(peer: SocketAddr, shards: usize) -> usize {
    let ip = match peer.ip() {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => ip.to_bits(),
            None => ip.octets().chunks_exact(4).fold(0, |folded, word| {
                folded ^ u32::from_be_bytes([word[0], word[1], word[2], word[3]])
            }),
        },
    };
    let port = u32::from(peer.port()).wrapping_mul(SPREAD_PORT);
    (ip.wrapping_add(port).wrapping_mul(SPREAD_ALL) >> 16) as usize % shards.max(1)
}

/// Instructions of the program.
const LENGTH: usize = 31;

/// [`shard_of`] for the kernel. An IPv6 sender's port is looked for behind the fixed header: nobody puts extension headers before
/// UDP in a datacenter.
fn program(shards: u32) -> [libc::sock_filter; LENGTH] {
    use libc::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP,
        BPF_K, BPF_LD, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MOD, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST,
        BPF_TAX, BPF_W, BPF_X, BPF_XOR,
    };
    const fn jump(code: u32, k: u32, jt: u8) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf: 0, k }
    }
    const fn op(code: u32, k: u32) -> libc::sock_filter {
        jump(code, k, 0)
    }
    [
        // The version is in the upper half of the first byte.
        op(BPF_LD | BPF_B | BPF_ABS, IP),
        op(BPF_ALU | BPF_RSH | BPF_K, 4),
        jump(BPF_JMP | BPF_JEQ | BPF_K, 6, 8),
        // IPv4: the header's length, the port behind it, the address.
        op(BPF_LD | BPF_B | BPF_ABS, IP),
        op(BPF_ALU | BPF_AND | BPF_K, 15),
        op(BPF_ALU | BPF_LSH | BPF_K, 2),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_H | BPF_IND, IP),
        op(BPF_ST, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 12),
        op(BPF_JMP | BPF_JA, 12),
        // IPv6: the port, and the four words of the address in one.
        op(BPF_LD | BPF_H | BPF_ABS, IP + 40),
        op(BPF_ST, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 8),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 12),
        op(BPF_ALU | BPF_XOR | BPF_X, 0),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 16),
        op(BPF_ALU | BPF_XOR | BPF_X, 0),
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_W | BPF_ABS, IP + 20),
        op(BPF_ALU | BPF_XOR | BPF_X, 0),
        // Both: mix, and choose.
        op(BPF_MISC | BPF_TAX, 0),
        op(BPF_LD | BPF_MEM, 0),
        op(BPF_ALU | BPF_MUL | BPF_K, SPREAD_PORT),
        op(BPF_ALU | BPF_ADD | BPF_X, 0),
        op(BPF_ALU | BPF_MUL | BPF_K, SPREAD_ALL),
        op(BPF_ALU | BPF_RSH | BPF_K, 16),
        op(BPF_ALU | BPF_MOD | BPF_K, shards),
        op(BPF_RET | BPF_A, 0),
    ]
}

/// Where the program sees the IP header (`SKF_NET_OFF`).
const IP: u32 = 0xFFF0_0000;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;
    use crate::link::Link;
    use crate::sleeper::{Sleeper, Woken};

    #[test]
    fn every_peer_has_its_link_and_the_kernel_knows_which() {
        for (bound, peer) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("0.0.0.0:0", "127.0.0.1:0"),
            ("0.0.0.0:0", "127.77.3.9:0"),
            ("[::1]:0", "[::1]:0"),
            ("[::]:0", "[::1]:0"),
            ("[::]:0", "127.0.0.1:0"),
        ] {
            let bound: SocketAddr = bound.parse().unwrap();
            let Ok(mut links) = UdpLink::bind_shards(bound, &UdpConfig::default(), 5) else {
                println!("skipped: this machine has no {bound}");
                continue;
            };
            let port = links[0].local_addr().port();
            assert!(links.iter().all(|link| link.local_addr().port() == port));
            let mut used = [false; 5];
            for _ in 0..40 {
                let socket = UdpSocket::bind(peer).unwrap();
                let from = socket.local_addr().unwrap();
                let ip = if bound.ip().is_unspecified() { from.ip() } else { bound.ip() };
                socket.send_to(b"to whom it concerns", (ip, port)).unwrap();
                let link = &mut links[shard_of(from, 5)];
                let limit = Some(Duration::from_secs(5));
                let woken = Sleeper::new().unwrap().sleep(link.descriptor(), limit);
                assert_eq!(woken, Woken::Link, "{from} to {bound}");
                let mut senders = Vec::new();
                link.recv(&mut |from, _: &[u8]| senders.push(from));
                assert_eq!(senders.len(), 1);
                assert_eq!(link.address(senders[0]), Some(from));
                used[shard_of(from, 5)] = true;
            }
            assert_eq!(used, [true; 5]);
        }
    }

    #[test]
    fn links_that_share_an_address_have_senders_too() {
        let addr = "0.0.0.0:0".parse().unwrap();
        let mut links = UdpLink::bind_shards(addr, &UdpConfig::default(), 2).unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = peer.local_addr().unwrap();
        let (header, body) = ([7; 40], bytes::Bytes::new());
        for link in &mut links {
            for _ in 0..100 {
                let priority = apus_wire::Priority::HIGHEST;
                let path = link.resolve(to).unwrap();
                let (header, range) = (&header, 0..0);
                let packet = apus_wire::Transmit { path, priority, header, body: &body, range };
                apus_wire::PacketSink::send(link, packet);
                link.flush();
                let (_, from) = peer.recv_from(&mut [0; 64]).unwrap();
                assert_eq!(from.port(), link.local_addr().port());
            }
            assert!(
                link.counters().connected_send_calls > 0 || !link.capabilities().connected_sends
            );
        }
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let plain = "192.0.2.7:4000".parse().unwrap();
        let mapped = "[::ffff:192.0.2.7]:4000".parse().unwrap();
        assert_eq!(shard_of(plain, 64), shard_of(mapped, 64));
    }

    #[test]
    fn neighbours_are_spread() {
        let mut counts = [0; 8];
        for host in 0..250u8 {
            for port in [20_146, 40_000, 40_001, 40_002] {
                counts[shard_of(SocketAddr::from(([10, 0, 0, host], port)), 8)] += 1;
            }
        }
        assert!(counts.iter().all(|count| (75..=175).contains(count)), "{counts:?}");
    }
}
