//! Counters of a node.

use apus_net::LinkCounters;
use apus_proto::Counters;

macro_rules! counters {
    ($(#[doc = $text:literal])+ $counters:ident; $($(#[doc = $doc:literal])+ $name:ident,)+) => {
        $(#[doc = $text])+
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct $counters { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl $counters {
            pub(crate) const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// All counters with their names, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// What has gone through memory that is shared with other processes of this host. Counters never decrease.
    MemoryCounters;
    /// Nodes with which memory was shared.
    pairs_met,
    /// Those of them with which none is shared any more. `pairs_met - pairs_ended` nodes are reached through memory now.
    pairs_ended,
    /// Those of them that broke the protocol.
    pairs_broken,
    /// Processes that listened where a node of this host would, and did not show in time that they are that node; and processes that
    /// connected to this node and did not show which node they are.
    meetings_failed,
    /// Messages to other processes, among them refusals and probes.
    messages_sent,
    /// Messages from other processes.
    messages_received,
    /// Bytes of the bodies sent.
    bytes_sent,
    /// Bytes of the bodies received.
    bytes_received,
}

counters! {
    /// Byte streams ([`Stream`](crate::Stream)) of the node. Counters never decrease.
    StreamCounters;
    /// Streams that this node has begun to open.
    opened,
    /// Streams that were opened at its listeners and may be accepted.
    accepted,
    /// Streams that were refused because as many as the backlog allows waited to be accepted, or the listener was dropped.
    refused_backlog,
    /// Messages about streams that the listener does not know.
    refused_unknown,
    /// Messages to listeners that belong to no stream at all.
    refused_malformed,
    /// Streams that ended because the peer sent what the rules of streams forbid.
    violations,
    /// Streams that ended, or were not opened, because the peer was out of reach.
    lost,
    /// Streams that the peer ended before both sides had received everything.
    reset_by_peer,
    /// Streams that this side ended so: the application dropped them before it had read everything.
    reset,
}

counters! {
    /// How messages reached the application. Counters never decrease.
    DeliveryCounters;
    /// Turns of the engine, by any thread.
    turns,
    /// Turns of the engine by the background thread.
    background_turns,
    /// Times the safety timer forced the background thread, because no thread had turned the engine for the mode's suspend
    /// timeout.
    safety_turns,
    /// Delivered messages: requests, and results of calls.
    messages,
    /// Sleeps of threads and tasks that ended with a message. See [`PortStats::handoffs`].
    handoffs,
    /// Times a sleeping thread or a task was woken by another thread, for a message or to lead.
    wake_ups,
    /// Sleeps of waiting threads that ended without a message for them: by a packet that completed no message, by a timer, or
    /// to lead.
    sleeps_in_vain,
    /// Times a waiting thread slept on the link.
    link_sleeps,
    /// Times a waiting thread or the background thread slept on a timer instead.
    deferred_sleeps,
    /// Times a waiting thread slept until another thread woke it.
    parks,
    /// Waits in which polling found the message.
    spins_won,
    /// Waits in which polling found no message.
    spins_lost,
    /// Panics of handlers in [`Service::serve`](crate::Service::serve).
    handler_panics,
}

/// Counters of the messages delivered to a client or a service. From [`Client::stats`](crate::Client::stats) and
/// [`Service::stats`](crate::Service::stats).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct PortStats {
    /// Delivered messages: requests, and results of calls.
    pub messages: u64,
    /// Sleeps of its threads and tasks that ended with a message. The sleep is ended by the thread that turned the engine, or
    /// by the kernel if the thread slept on the link or on a timer and then found a message itself. A thread that was polling,
    /// or had not yet fallen asleep, does not count. The background thread's own sleep on the link does not count.
    pub handoffs: u64,
}

impl PortStats {
    pub(crate) const fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.handoffs += other.handoffs;
    }

    /// Handoffs per message: 1 if every message meets a sleeping receiver, 0 if polling finds every message, less than 1 if one
    /// wake-up serves several messages. More than 1 is a bug. `None` before the first message.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn handoffs_per_message(&self) -> Option<f64> {
        (self.messages > 0).then(|| self.handoffs as f64 / self.messages as f64)
    }
}

/// All counters of a node since its start. From [`Node::stats`](crate::Node::stats).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Calls, packets, grants, retries, refusals.
    pub protocol: Counters,
    /// Datagrams, bytes, system calls, kernel drops.
    pub link: LinkCounters,
    /// Calls between processes of this host.
    pub memory: MemoryCounters,
    /// Turns, wake-ups, polling.
    pub delivery: DeliveryCounters,
    /// Byte streams.
    pub streams: StreamCounters,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.protocol.add(&other.protocol);
        self.link.add(&other.link);
        self.memory.add(&other.memory);
        self.delivery.add(&other.delivery);
        self.streams.add(&other.streams);
    }

    /// All counters with their names: protocol, link, memory, delivery.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let near = self.memory.iter().chain(self.delivery.iter());
        self.protocol.iter().chain(self.link.iter()).chain(near)
    }
}
