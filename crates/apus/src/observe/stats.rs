//! Counters of a node.

use apus_metrics::GaugeFold;
use apus_metrics::layout::ABSENT;
use apus_net::LinkCounters;
use apus_proto::Counters;

macro_rules! counters {
    ({$(#[doc = $text:literal])+ $counters:ident} $($(#[doc = $doc:literal])+ $name:ident: $unit:ident,)+) => {
        $(#[doc = $text])+
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct $counters { $($(#[doc = $doc])+ pub $name: u64,)+ }

        impl $counters {
            #[allow(dead_code, reason = "those of processes are never summed")]
            pub(crate) const fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// All counters with their names, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// All counters without their names, in the same order.
            #[inline]
            pub(crate) fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name),+].into_iter()
            }
        }
    };
}

apus_metrics::memory_counters! { counters! {
    /// Messages through memory that is shared with other processes of this host. Counters never decrease.
    MemoryCounters
} }

apus_metrics::stream_counters! { counters! {
    /// Byte streams ([`Stream`](crate::Stream)) of the node. Counters never decrease.
    StreamCounters
} }

apus_metrics::handshake_counters! { counters! {
    /// Handshakes of sealed paths ([`Config::tls_cert`](crate::Config::tls_cert)). Counters never decrease.
    HandshakeCounters
} }

apus_metrics::delivery_counters! { counters! {
    /// The ways in which messages reached the application. Counters never decrease.
    DeliveryCounters
} }

apus_metrics::process_counters! { counters! {
    /// Counters of an engine for each attached process.
    ProcessCounters
} }

macro_rules! gauges {
    ({$(#[doc = $text:literal])+ $gauges:ident} $($(#[doc = $doc:literal])+ $name:ident: $unit:ident $fold:ident,)+) => {
        $(#[doc = $text])+
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct $gauges { $($(#[doc = $doc])+ pub $name: Option<u64>,)+ }

        impl $gauges {
            /// Takes the gauges of another engine of the node.
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name = GaugeFold::$fold.fold(self.$name, other.$name);)+
            }

            /// All gauges with their names, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// All gauges as a file of counters has them, in the same order.
            #[inline]
            pub(crate) fn values(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$name.unwrap_or(ABSENT)),+].into_iter()
            }
        }
    };
}

apus_metrics::identity_gauges! { gauges! {
    /// The state of the certificates of a node and its peers ([`Config::tls_cert`](crate::Config::tls_cert)). `None`: there is no
    /// such certificate.
    IdentityGauges
} }

/// Counters of the messages delivered to a client or a service. From [`Client::stats`](crate::Client::stats) and
/// [`Port::stats`](crate::Port::stats).
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
    ///
    /// ```no_run
    /// # fn example(port: &apus::Port) {
    /// if let Some(handoffs) = port.stats().handoffs_per_message() {
    ///     println!("{handoffs:.2} handoffs per message");
    /// }
    /// # }
    /// ```
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn handoffs_per_message(&self) -> Option<f64> {
        (self.messages > 0).then(|| self.handoffs as f64 / self.messages as f64)
    }
}

/// All counters of a node since its start, and its gauges. From [`Node::stats`](crate::Node::stats).
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
    /// Handshakes of sealed paths.
    pub handshakes: HandshakeCounters,
    /// The state of certificates: the only values that may fall.
    pub identity: IdentityGauges,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.protocol.add(&other.protocol);
        self.link.add(&other.link);
        self.memory.add(&other.memory);
        self.delivery.add(&other.delivery);
        self.streams.add(&other.streams);
        self.handshakes.add(&other.handshakes);
        self.identity.add(&other.identity);
    }

    /// All counters with their names: protocol, link, memory, delivery. The counters of streams and handshakes are in
    /// [`streams`](Self::streams) and [`handshakes`](Self::handshakes) alone, because other counters could have the same names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let near = self.memory.iter().chain(self.delivery.iter());
        self.protocol.iter().chain(self.link.iter()).chain(near)
    }
}
