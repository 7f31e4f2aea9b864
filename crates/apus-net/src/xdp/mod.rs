//! Packets past the kernel's network stack, by XSKs (sockets of the family `AF_XDP`, Linux 5.10).
//!
//! | part | |
//! |---|---|
//! | `region` | memory that is shared with the kernel |
//! | `ring` | the queues between this process and the kernel |
//! | `umem` | the memory of the packets |
//! | `socket` | an XSK: opening, sending |
//! | `headers` | Ethernet, IP and UDP headers |
//! | `routes` | the kernel's routes and neighbours |
//! | `ways` | the known ways to peers |
//! | `query` | the look-up of a way |
//! | `program` | the program that passes packets to an XSK |
//! | `ready` | one descriptor for all XSKs |
//! | `sender` | datagrams that leave by XSKs |

mod headers;
#[cfg(test)]
mod namespace;
mod program;
pub(crate) mod query;
mod ready;
mod region;
mod ring;
mod routes;
mod sender;
mod socket;
#[cfg(test)]
mod tests;
mod umem;
mod ways;

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use apus_wire::compact::{AckRange, Envelope};
use apus_wire::{
    Header, PacketReceiver, PacketSink, PathError, PathId, Priority, ShortTransmit, Transmit,
};

use self::headers::Datagram;
use self::sender::FrameSender;
use crate::link::{Capabilities, Link, LinkCounters, delegate_link, delegate_paths};
use crate::path::Path;
use crate::paths::{Examination, Examined};
use crate::sleeper::Descriptors;
use crate::udp::{LinkError, UdpConfig, UdpLink};

/// Time after which frames that a device did not take are passed to it again.
const AGAIN: Duration = Duration::from_micros(20);

/// A UDP link whose short datagrams leave by XSKs, past the kernel's network stack, and arrive by them on request.
///
/// The peer does not see a difference. The UDP socket stays bound: it receives what no XSK does, and sends long packets and those to
/// peers that no XSK reaches. An XSK needs Linux 5.10 and `CAP_NET_RAW`; without them the link is a UDP link
/// ([`refusal`](Self::refusal)). `docs/links.md` describes the datagrams that go by UDP, and the parts of the system that do not see the
/// others.
pub struct XdpLink {
    udp: UdpLink,
    /// `None`: the process may not open XSKs.
    sender: Option<FrameSender>,
    capabilities: Capabilities,
    refusal: Option<io::Error>,
    udp_turns: UdpTurns,
    /// Number of received frames with a wrong length or checksum.
    corrupted: u64,
}

/// Turns in which the UDP socket is read. Reading it is a system call, and looking for frames is none.
#[derive(Clone, Copy, Debug)]
struct UdpTurns {
    /// Number of turns.
    turns: u32,
    /// Number of turns since a frame arrived.
    since_frame: u32,
    /// Whether the last read found datagrams.
    has_input: bool,
}

/// Number of turns per read of the UDP socket while frames arrive.
const LOOK_EVERY: u32 = 16;

/// Number of turns without frames after which the UDP socket is read in each turn.
const FRAMES_END: u32 = 4_096;

impl Default for UdpTurns {
    fn default() -> Self {
        Self { turns: 0, since_frame: FRAMES_END, has_input: true }
    }
}

impl UdpTurns {
    /// Begins a turn with this number of received frames. Returns whether the UDP socket is to be read.
    #[inline]
    fn next(&mut self, frames: usize) -> bool {
        if self.since_frame >= FRAMES_END && frames == 0 {
            return true;
        }
        self.turns = self.turns.wrapping_add(1);
        self.since_frame = if frames > 0 { 0 } else { self.since_frame + 1 };
        self.has_input || self.turns.is_multiple_of(LOOK_EVERY)
    }
}

impl XdpLink {
    /// Opens a UDP link at `addr`, as [`UdpLink::bind`] does, with XSKs beside it if possible. They are opened when the first path by
    /// their device is examined.
    ///
    /// # Errors
    ///
    /// As [`UdpLink::bind`].
    pub fn bind(addr: SocketAddr, config: &UdpConfig) -> Result<Self, LinkError> {
        Ok(Self::over(UdpLink::bind(addr, config)?))
    }

    /// Opens a link as [`bind`](Self::bind) does, whose XSKs also receive short datagrams. That needs one local address (not `0.0.0.0` or
    /// `[::]`), `CAP_BPF`, `CAP_NET_ADMIN`, and for each device a program, of which a device has at most one; without these, the UDP
    /// socket receives. Firewalls do not see the
    /// datagrams. The program makes long packets of other receivers at the device slower.
    ///
    /// # Errors
    ///
    /// As [`UdpLink::bind`].
    pub fn bind_receiving(addr: SocketAddr, config: &UdpConfig) -> Result<Self, LinkError> {
        Ok(Self::beside(UdpLink::bind(addr, config)?, true))
    }

    /// Puts XSKs for sending beside a UDP link, for instance one of several shards.
    #[must_use]
    pub fn over(udp: UdpLink) -> Self {
        Self::beside(udp, false)
    }

    fn beside(udp: UdpLink, receives: bool) -> Self {
        let opened = socket::open().and_then(|_| FrameSender::new(udp.local_addr(), receives));
        let (sender, refusal) = match opened {
            Ok(sender) => (Some(sender), None),
            Err(error) => (None, Some(error)),
        };
        let kind = if sender.is_some() { "xdp" } else { "udp" };
        let capabilities = Capabilities { kind, ..udp.capabilities().clone() };
        Self { udp, sender, capabilities, refusal, udp_turns: UdpTurns::default(), corrupted: 0 }
    }

    /// Returns the reason why packets leave by UDP only: `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` if the kernel has no XSKs, or
    /// the error of the last attempt to open one or to look up a path. `None`: there is no such reason.
    pub fn refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref().or_else(|| self.sender.as_ref()?.failure.as_ref())
    }

    /// Sends the queued packets.
    #[inline]
    fn send_queued(&mut self) {
        let is_pending = self.sender.as_ref().is_some_and(|sender| sender.is_pending);
        if !self.udp.has_queued() && !is_pending {
            return;
        }
        if let Some(sender) = &mut self.sender {
            sender.begin();
            self.udp.divert(sender);
            sender.finish();
        }
        self.udp.flush();
    }

    /// Adds the question about the way to a peer to the examination of its path, if it is due.
    fn with_query(&self, path: PathId, examination: Option<Examination>) -> Option<Examination> {
        let query = self.sender.as_ref().and_then(|sender| {
            let to = self.udp.address(path)?;
            let query = sender.query(to, Instant::now())?;
            (!self.udp.path(path).loopback).then_some((to, query))
        });
        match query {
            Some((to, query)) => Some(Examination::with_query(examination, to, query)),
            None => examination,
        }
    }

    fn add_calls(&self, counters: LinkCounters) -> LinkCounters {
        let sender = self.sender.as_ref();
        LinkCounters {
            send_calls: counters.send_calls + sender.map_or(0, FrameSender::calls),
            xsk_closed: sender.map_or(0, |sender| sender.devices_lost),
            xsk_corrupted: self.corrupted,
            ..counters
        }
    }
}

/// Returns whether no host of a network has an address.
fn is_impossible(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    let is_mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_broadcast || is_mapped
}

impl PacketSink for XdpLink {
    delegate_paths!(self, self.udp);

    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        if self.udp.is_full() {
            self.send_queued();
        }
        self.udp.send(packet);
    }

    #[inline]
    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        if self.udp.is_full() {
            self.send_queued();
        }
        self.udp.send_short(message);
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        if self.udp.is_full() {
            self.send_queued();
        }
        self.udp.send_acks(path, priority, envelope, header, acks);
    }
}

impl Link for XdpLink {
    delegate_link!(self, self.udp);

    #[inline]
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        self.send_queued();
        let Self { udp, sender, udp_turns, corrupted, .. } = self;
        let Some(sender) = sender else { return udp.recv(receiver) };
        let mut has_begun = false;
        let frames = sender.receive(|own, frame| match headers::read_frame(frame) {
            // The kernel drops packets from the network that claim to come from this machine, which is trusted.
            Some(Datagram { from, .. }) if is_impossible(from.ip()) || own.is_own(from.ip()) => {
                *corrupted += 1;
            }
            Some(Datagram { from, to, payload }) => {
                if !mem::replace(&mut has_begun, true) {
                    udp.begin_datagrams();
                }
                udp.take_datagram((from, to), &mut frame[payload], receiver);
            }
            None => *corrupted += 1,
        });
        if !udp_turns.next(frames) {
            return frames;
        }
        let datagrams = udp.recv(receiver);
        udp_turns.has_input = datagrams > 0;
        frames + datagrams
    }

    #[inline]
    fn flush(&mut self) {
        self.send_queued();
    }

    fn due_in(&self) -> Option<Duration> {
        self.sender.as_ref().and_then(|sender| sender.is_pending.then_some(AGAIN))
    }

    fn look_everywhere(&mut self) {
        self.udp_turns.has_input = true;
        self.udp.look_everywhere();
    }

    fn descriptors(&self) -> Descriptors {
        let mut all = self.udp.descriptors();
        let free = all.iter_mut().find(|descriptor| **descriptor < 0);
        if let (Some(free), Some(sender)) = (free, &self.sender) {
            *free = sender.descriptor();
        }
        all
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn examination(&self, path: PathId) -> Option<Examination> {
        self.with_query(path, self.udp.examination(path))
    }

    fn wanted_examination(&mut self) -> Option<Examination> {
        self.udp.wanted_examination().or_else(|| {
            let (to, query) = self.sender.as_mut()?.wanted()?;
            Some(Examination::with_query(None, to, query))
        })
    }

    fn examined(&mut self, mut examined: Examined) {
        if let Some(found) = examined.take_way()
            && let Some(sender) = &mut self.sender
        {
            sender.found(examined.peer(), found);
        }
        self.udp.examined(examined);
    }

    fn counters(&self) -> LinkCounters {
        self.add_calls(self.udp.counters())
    }

    fn own_counters(&self) -> LinkCounters {
        self.add_calls(self.udp.own_counters())
    }
}
