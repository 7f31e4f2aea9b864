//! Grants.

use std::time::Duration;

use super::format::Kind;
use super::message::Incoming;
use super::{Key, Module};

/// Upper bound on messages granted at a time.
const OVERCOMMIT: usize = 8;
/// Bytes of a grant out of turn for the oldest message.
const FIFO_BYTES: u32 = 50_000;
/// Interval of these grants: 5 % of 25 Gb/s.
const FIFO_INTERVAL: Duration = Duration::from_micros(320);
const FIFO_PRIORITY: u8 = 6;
/// The highest level of scheduled packets.
const SCHEDULED_MAX: usize = 3;

impl Module {
    /// After a packet of a message: the message may become active, and be granted more.
    pub(super) fn grant(&mut self, now: Duration, key: Key) {
        let Some(message) = self.rpcs.get(&key).and_then(|rpc| rpc.incoming.as_ref()) else {
            return;
        };
        let remaining = message.remaining();
        if remaining == 0 {
            self.grants.forget(key);
            return;
        }
        self.activate(key, remaining);
        let received = message_received(self, key);
        let total: u64 = self.total_incoming();
        let active = self.grants.active.len() as u64;
        let Some(rank) = self.rank(key) else { return };
        let window = (self.settings.max_incoming / (active + 1)) as u32;
        let max_incoming = self.settings.max_incoming;
        let message = self.message_mut(key);
        let wanted = (received + window).min(message.length()).saturating_sub(message.granted);
        let more = u64::from(wanted).min(max_incoming.saturating_sub(total)) as u32;
        // A fully granted message keeps receiving grants of 0 bytes until its last byte arrives.
        if more > 0 || message.granted == message.length() {
            message.granted += more;
            let priority = (SCHEDULED_MAX - rank.min(SCHEDULED_MAX))
                .saturating_sub((SCHEDULED_MAX + 1).saturating_sub(self.grants.active.len()));
            self.send_grant(key, priority as u8);
            self.grant_oldest(now);
        }
    }

    fn activate(&mut self, key: Key, remaining: u32) {
        if self.grants.active.iter().any(|(active, _)| *active == key) {
            return;
        }
        if self.grants.active.len() == OVERCOMMIT {
            let longest = (0..OVERCOMMIT).max_by_key(|&slot| self.grants.active[slot].1);
            match longest {
                Some(slot) if self.grants.active[slot].1 > remaining => {
                    self.grants.active.remove(slot);
                }
                _ => return,
            }
        }
        self.grants.active.push((key, remaining));
    }

    /// Number of active messages that outrank this one.
    fn rank(&self, key: Key) -> Option<usize> {
        let (_, own) = *self.grants.active.iter().find(|(active, _)| *active == key)?;
        Some(self.grants.active.iter().filter(|&&(_, remaining)| remaining < own).count())
    }

    fn message_mut(&mut self, key: Key) -> &mut Incoming {
        let rpc = self.rpcs.get_mut(&key).expect("active messages exist");
        rpc.incoming.as_mut().expect("active messages are arriving")
    }

    fn total_incoming(&self) -> u64 {
        let messages = self.rpcs.values().filter_map(|rpc| rpc.incoming.as_ref());
        messages.map(|it| u64::from(it.granted.saturating_sub(it.length() - it.remaining()))).sum()
    }

    fn send_grant(&mut self, key: Key, priority: u8) {
        let rpc = &self.rpcs[&key];
        let (peer, header) = (rpc.peer, rpc.header(Kind::Grant));
        let granted = rpc.incoming.as_ref().map_or(0, |message| message.granted);
        let body = [&granted.to_be_bytes()[..], &[priority]].concat();
        self.counts.grants += 1;
        self.control(peer, header, &body);
    }

    fn grant_oldest(&mut self, now: Duration) {
        if now < self.grants.fifo_at + FIFO_INTERVAL {
            return;
        }
        self.grants.fifo_at = now;
        let oldest = self
            .rpcs
            .iter()
            .filter_map(|(&key, rpc)| Some((key, rpc.incoming.as_ref()?)))
            .filter(|(_, message)| message.granted < message.length())
            .min_by_key(|(_, message)| message.birth);
        let Some((key, _)) = oldest else { return };
        let message = self.message_mut(key);
        message.granted = (message.granted + FIFO_BYTES).min(message.length());
        self.send_grant(key, FIFO_PRIORITY);
    }
}

fn message_received(module: &Module, key: Key) -> u32 {
    let message = module.rpcs[&key].incoming.as_ref().expect("the caller has checked it");
    message.length() - message.remaining()
}
