//! A link with many addresses: packets to 127.a.b.c are sent from 127.a.b.c, so that one process is as many peers to a server as it
//! has destinations, and the server as many peers to it.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use apus_net::{Capabilities, Descriptors, Link, LinkCounters, Path, PathTable, only};
use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};
use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::sockopt::Ipv4PacketInfo;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};
use socket2::SockRef;

/// Upper bound on a packet: the payload of an Ethernet frame.
const PACKET_MAX: usize = 1_472;

/// Upper bound on datagrams of a batch.
const BATCH_MAX: usize = 64;

/// Requested size of receive and send buffers, in bytes.
const BUFFER: usize = 8 << 20;

/// A UDP socket bound to every address of this host.
pub(super) struct ManyAddresses {
    socket: UdpSocket,
    local_addr: SocketAddr,
    capabilities: Capabilities,
    counters: LinkCounters,
    paths: PathTable<()>,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

impl ManyAddresses {
    /// Opens a socket on a port that the kernel picks.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub(super) fn open() -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot open a socket")?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, Ipv4PacketInfo, &true).context("cannot list addresses")?;
        let raw = SockRef::from(&socket);
        raw.set_recv_buffer_size(BUFFER)?;
        raw.set_send_buffer_size(BUFFER)?;
        let mut capabilities = Capabilities::default();
        capabilities.kind = "udp-many-addresses";
        capabilities.receive_buffer_wanted = BUFFER;
        capabilities.receive_buffer = raw.recv_buffer_size()?;
        capabilities.send_buffer = raw.send_buffer_size()?;
        Ok(Self {
            local_addr: socket.local_addr()?,
            socket,
            capabilities,
            counters: LinkCounters::default(),
            paths: PathTable::new(0),
            buffer: vec![0; PACKET_MAX],
            control: cmsg_space!(in_pktinfo),
        })
    }

    /// Receives one datagram. Returns its length and the address and port of its path.
    fn take(&mut self) -> Option<(usize, SocketAddr)> {
        let mut into = [IoSliceMut::new(&mut self.buffer)];
        let message = recvmsg::<SockaddrIn>(
            self.socket.as_raw_fd(),
            &mut into,
            Some(&mut self.control),
            MsgFlags::empty(),
        )
        .ok()?;
        let port = message.address?.port();
        let sent_to = message.cmsgs().ok()?.find_map(|control| match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(info.ipi_addr),
            _ => None,
        })?;
        let ip = Ipv4Addr::from(u32::from_be(sent_to.s_addr));
        Some((message.bytes, SocketAddr::V4(SocketAddrV4::new(ip, port))))
    }
}

impl PacketSink for ManyAddresses {
    fn send(&mut self, packet: Transmit<'_>) {
        let Some(SocketAddr::V4(to)) = self.paths.address(packet.path) else {
            self.counters.path_forgotten += 1;
            return;
        };
        self.counters.packets_sent += 1;
        self.counters.send_calls += 1;
        let from = in_addr { s_addr: u32::from(*to.ip()).to_be() };
        let info =
            in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: in_addr { s_addr: 0 } };
        let parts = [IoSlice::new(packet.header), IoSlice::new(packet.payload())];
        let sent = sendmsg(
            self.socket.as_raw_fd(),
            &parts,
            &[ControlMessage::Ipv4PacketInfo(&info)],
            MsgFlags::empty(),
            Some(&SockaddrIn::from(to)),
        );
        match sent {
            Ok(bytes) => {
                self.counters.datagrams_sent += 1;
                self.counters.bytes_sent += bytes as u64;
            }
            Err(error) if std::io::Error::from(error).kind() == ErrorKind::WouldBlock => {
                self.counters.send_blocked += 1;
            }
            Err(_) => self.counters.send_errors += 1,
        }
    }

    fn max_packet(&self, _: PathId) -> usize {
        PACKET_MAX
    }

    fn hold(&mut self, path: PathId) {
        self.paths.hold(path);
    }

    fn release(&mut self, path: PathId) {
        self.paths.release(path);
    }
}

impl Link for ManyAddresses {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        for taken in 0..BATCH_MAX {
            let Some((length, from)) = self.take() else {
                return taken;
            };
            self.counters.datagrams_received += 1;
            self.counters.packets_received += 1;
            self.counters.bytes_received += length as u64;
            let path = self.resolve(from).expect("datagrams of an IPv4 socket have IPv4 addresses");
            receiver.packet(path, &self.buffer[..length]);
        }
        BATCH_MAX
    }

    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        let known = self.paths.find(to);
        known.or_else(|| to.is_ipv4().then(|| self.paths.insert(to, (), drop)))
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        self.paths.find(address)
    }

    fn address(&self, path: PathId) -> Option<SocketAddr> {
        self.paths.address(path)
    }

    fn flush(&mut self) {}

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        None
    }

    fn descriptors(&self) -> Descriptors {
        only(self.socket.as_raw_fd())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive_capacity(&self) -> usize {
        self.capabilities.receive_buffer
    }

    fn path(&self, _: PathId) -> Path {
        Path { max_packet: PACKET_MAX, loopback: true, link_mbps: None }
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

/// The address of peer `number`: 127.1.0.0 and the following ones.
pub(super) fn address(number: u32, port: u16) -> SocketAddr {
    let first = u32::from(Ipv4Addr::new(127, 1, 0, 0));
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(first + number)), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn responses_leave_from_the_called_address_and_are_distinguished() {
        let mut link = ManyAddresses::open().unwrap();
        let peer = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = peer.local_addr().unwrap().port();
        let to = address(300, port);
        let body = Bytes::from_static(b"body");
        let path = link.resolve(to).unwrap();
        let packet = Transmit {
            path,
            priority: apus_wire::Priority::HIGHEST,
            header: b"head",
            body: &body,
            range: 1..3,
        };
        link.send(packet);
        let mut buffer = [0; 16];
        let (length, from) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"headod");
        assert_eq!(from.ip().to_string(), "127.1.1.44");
        peer.send_to(b"answer", from).unwrap();
        // On loopback, the datagram has arrived when the sender's call returns.
        let mut seen = Vec::new();
        assert_eq!(link.recv(&mut |from, packet: &[u8]| seen.push((from, packet.to_vec()))), 1);
        assert_eq!(seen, [(path, b"answer".to_vec())]);
    }
}
