//! Datagrams that leave by XSKs: the devices, and the ways to peers by them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use apus_wire::Priority;

use super::headers::{ETHERNET_LEN, packet_len, write_packet};
use super::query::{FoundWay, WayQuery};
use super::ready::Ready;
use super::routes::{Changes, WayAnswer};
use super::socket::Xsk;
use super::umem::FRAME_LEN;
use super::ways::{Ways, is_from};
use crate::plain_peers::PlainPeerCheck;
use crate::udp::Bypass;

/// Time between two looks at the kernel's news. A look is a system call.
pub(super) const NEWS_EVERY: Duration = Duration::from_millis(1);

/// Upper bound on datagrams of news per look.
const NEWS_MAX: usize = 64;

/// Upper bound on XSKs that wait to be closed.
const RETIRED_MAX: usize = 4;

/// The XSKs of a link.
pub(super) struct FrameSender {
    local: SocketAddr,
    /// Whether XSKs are to receive.
    receives: bool,
    /// The addresses of this machine.
    own: PlainPeerCheck,
    /// The descriptors of XSKs that receive.
    ready: Ready,
    ways: Ways,
    changes: Changes,
    /// Time of the last look at the news.
    looked: Instant,
    /// Time of this flush.
    now: Instant,
    devices: Vec<Device>,
    /// Whether a device has frames that it did not take.
    pub(super) is_pending: bool,
    /// XSKs that the next examination closes.
    retired: Vec<Xsk>,
    /// System calls of XSKs that are not used any more.
    calls: u64,
    /// Number of XSKs whose device was gone or down.
    pub(super) devices_lost: u64,
    /// Why the last look-up found no way by an XSK.
    pub(super) failure: Option<io::Error>,
}

struct Device {
    number: u32,
    xsk: Xsk,
    /// Whether frames are queued.
    is_used: bool,
}

impl FrameSender {
    /// `local`: the address of the link.
    /// `receives`: datagrams to this address arrive at this link only, so XSKs may receive them if it is the address of one host: a
    /// program at a device does not know which of the datagrams to a port are forwarded to other hosts.
    pub(super) fn new(local: SocketAddr, receives: bool) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            local,
            receives,
            own: PlainPeerCheck::default(),
            ready: Ready::new()?,
            ways: Ways::new(),
            changes: Changes::open()?,
            looked: now,
            now,
            devices: Vec::new(),
            retired: Vec::new(),
            is_pending: false,
            calls: 0,
            devices_lost: 0,
            failure: None,
        })
    }

    /// Begins a flush.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.now = Instant::now();
        if self.now - self.looked >= NEWS_EVERY {
            self.look_at_news();
        }
        for device in &mut self.devices {
            device.xsk.reclaim();
        }
    }

    fn look_at_news(&mut self) {
        self.looked = self.now;
        let Self { ways, changes, now, .. } = self;
        for _ in 0..NEWS_MAX {
            if !changes.next(|change| ways.changed(&change, *now)) {
                break;
            }
        }
    }

    /// Passes the queued frames to their devices.
    #[inline]
    pub(super) fn finish(&mut self) {
        let (mut is_pending, mut lost) = (false, None);
        for device in self.devices.iter_mut().filter(|device| device.is_used) {
            if device.xsk.flush().is_err() {
                lost = Some(device.number);
            }
            device.is_used = !device.xsk.is_idle();
            is_pending |= device.is_used;
        }
        self.is_pending = is_pending;
        if let Some(number) = lost {
            self.retire(number);
        }
    }

    /// Stops the use of the XSK of a device that is gone or down, with the frames that it did not send.
    #[cold]
    fn retire(&mut self, number: u32) {
        self.ways.device_is_gone(number, self.now);
        self.devices_lost += 1;
        let gone = self.devices.iter().position(|device| device.number == number);
        if let Some(place) = gone {
            let Device { xsk, .. } = self.devices.swap_remove(place);
            self.calls += xsk.calls;
            self.retired.truncate(RETIRED_MAX - 1);
            self.retired.push(xsk);
        }
        self.is_pending = self.devices.iter().any(|device| device.is_used);
    }

    /// Returns the question about the way to a peer, if it is due.
    pub(super) fn query(&self, to: SocketAddr, now: Instant) -> Option<WayQuery> {
        self.ways.is_due(to, now).then(|| self.query_of(to))
    }

    /// Returns a question about a way that a flush has needed.
    pub(super) fn wanted(&mut self) -> Option<(SocketAddr, WayQuery)> {
        let to = self.ways.wanted(Instant::now())?;
        let retired = std::mem::take(&mut self.retired);
        Some((to, WayQuery { retired, ..self.query_of(to) }))
    }

    fn query_of(&self, to: SocketAddr) -> WayQuery {
        let source = Some(self.local.ip()).filter(|ip| !ip.is_unspecified());
        let open = self.devices.iter().map(|device| device.number).collect();
        let own = self.receives.then_some(self.local).filter(|own| !own.ip().is_unspecified());
        WayQuery { to, source, open, own, retired: Vec::new() }
    }

    /// Takes the answer to a question.
    pub(super) fn found(&mut self, to: SocketAddr, found: FoundWay) {
        let FoundWay { mut answer, opened, mut failure } = found;
        if let Some((number, xsk)) = opened {
            if self.devices.iter().any(|device| device.number == number) {
                self.retired.push(xsk); // Another examination was faster.
            } else if let Err(error) = self.watch(&xsk) {
                self.retired.push(xsk);
                (answer, failure) = (WayAnswer::Other, Some(error));
            } else {
                self.devices.push(Device { number, xsk, is_used: false });
            }
        }
        self.failure = failure;
        self.ways.looked_up(to, answer, Instant::now());
    }

    /// Adds an XSK that receives to the descriptors whose frames wake the node.
    fn watch(&self, xsk: &Xsk) -> io::Result<()> {
        if xsk.receives() { self.ready.add(xsk.descriptor()) } else { Ok(()) }
    }

    /// Returns a descriptor that is ready while received frames wait.
    pub(super) fn descriptor(&self) -> RawFd {
        self.ready.descriptor()
    }

    /// Passes received frames to `take`. Returns how many there were. Makes no system call.
    #[inline]
    pub(super) fn receive(
        &mut self,
        mut take: impl FnMut(&mut PlainPeerCheck, &mut [u8]),
    ) -> usize {
        let Self { devices, own, .. } = self;
        let mut take = |frame: &mut [u8]| take(own, frame);
        devices.iter_mut().map(|device| device.xsk.receive(&mut take)).sum()
    }

    /// Returns the number of system calls for sending.
    pub(super) fn calls(&self) -> u64 {
        self.calls + self.devices.iter().map(|device| device.xsk.calls).sum::<u64>()
    }
}

impl Bypass for FrameSender {
    #[inline]
    fn take(
        &mut self,
        to: SocketAddr,
        source: Option<IpAddr>,
        priority: Priority,
        datagram: &[u8],
    ) -> bool {
        let Self { ways, devices, now, local, .. } = self;
        let Some(way) = ways.next(to, *now) else { return false };
        let len = packet_len(to.is_ipv4(), datagram.len());
        if !is_from(way, source) || len > way.mtu || ETHERNET_LEN + len > FRAME_LEN {
            return false;
        }
        let device = devices.iter_mut().find(|device| device.number == way.device);
        let Some(device) = device else { return false };
        let from = SocketAddr::new(way.source, local.port());
        let taken = device.xsk.push(|frame| {
            let (ethernet, packet) = frame.split_at_mut(ETHERNET_LEN);
            ethernet.copy_from_slice(&way.ethernet);
            ETHERNET_LEN + write_packet(packet, from, to, priority.tos(), datagram)
        });
        device.is_used |= taken;
        taken
    }
}
