//! What every link offers.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use apus_wire::{PacketReceiver, PacketSink, PathError, PathId};

use crate::path::Path;
use crate::paths::{Examination, Examined};
use crate::sleeper::Descriptors;

/// A way for Homa packets to travel between nodes.
///
/// Packets go out through [`PacketSink::send`], which only queues, and [`flush`](Self::flush), which hands the queue
/// to the kernel. Everything here is non-blocking. See the [crate's documentation](crate) for the order of calls.
pub trait Link: PacketSink + Send {
    /// The address this link is bound to, with the port the kernel chose if port 0 was asked for.
    fn local_addr(&self) -> SocketAddr;

    /// Takes one batch of datagrams from the network and gives `receiver` each packet in them (offload segments and bundles are
    /// already taken apart). Returns the number of datagrams taken.
    ///
    /// A batch may be a single datagram although more are waiting, and none although something is there: a link with several
    /// sockets need not look at each of them each time. As long as a descriptor is ready, something is there. A link may
    /// have the kernel write payload where the receiver says that it belongs ([`PacketReceiver::receive_target`]).
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize;

    /// Has the next [`recv`](Self::recv) look at everything that this link receives by. By default nothing is done.
    fn look_everywhere(&mut self) {}

    /// The path to an address, new if need be. `None`: this link does not reach it. No system call.
    ///
    /// A path that nobody holds may be forgotten when some thousands of others were resolved after it.
    fn resolve(&mut self, to: SocketAddr) -> Option<PathId>;

    /// The path to an address, if it has one.
    fn find(&mut self, address: SocketAddr) -> Option<PathId>;

    /// The address that a path leads to, unless the path is forgotten.
    fn address(&self, path: PathId) -> Option<SocketAddr>;

    /// Hands everything queued by `send` to the kernel. What the kernel does not take is counted and lost.
    fn flush(&mut self);

    /// The next asynchronous error, for instance that a peer's port is closed. Costs a comparison when there is none.
    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)>;

    /// Readiness of one of these descriptors (`POLLIN` or `POLLERR`) means that [`recv`](Self::recv) or
    /// [`poll_error`](Self::poll_error) has something; call `recv` first.
    fn descriptors(&self) -> Descriptors;

    /// Time until `recv` or `flush` should be called again although the descriptor says nothing, when a wrapper holds
    /// packets back (the fault link's delay). `None`: only the descriptor matters.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Has the kernel note from now on when datagrams arrive (`SO_TIMESTAMPING`), for [`arrived`](Self::arrived). False, the default:
    /// this link cannot.
    fn stamp_arrivals(&mut self) -> bool {
        false
    }

    /// When the first datagram of the last batch reached the kernel, in nanoseconds since 1970. `None`, the default: this is not
    /// known.
    fn arrived(&self) -> Option<u64> {
        None
    }

    /// What was probed when the link was opened.
    fn capabilities(&self) -> &Capabilities;

    /// Takes at most so many datagrams at once from now on, if the link would take more. Ignored by links that take one at a
    /// time.
    fn set_receive_budget(&mut self, _datagrams: usize) {}

    /// Payload bytes the receive buffer can hold; a receiver that grants more than this asks for drops.
    fn receive_capacity(&self) -> usize;

    /// What is known of a path; [`Path::UNKNOWN`] if it was not examined yet.
    fn path(&self, path: PathId) -> Path;

    /// What to ask the kernel before messages go by this path. `None`, the default: nothing, for now. Limits that the network has
    /// set expire, so ask about once in a second for a path that is sent by.
    fn examination(&self, path: PathId) -> Option<Examination> {
        let _ = path;
        None
    }

    /// The next examination of a path that messages go by although it was not examined, because a peer has moved for instance: ask
    /// some times in a second. `None`, the default: there is none.
    fn wanted_examination(&mut self) -> Option<Examination> {
        None
    }

    /// Takes the answers of an examination.
    fn examined(&mut self, examined: Examined) {
        let _ = examined;
    }

    /// Everything counted since the link was opened. May cost a system call.
    fn counters(&self) -> LinkCounters;

    /// The same without a system call: what only the kernel knows, which is
    /// [`receive_buffer_drops`](LinkCounters::receive_buffer_drops), may be too low.
    fn own_counters(&self) -> LinkCounters {
        self.counters()
    }
}

/// Hands the methods of [`PacketSink`] that are not about packets on to a link inside.
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

/// Hands the methods of [`Link`] that a wrapper does not change on to a link inside.
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

        #[inline]
        fn look_everywhere(&mut $this) {
            $inner.look_everywhere();
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

        fn examination(&$this, path: PathId) -> Option<Examination> {
            $inner.examination(path)
        }

        fn wanted_examination(&mut $this) -> Option<Examination> {
            $inner.wanted_examination()
        }

        fn examined(&mut $this, examined: Examined) {
            $inner.examined(examined);
        }

        fn poll_error(&mut $this) -> Option<(SocketAddr, PathError)> {
            $inner.poll_error()
        }

        fn descriptors(&$this) -> Descriptors {
            $inner.descriptors()
        }

        fn capabilities(&$this) -> &Capabilities {
            $inner.capabilities()
        }

        fn set_receive_budget(&mut $this, datagrams: usize) {
            $inner.set_receive_budget(datagrams);
        }

        fn receive_capacity(&$this) -> usize {
            $inner.receive_capacity()
        }
    };
}

pub(crate) use {delegate_link, delegate_paths};

/// A boxed link is a link; [`PacketSink`] for boxes is in `apus-wire`.
impl<L: Link + ?Sized> Link for Box<L> {
    delegate_link!(self, **self);

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

/// What a link found the kernel to offer when it was opened. [`Display`](fmt::Display) gives one line for people.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// Kind of link, for instance `udp`.
    pub kind: &'static str,
    /// Many packets of one size leave by one system call and one walk through the network stack (`UDP_SEGMENT`).
    pub gso: bool,
    /// Several packets of one flow arrive as one (`UDP_GRO`).
    pub gro: bool,
    /// Small packets for one peer share a datagram.
    pub bundles: bool,
    /// Errors of the network come back with the address they belong to (`IP_RECVERR`).
    pub error_queue: bool,
    /// Packets are never fragmented and their size follows the path's MTU (`IP_PMTUDISC_PROBE`).
    pub path_mtu: bool,
    /// The kernel says how many packets the receive buffer refused (`SO_MEMINFO`).
    pub drop_counter: bool,
    /// One socket serves IPv6 and IPv4 peers.
    pub dual_stack: bool,
    /// Peers on this machine are sent to by connected sockets, which saves the kernel the search for a route.
    pub connected_sends: bool,
    /// Long DATA packets are received by a socket of their own, at the same port.
    pub long_socket: bool,
    /// Receive buffer asked for, in bytes.
    pub receive_buffer_wanted: usize,
    /// Receive buffer the kernel accounts with, in bytes. The kernel doubles what it grants, because it charges its own
    /// bookkeeping too: a request that was granted in full shows here as twice `receive_buffer_wanted`.
    pub receive_buffer: usize,
    /// Send buffer the kernel accounts with, in bytes; doubled in the same way.
    pub send_buffer: usize,
}

impl Capabilities {
    /// The kernel granted the receive buffer that was asked for. If not, `net.core.rmem_max` is too low.
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
        /// Everything a link counts, since it was opened.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct LinkCounters { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl LinkCounters {
            /// Each counter with its name, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Every counter without its name, in the same order.
            #[inline]
            pub fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name),+].into_iter()
            }

            /// Adds what another link counted.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

apus_metrics::link_counters! { counters! {} }
