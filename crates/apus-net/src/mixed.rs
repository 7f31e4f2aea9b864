//! Several links as one: UDP for Apus nodes, raw ones for Linux nodes.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use apus_wire::compact::{AckRange, Envelope};
use apus_wire::{
    Header, PacketReceiver, PacketSink, PathError, PathId, Priority, ShortTransmit, Transmit,
    is_native,
};

use crate::link::{Capabilities, Link, LinkCounters};
use crate::path::Path;
use crate::path_table::link_of;
use crate::paths::{Examination, Examined};
use crate::raw::RawLink;
use crate::sealed::SealedPaths;
use crate::sleeper::{Descriptors, only};

/// One link by which a node uses both UDP and IP protocol 146. A peer's address selects the protocol: port 0 is native
/// ([`is_native`]). A path belongs to the link that assigned it.
///
/// The address and the capabilities of the first link stand for all.
pub struct MixedLink {
    /// UDP first, if present; at most one raw link of each IP version.
    links: Vec<MemberLink>,
}

struct MemberLink {
    link: Box<dyn Link>,
    native: bool,
    /// Number of the link in the paths that it assigns.
    number: usize,
}

impl MixedLink {
    /// Combines links. `udp` may be missing; `raw` may have one link of each IP version.
    ///
    /// # Panics
    ///
    /// Without any link, or with more descriptors than can be watched at once.
    #[must_use]
    pub fn new(udp: Option<Box<dyn Link>>, raw: Vec<RawLink>) -> Self {
        let udp = udp.into_iter().map(|link| MemberLink { link, native: false, number: 0 });
        let raw = raw.into_iter().map(|link| {
            let number = link.number();
            MemberLink { link: Box::new(link), native: true, number }
        });
        let links: Vec<MemberLink> = udp.chain(raw).collect();
        assert!(!links.is_empty(), "a link needs something to send by");
        let mixed = Self { links };
        assert!(
            mixed.open_descriptors().count() <= mixed.descriptors().len(),
            "few links are mixed"
        );
        mixed
    }

    /// Returns the link that assigned a path.
    #[inline]
    fn of(&self, path: PathId) -> Option<&dyn Link> {
        let part = self.links.iter().find(|part| part.number == link_of(path));
        part.map(|part| &*part.link)
    }

    /// Returns the link that assigned a path, to change it.
    #[inline]
    fn of_mut(&mut self, path: PathId) -> Option<&mut Box<dyn Link>> {
        let part = self.links.iter_mut().find(|part| part.number == link_of(path));
        part.map(|part| &mut part.link)
    }

    fn open_descriptors(&self) -> impl Iterator<Item = RawFd> {
        let all = self.links.iter().flat_map(|part| part.link.descriptors());
        all.filter(|&descriptor| descriptor >= 0)
    }

    /// Returns the links for addresses of this kind.
    fn towards(&mut self, to: SocketAddr) -> impl Iterator<Item = &mut Box<dyn Link>> {
        let parts = self.links.iter_mut().filter(move |part| part.native == is_native(to));
        parts.map(|part| &mut part.link)
    }
}

impl PacketSink for MixedLink {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        if let Some(link) = self.of_mut(packet.path) {
            link.send(packet);
        }
    }

    #[inline]
    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        if let Some(link) = self.of_mut(message.path) {
            link.send_short(message);
        }
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        if let Some(link) = self.of_mut(path) {
            link.send_acks(path, priority, envelope, header, acks);
        }
    }

    #[inline]
    fn max_packet(&self, path: PathId) -> usize {
        self.of(path).map_or(Path::UNKNOWN.max_packet, |link| link.max_packet(path))
    }

    fn swallowed(&mut self, path: PathId) {
        if let Some(link) = self.of_mut(path) {
            link.swallowed(path);
        }
    }

    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        if let Some(link) = self.of_mut(path) {
            link.refuse(path, packet);
        }
    }

    fn hold(&mut self, path: PathId) {
        if let Some(link) = self.of_mut(path) {
            link.hold(path);
        }
    }

    fn release(&mut self, path: PathId) {
        if let Some(link) = self.of_mut(path) {
            link.release(path);
        }
    }
}

impl Link for MixedLink {
    fn local_addr(&self) -> SocketAddr {
        self.links[0].link.local_addr()
    }

    #[inline]
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        self.links.iter_mut().map(|part| part.link.recv(receiver)).sum()
    }

    fn look_everywhere(&mut self) {
        self.links.iter_mut().for_each(|part| part.link.look_everywhere());
    }

    #[inline]
    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.towards(to).find_map(|link| link.resolve(to))
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        self.towards(address).find_map(|link| link.find(address))
    }

    fn address(&self, path: PathId) -> Option<SocketAddr> {
        self.of(path)?.address(path)
    }

    fn sealed_paths(&mut self) -> Option<&mut dyn SealedPaths> {
        self.links.iter_mut().find_map(|part| part.link.sealed_paths())
    }

    fn path(&self, path: PathId) -> Path {
        self.of(path).map_or(Path::UNKNOWN, |link| link.path(path))
    }

    fn examination(&self, path: PathId) -> Option<Examination> {
        self.of(path)?.examination(path)
    }

    fn wanted_examination(&mut self) -> Option<Examination> {
        self.links.iter_mut().find_map(|part| part.link.wanted_examination())
    }

    fn examined(&mut self, examined: Examined) {
        let peer = examined.peer();
        if let Some(path) = self.find(peer)
            && let Some(link) = self.of_mut(path)
        {
            link.examined(examined);
        }
    }

    #[inline]
    fn flush(&mut self) {
        self.links.iter_mut().for_each(|part| part.link.flush());
    }

    #[inline]
    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        self.links.iter_mut().find_map(|part| part.link.poll_error())
    }

    fn descriptors(&self) -> Descriptors {
        let mut all = only(-1);
        all.iter_mut().zip(self.open_descriptors()).for_each(|(place, open)| *place = open);
        all
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

    /// Returns the smallest capacity of all links, because any of them may receive everything.
    fn receive_capacity(&self) -> usize {
        self.links.iter().map(|part| part.link.receive_capacity()).min().unwrap_or(0)
    }

    fn counters(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        self.links.iter().for_each(|part| sum.add(&part.link.counters()));
        sum
    }

    fn stamp_arrivals(&mut self) -> bool {
        let parts = self.links.iter_mut();
        parts.filter_map(|part| part.link.stamp_arrivals().then_some(())).count() > 0
    }

    fn arrived(&self) -> Option<u64> {
        self.links.iter().filter_map(|part| part.link.arrived()).min()
    }

    fn own_counters(&self) -> LinkCounters {
        let mut sum = LinkCounters::default();
        self.links.iter().for_each(|part| sum.add(&part.link.own_counters()));
        sum
    }
}
