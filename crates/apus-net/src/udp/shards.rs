//! Several links at one address, so that several engines can serve it at once.
//!
//! A program makes the kernel deliver each datagram to the link that [`shard_of`] names for its sender. So all traffic with one
//! peer, in both directions, belongs to one link, and the engines need not know each other's RPCs.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::socket::Sharing;
use super::steering::{self, SPREAD_ALL, SPREAD_PORT};
use super::{LinkError, UdpConfig, UdpLink, check_setting};
use crate::sys;

/// Upper bound on links that share an address.
pub const SHARDS_MAX: usize = 64;

impl UdpLink {
    /// Opens `shards` links (1 to [`SHARDS_MAX`]) at one address. The traffic of each peer uses the link whose index [`shard_of`]
    /// returns. While they are open, another process of the same user that also shares the port (`SO_REUSEPORT`) can join, and
    /// could attach a program of its own.
    ///
    /// # Errors
    ///
    /// The errors of [`bind`](Self::bind), [`LinkError::Setting`] for another number of shards, and [`LinkError::Steering`] if the
    /// kernel refuses the program.
    pub fn bind_shards(
        addr: SocketAddr,
        config: &UdpConfig,
        shards: usize,
    ) -> Result<Vec<Self>, LinkError> {
        check_setting("shards", shards, 1..=SHARDS_MAX)?;
        if shards == 1 {
            return Ok(vec![Self::bind(addr, config)?]);
        }
        let first = Self::bind_one(addr, config, Sharing::First)?;
        let addr = first.local;
        let steering = |source| LinkError::Steering { addr, source };
        let split = first.capabilities.long_socket;
        let mut links = vec![first];
        for _ in 1..shards {
            let link = Self::bind_one(addr, config, Sharing::Joins)?;
            if link.capabilities.long_socket != split {
                return Err(steering(io::Error::other("not every link has two sockets")));
            }
            links.push(link);
        }
        let program = steering::by_sender(u32::try_from(shards).expect("checked above"), split);
        sys::steer(links[0].descriptor, &program).map_err(steering)?;
        Ok(links)
    }
}

/// Returns the index of the link, among `shards`, for the traffic with a peer.
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
                crate::skipped::skipped(format_args!("this machine has no {bound}"));
                continue;
            };
            let port = links[0].local_addr().port();
            assert!(links.iter().all(|link| link.local_addr().port() == port));
            let mut used = [false; 5];
            for _ in 0..40 {
                let socket = UdpSocket::bind(peer).unwrap();
                let from = socket.local_addr().unwrap();
                let ip = if bound.ip().is_unspecified() { from.ip() } else { bound.ip() };
                socket.send_to(b"hello", (ip, port)).unwrap();
                let link = &mut links[shard_of(from, 5)];
                let limit = Some(Duration::from_secs(5));
                let woken = Sleeper::new().unwrap().sleep(link.descriptors(), limit);
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
    fn links_that_share_an_address_cannot_join_those_that_have_it() {
        let config = UdpConfig::default();
        let one = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &config).unwrap();
        let several = UdpLink::bind_shards("127.0.0.1:0".parse().unwrap(), &config, 2).unwrap();
        for taken in [one.local_addr(), several[0].local_addr()] {
            for shards in [1, 2] {
                let error = UdpLink::bind_shards(taken, &config, shards).err();
                assert!(matches!(error, Some(LinkError::AddressInUse { .. })), "{error:?}");
            }
        }
        // Without the second socket, the port is not shared.
        let mut alone = UdpConfig::default();
        let alone =
            UdpLink::bind("127.0.0.1:0".parse().unwrap(), alone.long_socket(false)).unwrap();
        assert!(!alone.socket.reuse_port().unwrap());
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
