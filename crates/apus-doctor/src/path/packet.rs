//! Datagrams of the doctor's own, and a socket that marks sent datagrams and reports the marks of received ones.
//!
//! A mark is the type-of-service byte of an IP packet, whose upper six bits are the DSCP. Apus writes the priority to its upper
//! three bits.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use socket2::{Domain, Socket, Type};

/// The content of a datagram. Datagrams may be longer; the rest has no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packet {
    /// Number that a question must have to be answered.
    pub(super) nonce: u64,
    pub(super) number: u32,
    /// The mark of the answer.
    pub(super) wanted: u8,
    /// In an answer: the mark of the question on arrival.
    pub(super) seen: Option<u8>,
}

impl Packet {
    pub(super) const LEN: usize = 24;

    const MAGIC: [u8; 8] = *b"apusdr\0\x01";

    /// Writes the content to the start of a buffer of [`LEN`](Self::LEN) bytes or more.
    pub(super) fn write(self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        let (is_answer, seen) = self.seen.map_or((0, 0), |seen| (1, seen));
        bytes[20..24].copy_from_slice(&[self.wanted, is_answer, seen, 0]);
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let ([wanted, is_answer, seen, _], _) = rest.split_first_chunk::<4>()?;
        (*magic == Self::MAGIC).then(|| Self {
            nonce: u64::from_le_bytes(*nonce),
            number: u32::from_le_bytes(*number),
            wanted: *wanted,
            seen: (*is_answer != 0).then_some(*seen),
        })
    }
}

/// A UDP socket of one IP version.
#[derive(Debug)]
pub(super) struct DscpSocket {
    socket: Socket,
    v4: bool,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkedDatagram {
    pub(super) length: usize,
    pub(super) from: SocketAddr,
    /// The mark on arrival; `None` if the kernel does not report it.
    pub(super) mark: Option<u8>,
}

impl DscpSocket {
    /// Opens a socket at an address, at any port.
    pub(super) fn bind(ip: IpAddr, timeout: Duration) -> io::Result<Self> {
        let address = SocketAddr::new(ip, 0);
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        socket.set_read_timeout(Some(timeout))?;
        let v4 = ip.is_ipv4();
        if v4 {
            socket.set_recv_tos_v4(true)?
        } else {
            socket.set_recv_tclass_v6(true)?
        }
        socket.bind(&address.into())?;
        Ok(Self { socket, v4 })
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.as_socket().map_or(0, |address| address.port()))
    }

    /// Marks the datagrams that are sent from now on.
    pub(super) fn mark(&self, mark: u8) -> io::Result<()> {
        match self.v4 {
            true => self.socket.set_tos_v4(mark.into()),
            false => self.socket.set_tclass_v6(mark.into()),
        }
    }

    pub(super) fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.socket.send_to(bytes, &to.into()).map(drop)
    }

    /// Waits for a datagram. Bytes beyond the buffer are cut off.
    pub(super) fn receive(&self, bytes: &mut [u8]) -> io::Result<MarkedDatagram> {
        let mut parts = [IoSliceMut::new(bytes)];
        let mut space = nix::cmsg_space!(i32);
        let message = recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::empty(),
        )?;
        let from = message.address.as_ref().and_then(address).ok_or(io::ErrorKind::InvalidData)?;
        let mark = message.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
            ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class).ok(),
            _ => None,
        });
        Ok(MarkedDatagram { length: message.bytes, from, mark })
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|it| SocketAddr::from((it.ip(), it.port())));
    v4.or_else(|| storage.as_sockaddr_in6().map(|it| SocketAddr::from((it.ip(), it.port()))))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_packet_survives_the_trip() {
        for seen in [None, Some(0xe0)] {
            let packet = Packet { nonce: 7, number: 9, wanted: 0x20, seen };
            let mut bytes = [0; 100];
            packet.write(&mut bytes);
            assert_eq!(Packet::parse(&bytes), Some(packet));
            assert_eq!(Packet::parse(&bytes[..Packet::LEN - 1]), None);
            bytes[0] = b'x';
            assert_eq!(Packet::parse(&bytes), None);
        }
    }

    #[test]
    fn marks_are_reported() {
        let bind = || DscpSocket::bind(Ipv4Addr::LOCALHOST.into(), Duration::from_secs(5)).unwrap();
        let (one, other) = (bind(), bind());
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, other.port().unwrap()));
        for mark in [0, 0x20, 0xe0] {
            one.mark(mark).unwrap();
            one.send(b"some bytes", to).unwrap();
            let received = other.receive(&mut [0; 4]).unwrap();
            assert_eq!((received.length, received.mark), (4, Some(mark)));
            assert_eq!(received.from.port(), one.port().unwrap());
        }
    }
}
