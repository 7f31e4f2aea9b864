//! The parts of an endpoint that all its RPCs share.

use std::collections::VecDeque;
use std::time::Duration;

use apus_wire::Header;

use crate::budget::Total;
use crate::config::{Config, LINK_MBPS};
use crate::control::{Body, Control, Reply};
use crate::counters::{Counters, Sampler};
use crate::cutoffs::{Traffic, unscheduled_priority};
use crate::downlink::Downlink;
use crate::endpoint::event::{Event, SpentBodies};
use crate::grant::Grants;
use crate::host::HostLoad;
use crate::incoming::Incoming;
use crate::outgoing::{Order, SHORT};
use crate::pacer::Pacer;
use crate::rpc::Rpc;
use crate::short_bodies::ShortBodies;
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::Sockets;
use crate::time::Time;
use crate::timer::{TICK, Wheel};
use crate::trace::Tracer;
use crate::within_host::ReceiveDrops;

/// Minimum time between two CUTOFFS packets to one peer.
pub(super) const CUTOFFS_INTERVAL: Duration = Duration::from_millis(1);

/// Upper bound on queued control packets: many thousand RPCs may need one at the same moment.
const CONTROL_QUEUE_MAX: usize = 1 << 16;

/// Upper bound on queued answers to unknown nodes.
const REPLIES_MAX: usize = 1_024;

/// Time for which short calls count as under way after one was answered or ended.
const SHORT_CALLS: Duration = Duration::from_micros(300);

/// Lower bound on the unscheduled bytes in flight to one peer, for any receive buffer.
const FLIGHT_MIN: u64 = 1_500;

/// The state of an endpoint other than its RPCs and its peers.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) sockets: Sockets,
    pub(super) total: Total,
    /// Load of the other endpoints of the host.
    pub(super) others: HostLoad,
    pub(super) order: Order,
    pub(super) pacer: Pacer,
    pub(super) grants: Grants,
    pub(super) downlink: Downlink,
    pub(super) traffic: Traffic,
    pub(super) wheel: Wheel,
    pub(super) outbox: Outbox,
    /// At most one event for each call, and one for each request in service, which bounds the queue.
    pub(super) events: VecDeque<Event>,
    /// Bodies of ended messages and refused calls, for the caller to drop.
    pub(super) spent: SpentBodies,
    pub(super) short_bodies: ShortBodies,
    /// Upper bound on the unscheduled bytes in flight to one peer.
    pub(super) flight_max: u64,
    /// Number of unfinished calls of this endpoint.
    pub(super) outstanding: u32,
    /// Birth of the next message.
    pub(super) births: u64,
    /// Time at which a call with a short request and a short response was last answered here, or ended.
    pub(super) last_short_call: Option<Time>,
    /// Packets that the link's receive buffer refused.
    pub(super) drops: ReceiveDrops,
    pub(super) tracer: Tracer,
    pub(super) sampler: Sampler,
}

/// Outgoing control packets.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Packets to peers.
    pub(super) control: VecDeque<Control>,
    /// Packets to nodes without state here.
    pub(super) replies: VecDeque<Reply>,
}

impl Outbox {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.replies.is_empty()
    }
}

impl Parts {
    pub(super) fn new(config: Config, first_version: u16) -> Self {
        Self {
            counters: Counters::default(),
            sockets: Sockets::new(),
            total: Total::default(),
            others: HostLoad::default(),
            order: Order::default(),
            pacer: Pacer::new(
                config.pacing,
                config.link_mbps_set().unwrap_or(LINK_MBPS),
                config.pacing_backlog,
            ),
            grants: Grants::new(&config),
            downlink: Downlink::new(config.link),
            traffic: Traffic::new(config.priorities, first_version)
                .with_cutoffs(config.cutoffs, config.learn_cutoffs),
            wheel: Wheel::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            spent: SpentBodies::default(),
            short_bodies: ShortBodies::default(),
            flight_max: u64::MAX,
            outstanding: 0,
            births: 0,
            last_short_call: None,
            drops: ReceiveDrops::default(),
            tracer: Tracer::off(),
            sampler: Sampler::new(),
            config,
        }
    }

    /// Reports that the client of a watched request no longer waits.
    #[cold]
    pub(super) fn note_cancelled(&mut self, socket: SocketKey, rpc: RpcKey) {
        self.events.push_back(Event::Cancelled { socket, rpc });
    }

    /// Queues a control packet. A packet without room is recovered as if the network had lost it.
    pub(super) fn control(&mut self, peer: PeerKey, header: Header, body: Body) {
        //= docs/protocol.md#hostile-6
        if self.outbox.control.len() >= CONTROL_QUEUE_MAX {
            self.counters.dropped_control += 1;
            return;
        }
        self.outbox.control.push_back(Control { peer, header, body });
    }

    /// Queues an answer to a node without state here.
    pub(super) fn reply_to_unknown(&mut self, reply: Reply) {
        //= docs/protocol.md#contact-3
        if self.outbox.replies.len() >= REPLIES_MAX {
            self.counters.dropped_replies += 1;
            return;
        }
        self.outbox.replies.push_back(reply);
    }

    /// Sets the timer so that an RPC is examined when it is due.
    #[inline]
    pub(super) fn arm(&mut self, now: Time, key: RpcKey, rpc: &mut Rpc) {
        let timeout = self.config.peer_timeout;
        let due = if rpc.probing.queued {
            // Until its turn, it is examined only to give it up in time.
            let due = rpc.expires.unwrap_or(Time::from_nanos(u64::MAX));
            due.min((rpc.last_rx + timeout).max(now + timeout / 4))
        } else {
            rpc.due(timeout)
        };
        self.arm_at(now, due, key, rpc);
    }

    /// Sets the timer so that an RPC is examined by `due`.
    #[inline]
    pub(super) fn arm_at(&mut self, now: Time, due: Time, key: RpcKey, rpc: &mut Rpc) {
        // An RPC that is due already and yet has nothing to do is examined again in the next tick.
        let due = due.max(Time::from_nanos(now.as_nanos() + 1));
        if rpc.armed <= now || due + TICK <= rpc.armed {
            rpc.armed = self.wheel.insert(now, due, key);
        }
    }

    /// Returns a number unique among the messages of this endpoint, which orders messages of equal rank.
    #[inline]
    pub(super) fn next_birth(&mut self) -> u64 {
        self.births += 1;
        self.births - 1
    }

    /// Records a call with both its messages. It is short if both are.
    #[inline]
    pub(super) fn note_call(&mut self, now: Time, request: u64, response: u64) {
        if request.max(response) < u64::from(SHORT) {
            self.last_short_call = Some(now);
        }
    }

    /// Counts a complete message of a compact bundle. The bytes of an empty message count as one, as those of its packet do.
    #[inline]
    pub(super) fn note_short_message(&mut self, length: usize) {
        self.counters.data_bytes_received += length as u64;
        self.counters.message_received(length as u64);
        //= docs/protocol.md#prio-1
        self.traffic.message(length as u32);
    }

    /// Returns whether short calls are under way, which would have to wait while a long burst is copied.
    #[inline]
    pub(super) fn has_short_calls(&self, now: Time) -> bool {
        self.last_short_call.is_some_and(|last| now.saturating_since(last) < SHORT_CALLS)
    }

    /// Creates a message that begins to arrive.
    pub(super) fn incoming(&mut self, length: u32, granted: u32, now: Time) -> Incoming {
        //= docs/protocol.md#unsched-1
        let granted = granted.max(1);
        let birth = self.next_birth();
        let mut message = if self.config.keep_payload {
            Incoming::new(length, granted, birth, now)
        } else {
            Incoming::counted(length, granted, birth, now)
        };
        let table = Some(self.traffic.current());
        let level = unscheduled_priority(table, self.config.priorities, length);
        message.grant(message.granted, level);
        message
    }

    /// Adopts the rate of the link, which has become known.
    pub(super) fn follow_link(&mut self, link_mbps: u64) {
        let before = self.config.max_incoming;
        self.config.follow_link(link_mbps);
        self.pacer.set_rate(link_mbps);
        self.pacer.set_backlog(self.config.pacing_backlog);
        self.downlink.set_link(self.config.link);
        if self.config.max_incoming != before {
            self.grants.set_limit(&self.config);
        }
    }

    pub(super) fn set_receive_capacity(&mut self, bytes: u64) {
        self.grants.set_capacity(bytes);
        //= docs/protocol.md#unsched-2
        self.flight_max = (bytes / 4).max(FLIGHT_MIN);
    }

    /// Returns the upper bound on the unscheduled bytes of one message. One message may always begin, and must leave room for
    /// another sender's in a small buffer.
    #[inline]
    pub(super) fn unscheduled_most(&self) -> u32 {
        //= docs/protocol.md#unsched-2
        u32::try_from(self.flight_max / 2).unwrap_or(u32::MAX)
    }

    /// Returns the upper bound on the length of a message that is short and goes without a grant, whatever was measured.
    #[inline]
    pub(super) fn longest_short(&self) -> usize {
        let least = self.config.unscheduled_min.min(self.config.unscheduled);
        least.min(self.unscheduled_most()).min(self.config.message_max).min(SHORT - 1) as usize
    }

    /// Returns the version that a peer with this salt should echo in its DATA. It differs from peer to peer, so that an echo proves
    /// that the peer receives at its address.
    #[inline]
    pub(super) fn version_for(&self, salt: u16) -> u16 {
        self.traffic.current().version.wrapping_add(salt).max(1)
    }
}
