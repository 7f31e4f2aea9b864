//! The interface of every link.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use apus_wire::{PacketReceiver, PacketSink, PathError, PathId};

use crate::path::Path;
use crate::paths::{Examination, Examined};
use crate::sealed::SealedPaths;
use crate::sleeper::Descriptors;

/// A carrier of Homa packets between nodes.
///
/// Packets go out through [`PacketSink::send`], which only queues, and [`flush`](Self::flush), which passes the queue to the
/// kernel. No method blocks. See the [crate's documentation](crate) for the order of calls.
pub trait Link: PacketSink + Send {
    /// Returns the address that this link is bound to, with the port that the kernel chose if port 0 was requested.
    fn local_addr(&self) -> SocketAddr;

    /// Receives one batch of datagrams and passes each packet in them to `receiver`, with offload segments and bundles already
    /// split. Returns the number of datagrams.
    ///
    /// A batch may be a single datagram although more are waiting, or none although one is: a link with several sockets need not
    /// check each of them every time. As long as a descriptor is ready, there is input. A link may have the kernel write payload to
    /// the receiver's target ([`PacketReceiver::receive_target`]).
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize;

    /// Makes the next [`recv`](Self::recv) check every socket of this link. Does nothing by default.
    fn look_everywhere(&mut self) {}

    /// Returns the path to an address, a new one if necessary, or `None` if this link does not reach the address. Makes no system
    /// call.
    ///
    /// The link may forget a path that is not held after some thousands of others were resolved.
    fn resolve(&mut self, to: SocketAddr) -> Option<PathId>;

    /// Returns the path to an address, if there is one.
    fn find(&mut self, address: SocketAddr) -> Option<PathId>;

    /// Returns the address that a path leads to, unless the path is forgotten.
    fn address(&self, path: PathId) -> Option<SocketAddr>;

    /// Passes everything queued by `send` to the kernel. Packets that the kernel refuses are counted and dropped.
    fn flush(&mut self);

    /// Returns the next asynchronous error, for instance that a peer's port is closed. Without an error, it costs a comparison.
    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)>;

    /// Returns the descriptors to sleep on. Readiness of one (`POLLIN` or `POLLERR`) means that [`recv`](Self::recv) or
    /// [`poll_error`](Self::poll_error) has input; call `recv` first.
    fn descriptors(&self) -> Descriptors;

    /// Returns the time until `recv` or `flush` must be called without a ready descriptor, because a wrapper holds packets back
    /// (the fault link's delay). `None`: only the descriptors matter.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Makes the kernel record the arrival of datagrams from now on (`SO_TIMESTAMPING`), for [`arrived`](Self::arrived). Returns
    /// `false`, the default, if this link cannot.
    fn stamp_arrivals(&mut self) -> bool {
        false
    }

    /// Returns the time at which the first datagram of the last batch reached the kernel, in nanoseconds since 1970. `None`, the
    /// default: unknown.
    fn arrived(&self) -> Option<u64> {
        None
    }

    /// Returns the features that were probed when the link was opened.
    fn capabilities(&self) -> &Capabilities;

    /// Limits the datagrams of one receive call to `_datagrams`. Links that take one at a time ignore it.
    fn set_receive_budget(&mut self, _datagrams: usize) {}

    /// Returns the payload bytes that the receive buffer can hold. A receiver that grants more causes drops.
    fn receive_capacity(&self) -> usize;

    /// Returns the properties of a path; [`Path::UNKNOWN`] before its examination.
    fn path(&self, path: PathId) -> Path;

    /// Returns the examination that is due before messages go by this path. `None`, the default: none is due. Limits set by the
    /// network expire, so call it about once per second for a path in use.
    fn examination(&self, path: PathId) -> Option<Examination> {
        let _ = path;
        None
    }

    /// Returns the next examination of a path in use that was never examined, for instance because a peer has moved. Call it
    /// several times per second. `None`, the default: there is none.
    fn wanted_examination(&mut self) -> Option<Examination> {
        None
    }

    /// Takes the results of an examination.
    fn examined(&mut self, examined: Examined) {
        let _ = examined;
    }

    /// Returns the sealed paths of this link. `None`, the default: it has none ([`UdpConfig::seals`](crate::UdpConfig::seals)).
    fn sealed_paths(&mut self) -> Option<&mut dyn SealedPaths> {
        None
    }

    /// Returns the counters since the link was opened. May cost a system call.
    fn counters(&self) -> LinkCounters;

    /// Returns the counters without a system call. The kernel's counter
    /// [`receive_buffer_drops`](LinkCounters::receive_buffer_drops) may be too low then.
    fn own_counters(&self) -> LinkCounters {
        self.counters()
    }
}

/// Delegates the methods of [`PacketSink`] that are not about packets to an inner link.
macro_rules! delegate_paths {
    ($this:ident, $inner:expr) => {
        #[inline]
        fn max_packet(&$this, path: PathId) -> usize {
            $inner.max_packet(path)
        }

        fn swallowed(&mut $this, path: PathId) {
            $inner.swallowed(path);
        }

        fn refuse(&mut $this, path: PathId, packet: [u8; 8]) {
            $inner.refuse(path, packet);
        }

        fn hold(&mut $this, path: PathId) {
            $inner.hold(path);
        }

        fn release(&mut $this, path: PathId) {
            $inner.release(path);
        }
    };
}

/// Delegates the methods of [`Link`] that a wrapper does not change to an inner link.
macro_rules! delegate_link {
    ($this:ident, $inner:expr) => {
        fn local_addr(&$this) -> SocketAddr {
            $inner.local_addr()
        }

        #[inline]
        fn resolve(&mut $this, to: SocketAddr) -> Option<PathId> {
            $inner.resolve(to)
        }

        fn stamp_arrivals(&mut $this) -> bool {
            $inner.stamp_arrivals()
        }

        fn arrived(&$this) -> Option<u64> {
            $inner.arrived()
        }

        fn find(&mut $this, address: SocketAddr) -> Option<PathId> {
            $inner.find(address)
        }

        fn address(&$this, path: PathId) -> Option<SocketAddr> {
            $inner.address(path)
        }

        fn path(&$this, path: PathId) -> Path {
            $inner.path(path)
        }

        fn poll_error(&mut $this) -> Option<(SocketAddr, PathError)> {
            $inner.poll_error()
        }

        fn sealed_paths(&mut $this) -> Option<&mut dyn $crate::SealedPaths> {
            $inner.sealed_paths()
        }

        fn set_receive_budget(&mut $this, datagrams: usize) {
            $inner.set_receive_budget(datagrams);
        }

        fn receive_capacity(&$this) -> usize {
            $inner.receive_capacity()
        }
    };
}

/// Delegates the methods of [`Link`] about sockets, examinations and capabilities to an inner link.
macro_rules! delegate_sockets {
    ($this:ident, $inner:expr) => {
        #[inline]
        fn look_everywhere(&mut $this) {
            $inner.look_everywhere();
        }

        fn descriptors(&$this) -> Descriptors {
            $inner.descriptors()
        }

        fn examination(&$this, path: PathId) -> Option<Examination> {
            $inner.examination(path)
        }

        fn wanted_examination(&mut $this) -> Option<Examination> {
            $inner.wanted_examination()
        }

        fn examined(&mut $this, examined: Examined) {
            $inner.examined(examined);
        }

        fn capabilities(&$this) -> &Capabilities {
            $inner.capabilities()
        }
    };
}

pub(crate) use {delegate_link, delegate_paths, delegate_sockets};

/// A boxed link is a link; `apus-wire` implements [`PacketSink`] for boxes.
impl<L: Link + ?Sized> Link for Box<L> {
    delegate_link!(self, **self);
    delegate_sockets!(self, **self);

    #[inline]
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        (**self).recv(receiver)
    }

    #[inline]
    fn flush(&mut self) {
        (**self).flush();
    }

    fn due_in(&self) -> Option<Duration> {
        (**self).due_in()
    }

    fn counters(&self) -> LinkCounters {
        (**self).counters()
    }

    fn own_counters(&self) -> LinkCounters {
        (**self).own_counters()
    }
}

/// Features of the kernel that a link found when it was opened. [`Display`](fmt::Display) formats them in one line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Kind of link, for instance `udp`.
    pub kind: &'static str,
    /// Whether many packets of one size leave by one system call and one pass through the network stack (`UDP_SEGMENT`).
    pub gso: bool,
    /// Whether several packets of one flow arrive as one (`UDP_GRO`).
    pub gro: bool,
    /// Whether small packets for one peer share a datagram.
    pub bundles: bool,
    /// Whether errors of the network are reported with their peer's address (`IP_RECVERR`).
    pub error_queue: bool,
    /// Whether packets are never fragmented and their size follows the path's MTU (`IP_PMTUDISC_PROBE`).
    pub path_mtu: bool,
    /// Whether the kernel counts the packets that the receive buffer refused (`SO_MEMINFO`).
    pub drop_counter: bool,
    /// Whether one socket serves IPv6 and IPv4 peers.
    pub dual_stack: bool,
    /// Whether connected sockets send to peers on this machine, which saves the kernel the route lookup.
    pub connected_sends: bool,
    /// Whether a separate socket at the same port receives long DATA packets.
    pub long_socket: bool,
    /// Requested receive buffer, in bytes.
    pub receive_buffer_wanted: usize,
    /// Receive buffer that the kernel accounts with, in bytes. The kernel doubles the granted size, because it charges its own
    /// bookkeeping too: a request granted in full shows as twice `receive_buffer_wanted`.
    pub receive_buffer: usize,
    /// Send buffer that the kernel accounts with, in bytes; doubled in the same way.
    pub send_buffer: usize,
}

impl Capabilities {
    /// Returns whether the kernel granted the requested receive buffer. If not, `net.core.rmem_max` is too low.
    pub fn receive_buffer_granted(&self) -> bool {
        self.receive_buffer >= 2 * self.receive_buffer_wanted
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            ("gso", self.gso),
            ("gro", self.gro),
            ("bundles", self.bundles),
            ("error-queue", self.error_queue),
            ("path-mtu", self.path_mtu),
            ("drop-counter", self.drop_counter),
            ("dual-stack", self.dual_stack),
            ("connected-sends", self.connected_sends),
            ("long-socket", self.long_socket),
        ];
        f.write_str(self.kind)?;
        for (name, there) in flags {
            write!(f, " {}{name}", if there { '+' } else { '-' })?;
        }
        write!(
            f,
            " receive-buffer={} (wanted {})",
            self.receive_buffer / 2,
            self.receive_buffer_wanted
        )?;
        write!(f, " send-buffer={}", self.send_buffer / 2)
    }
}

macro_rules! counters {
    ({} $($(#[doc = $doc:literal])+ $name:ident: $unit:ident,)+) => {
        /// Counters of a link since it was opened.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct LinkCounters { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl LinkCounters {
            /// Returns each counter with its name, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Returns every counter without its name, in the same order.
            #[inline]
            pub fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name),+].into_iter()
            }

            /// Adds the counters of another link.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

apus_metrics::link_counters! { counters! {} }
