//! The times at which the engine's counters are published.

use apus_net::LinkCounters;
use apus_proto::{Counters, Time};

use super::Engine;
use crate::observe::publication::{ASK_EVERY, EVERY, Publication};
use crate::observe::stats::{
    DeliveryCounters, HandshakeCounters, IdentityGauges, MemoryCounters, StreamCounters,
};

/// Counters that are kept outside the engine's lock.
pub(crate) struct CountedOutside {
    pub(crate) wake_ups: u64,
    pub(crate) lock_misses: u64,
}

impl Engine {
    /// Counters of shared memory.
    pub(crate) fn memory_counters(&self) -> MemoryCounters {
        self.neighbours.as_ref().map(|neighbours| neighbours.counters).unwrap_or_default()
    }

    /// Returns whether the counters are due although no thread is about to sleep.
    #[inline]
    pub(crate) fn publication_is_due(&self) -> bool {
        self.publication.as_ref().is_some_and(|publication| publication.next <= self.turns.last)
    }

    /// Runs before the lock is released. Publishes the counters if the next thread to turn the engine sleeps, or if they are due.
    #[inline]
    pub(crate) fn publish(&mut self, outside: impl FnOnce() -> CountedOutside) {
        if self.publication_is_due()
            || self.publication.is_some() && self.leadership.sleeper().is_some()
        {
            self.publish_now(outside());
        }
    }

    #[inline(never)]
    fn publish_now(&mut self, outside: CountedOutside) {
        let Some(publication) = &mut self.publication else { return };
        let now = self.turns.last;
        publication.next = now + EVERY;
        let mut link = self.link.own_counters();
        if publication.asked == Time::ZERO || now.saturating_since(publication.asked) > ASK_EVERY {
            publication.asked = now;
            publication.drops = self.link.counters().receive_buffer_drops;
        }
        link.receive_buffer_drops = publication.drops;
        let memory = self.neighbours.as_ref().map(|it| it.counters).unwrap_or_default();
        let mut delivery = self.counters;
        let sockets = self.mail.stats();
        (delivery.messages, delivery.handoffs) = (sockets.messages, sockets.handoffs);
        (delivery.wake_ups, delivery.lock_misses) = (outside.wake_ups, outside.lock_misses);
        let Publication { section, written, .. } = &mut **publication;
        section.write_parts(now, |places| {
            written.protocol.write(places, self.endpoint.counters(), Counters::values);
            written.link.write(places, &link, LinkCounters::values);
            written.memory.write(places, &memory, MemoryCounters::values);
            written.delivery.write(places, &delivery, DeliveryCounters::values);
            written.streams.write(places, &self.streams, StreamCounters::values);
            written.handshakes.write(places, &self.handshakes, HandshakeCounters::values);
            written.identity.write(places, &self.identity, IdentityGauges::values);
        });
        if let Some(forwarder) =
            self.neighbours.as_mut().and_then(|it| it.attachments.forwarder.as_mut())
        {
            forwarder.publish(now);
        }
    }
}
