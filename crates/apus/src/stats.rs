//! What a node has done.

use apus_net::LinkCounters;
use apus_proto::Counters;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// How messages got to the application. Only ever grows.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct DeliveryCounters { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl DeliveryCounters {
            pub(crate) const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// Every counter with its name, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Turns of the engine, by any thread.
    turns,
    /// Turns of the engine by the background thread.
    background_turns,
    /// Times the safety timer forced the background thread: nobody had turned the engine for the
    /// mode's suspend timeout.
    safety_turns,
    /// Messages put where they are waited for: requests, and results of calls.
    messages,
    /// Sleeps of threads and tasks that were ended for a message. See [`PortStats::handoffs`].
    handoffs,
    /// Times a sleeping thread or a task was woken by another thread, for a message or to lead.
    wake_ups,
    /// Sleeps of waiting threads after which there was no message for them: ended by a packet that
    /// completed none, by a timer, or to lead.
    sleeps_in_vain,
    /// Times a waiting thread slept on the link.
    link_sleeps,
    /// Times a waiting thread or the background thread slept on a timer instead.
    deferred_sleeps,
    /// Times a waiting thread slept until another thread woke it.
    parks,
    /// Waits in which polling found the message.
    spins_won,
    /// Waits in which polling was in vain.
    spins_lost,
    /// Panics of handlers that [`Service::serve`](crate::Service::serve) went on after.
    handler_panics,
}

/// What was delivered to a client or a service. From [`Client::stats`](crate::Client::stats) and
/// [`Service::stats`](crate::Service::stats).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct PortStats {
    /// Messages put where they are waited for: requests, and results of calls.
    pub messages: u64,
    /// Sleeps of its threads and tasks that were ended for a message. Whoever ends it: the
    /// thread that turned the engine, or the kernel because the thread slept on the link or on a
    /// timer and then found a message itself. A thread that was polling, or had not fallen asleep
    /// yet, counts nothing. The background thread's own sleep on the link is not a receiver's.
    pub handoffs: u64,
}

impl PortStats {
    pub(crate) const fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.handoffs += other.handoffs;
    }

    /// Handoffs for each message: 1 when every message meets a sleeping receiver, 0 when all are
    /// polled for, less than 1 when one wake-up serves several messages. More than 1 is a fault.
    /// `None` before the first message.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn handoffs_per_message(&self) -> Option<f64> {
        (self.messages > 0).then(|| self.handoffs as f64 / self.messages as f64)
    }
}

/// Everything a node counts, since it was started. From [`Node::stats`](crate::Node::stats).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Calls, packets, grants, retries, refusals.
    pub protocol: Counters,
    /// Datagrams, bytes, system calls, kernel drops.
    pub link: LinkCounters,
    /// Turns, wake-ups, polling.
    pub delivery: DeliveryCounters,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.protocol.add(&other.protocol);
        self.link.add(&other.link);
        self.delivery.add(&other.delivery);
    }

    /// Every counter with its name: protocol, then link, then delivery.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.protocol.iter().chain(self.link.iter()).chain(self.delivery.iter())
    }
}
