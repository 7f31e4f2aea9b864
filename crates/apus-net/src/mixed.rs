//! Several links as one: UDP for Apus nodes, raw ones for Linux nodes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use apus_wire::{PacketReceiver, PacketSink, PathError, Transmit, is_native};

use crate::link::{Capabilities, Link, LinkCounters, Path};
use crate::raw::RawLink;
use crate::sys;

/// One link that a node speaks UDP and IP protocol 146 by. A peer's address says which: port 0 is native ([`is_native`]).
///
/// Packets for an address no link can reach are lost and reported as [`PathError::NoLink`]. The address, path and capabilities of
/// the first link stand for all where one must.
pub struct MixedLink {
    /// UDP first, if there is one; at most one raw link of each IP version.
    links: Vec<Part>,
    any: OwnedFd,
    /// Addresses no link reaches.
    unreachable: Option<SocketAddr>,
    wrong_family: u64,
}

struct Part {
    link: Box<dyn Link>,
    native: bool,
}

impl Part {
    fn reaches(&self, to: SocketAddr) -> bool {
        // A UDP link itself says which IP versions it reaches.
        is_native(to) == self.native
            && (!self.native || self.link.local_addr().is_ipv4() == to.is_ipv4())
    }
}

impl MixedLink {
    /// Puts links together; `udp` may be missing, `raw` may have one link of each IP version.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    ///
    /// # Panics
    ///
    /// Without any link.
    pub fn new(udp: Option<Box<dyn Link>>, raw: Vec<RawLink>) -> io::Result<Self> {
        let udp = udp.into_iter().map(|link| Part { link, native: false });
        let raw = raw.into_iter().map(|link| Part { link: Box::new(link), native: true });
        let links: Vec<Part> = udp.chain(raw).collect();
        assert!(!links.is_empty(), "a link needs something to send by");
        let descriptors: Vec<RawFd> = links.iter().map(|part| part.link.descriptor()).collect();
        let any = sys::any_of(&descriptors)?;
        Ok(Self { links, any, unreachable: None, wrong_family: 0 })
    }

    fn towards(&self, to: SocketAddr) -> &dyn Link {
        let part = self.links.iter().find(|part| part.reaches(to));
        &*part.unwrap_or(&self.links[0]).link
    }
}

impl PacketSink for MixedLink {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        match self.links.iter_mut().find(|part| part.reaches(packet.to)) {
            Some(part) => part.link.send(packet),
            None => {
                self.wrong_family += 1;
                self.unreachable = Some(packet.to);
            }
        }
    }

    #[inline]
    fn max_packet(&self, to: SocketAddr) -> usize {
        self.towards(to).max_packet(to)
    }

    fn swallowed(&mut self, to: SocketAddr) {
        if let Some(part) = self.links.iter_mut().find(|part| part.reaches(to)) {
            part.link.swallowed(to);
        }
    }

    fn refuse(&mut self, to: SocketAddr, packet: [u8; 8]) {
        if let Some(part) = self.links.iter_mut().find(|part| part.reaches(to)) {
            part.link.refuse(to, packet);
        }
    }
}

impl Link for MixedLink {
    fn local_addr(&self) -> SocketAddr {
        self.links[0].link.local_addr()
    }

    #[inline]
    fn recv(&mut self, handler: &mut dyn FnMut(SocketAddr, &[u8])) -> usize {
        self.links.iter_mut().map(|part| part.link.recv(handler)).sum()
    }

    #[inline]
    fn recv_into(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        self.links.iter_mut().map(|part| part.link.recv_into(receiver)).sum()
    }

    #[inline]
    fn flush(&mut self) {
        self.links.iter_mut().for_each(|part| part.link.flush());
    }

    #[inline]
    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        if let Some(peer) = self.unreachable.take() {
            return Some((peer, PathError::NoLink));
        }
        self.links.iter_mut().find_map(|part| part.link.poll_error())
    }

    fn descriptor(&self) -> RawFd {
        self.any.as_raw_fd()
    }

    fn due_in(&self) -> Option<Duration> {
        self.links.iter().filter_map(|part| part.link.due_in()).min()
    }

    fn capabilities(&self) -> &Capabilities {
        self.links[0].link.capabilities()
    }

    fn set_receive_budget(&mut self, datagrams: usize) {
        let share = (datagrams / self.links.len()).max(1);
        self.links.iter_mut().for_each(|part| part.link.set_receive_budget(share));
    }

    /// The smallest of all: any of them may get everything.
    fn receive_capacity(&self) -> usize {
        self.links.iter().map(|part| part.link.receive_capacity()).min().unwrap_or(0)
    }

    #[inline]
    fn path(&self, to: SocketAddr) -> Path {
        self.towards(to).path(to)
    }

    fn counters(&self) -> LinkCounters {
        let mut sum = LinkCounters { wrong_family: self.wrong_family, ..LinkCounters::default() };
        self.links.iter().for_each(|part| sum.add(&part.link.counters()));
        sum
    }
}
