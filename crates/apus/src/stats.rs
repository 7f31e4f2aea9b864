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
    /// Times a sleeping thread or a task was woken by another thread: handoffs.
    wake_ups,
    /// Times a waiting thread slept on the link.
    link_sleeps,
    /// Times a waiting thread slept until another thread woke it.
    parks,
    /// Waits in which polling found the message.
    spins_won,
    /// Waits in which polling was in vain.
    spins_lost,
}

/// Everything a node counts, since it was started. From [`Node::stats`](crate::Node::stats).
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// Every counter with its name: protocol, then link, then delivery.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.protocol.iter().chain(self.link.iter()).chain(self.delivery.iter())
    }
}
