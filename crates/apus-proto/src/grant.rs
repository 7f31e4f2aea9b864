//! Grants: which senders may go on, and how far. The receiver's half of Homa.
//!
//! Messages that are not fully granted stand in two-level order: each peer's by bytes left, and
//! the peers by their best message. The first few of those (the degree of overcommitment) are
//! *active*, so that at most one message a sender is granted at a time (SIGCOMM 2018 section 3.5).
//! Nothing here is done per packet: packets mark their message, and [`Grants::issue`] runs once
//! for all that arrived together. Rules `grant-1` to `grant-9` of docs/protocol.md.

use std::collections::BTreeSet;
use std::time::Duration;

use apus_wire::{Cutoffs, Grant, Priority, Resend};

use crate::budget::Room;
use crate::config::{Config, LINK_MBPS};
use crate::control::Body;
use crate::cutoffs::unscheduled_priority;
use crate::host::HostLoad;
use crate::incoming::{Incoming, Rank};
use crate::link::LinkRate;
use crate::peer::Peer;
use crate::peers::Peers;
use crate::receive_buffer;
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;

/// Bytes the oldest message gets when its turn comes (`fifo_grant_increment`): a part of
/// `max_incoming`, within bounds.
const FIFO_PART: u64 = 8;
const FIFO_MIN: u64 = 3_000;
const FIFO_MAX: u64 = 50_000;

/// From this time for a packet on, every other packet brings a grant and not every one.
const SINGLY: Duration = Duration::from_micros(100);

/// Least bytes granted at a time over all messages: a capacity below would grant nothing to any.
const CAPACITY_MIN: u64 = 1_500;

/// Messages looked at for the oldest that uses what it was granted.
const OLDEST_MAX: usize = 64;

/// A message of which nothing came for so long is asked about before it is granted: the Linux module has given it up by then.
const SILENT: Duration = Duration::from_millis(100);

/// Messages of one peer that are asked about at once.
const PROBED_MAX: usize = 64;

/// While senders wait, the oldest message has its share of at least this part of what the link carries.
const FIFO_LINK_PART: u64 = 4;

/// Messages looked at for one that the budgets have room for: the longest of a budget, of another
/// budget that it is charged to, and so on.
const KEPT_MAX: usize = 8;

/// Where incoming messages and their peers are found. The endpoint's RPC table; in tests, a plain
/// one.
pub(crate) trait Messages {
    /// The message, and the peer that sends it, if it is still there.
    fn message(&mut self, key: RpcKey) -> Option<(&mut Incoming, PeerKey)>;

    /// What the budgets leave for the message.
    fn room(&self, key: RpcKey, peer: &Peer) -> Room;
}

#[derive(Debug)]
pub(crate) struct Grants {
    /// Best message of every peer that has one to grant, those of peers that stand behind last.
    order: BTreeSet<(bool, Rank, PeerKey)>,
    /// All messages that can be granted more, oldest first.
    oldest: BTreeSet<(u64, RpcKey)>,
    /// Bytes that senders may send and have not, over all messages.
    expected: u64,
    /// What of them single messages expect beyond `lone`: on paths that carry more than others.
    excess: u64,
    /// Most that one message expects on a path that carries no more than others.
    lone: u64,
    /// Messages whose bytes left or grants changed.
    dirty: Vec<RpcKey>,
    /// The order changed or room was made: look at it again.
    changed: bool,
    /// A message was not granted for want of room in a budget.
    starved: bool,
    /// Thousandths of bytes the oldest message has coming.
    fifo_credit: u64,
    /// Since when more senders wait than are granted, and what the oldest message has earned since then by grants to others, and
    /// in all.
    fifo_since: Option<Time>,
    fifo_by_grants: u64,
    fifo_earned: u64,
    /// Bytes it gets at a time.
    fifo_increment: u64,
    /// Most bytes the host should expect at a time.
    limit: u64,
    /// What this endpoint's receive buffer leaves for them, and what of that they take.
    capacity: u64,
    taken: u64,
    /// What the other endpoints of the host hold.
    others: HostLoad,
}

/// A grant to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Issued {
    pub(crate) rpc: RpcKey,
    pub(crate) grant: Grant,
    /// Bytes newly allowed.
    pub(crate) bytes: u64,
    pub(crate) how: How,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    InTurn,
    /// To the oldest message out of turn.
    Fifo,
    /// As a probe, because nothing of the message came for long: the last `bytes` before the grant's offset are asked for.
    Probe,
}

impl Issued {
    /// The probe that grants as much (rule `loss-5`).
    pub(crate) fn as_probe(&self) -> Body {
        let bytes = u32::try_from(self.bytes).expect("no more than a packet");
        let Grant { offset, priority } = self.grant;
        Body::Resend(Resend { offset: offset.saturating_sub(bytes), length: Some(bytes), priority })
    }
}

/// What this endpoint may take of the host's grants.
struct Part {
    /// Messages to grant at a time.
    active: usize,
    /// Window of a message on a path that was not measured.
    share: u64,
    /// What such a window takes of the receive buffer.
    buffer_share: u64,
    /// Bytes to expect.
    most: u64,
}

/// The priority levels grants use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels<'a> {
    pub(crate) max_scheduled: u8,
    pub(crate) fifo: Priority,
    /// The cutoffs of unscheduled packets, for ends of messages that go like those.
    pub(crate) table: &'a Cutoffs,
}

impl Grants {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            order: BTreeSet::new(),
            oldest: BTreeSet::new(),
            expected: 0,
            excess: 0,
            lone: config.max_incoming / 2,
            dirty: Vec::new(),
            changed: false,
            starved: false,
            fifo_credit: 0,
            fifo_since: None,
            fifo_by_grants: 0,
            fifo_earned: 0,
            fifo_increment: fifo_increment(config),
            limit: config.max_incoming,
            capacity: u64::MAX,
            taken: 0,
            others: HostLoad::default(),
        }
    }

    /// What is granted never takes more than three eighths of the link's receive buffer (rule `grant-6`): a quarter may not
    /// have been given back by the kernel, and the rest is for what comes unscheduled.
    pub(crate) fn set_capacity(&mut self, bytes: u64) {
        self.capacity = (bytes / 8 * 3).max(CAPACITY_MIN);
    }

    /// What the other endpoints of the host hold now.
    pub(crate) fn set_others(&mut self, others: HostLoad) {
        let room = others.expected < self.others.expected || others.granting < self.others.granting;
        self.changed |= room && !self.order.is_empty();
        self.others = others;
    }

    /// Bytes that senders may send and have not, over all messages.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// Senders with a message to grant.
    pub(crate) fn granting(&self) -> u64 {
        self.order.len() as u64
    }

    /// How the host's grants are divided between its endpoints, where `limit` bytes may be expected on a path.
    fn part(&self, config: &Config, limit: u64) -> Part {
        let most = config.overcommitment as u64;
        let (own, others) = (self.granting().min(most), self.others.granting.min(most));
        //= docs/protocol.md#host-1
        let active = if own + others <= most { own } else { most * own / (own + others) };
        let active = active.max(1);
        let all = (own + others).min(most).max(active);
        //= docs/protocol.md#host-2
        let fair = limit * active / (all + 1);
        let left = limit.saturating_sub(self.others.expected);
        Part {
            active: usize::try_from(active).expect("no more than the overcommitment"),
            share: limit / (all + 1),
            buffer_share: self.capacity / active,
            most: left.max(fair),
        }
    }

    /// What was set, or follows from the link, has changed.
    pub(crate) fn set_limit(&mut self, config: &Config) {
        self.limit = config.max_incoming;
        self.fifo_increment = fifo_increment(config);
        if self.expected == 0 {
            self.lone = self.limit / 2;
        }
    }

    /// Notes that a message got data, once until the next [`Grants::issue`].
    #[inline]
    pub(crate) fn mark(&mut self, key: RpcKey, message: &mut Incoming) {
        if !message.dirty {
            message.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Takes a message out of everything: it is complete or has ended.
    pub(crate) fn forget(
        &mut self,
        key: RpcKey,
        message: &mut Incoming,
        peer: &mut Peer,
        of: PeerKey,
    ) {
        self.unrank(key, message, peer, of);
        self.expect(message, 0, 0);
        self.resume(message, peer);
    }

    /// Nobody asks for the message any more: it goes on, or has ended.
    fn resume(&mut self, message: &mut Incoming, peer: &mut Peer) {
        if std::mem::take(&mut message.suspended) {
            peer.suspended = peer.suspended.saturating_sub(1);
            self.changed = true;
        }
    }

    /// What was granted has not come in time: the message loses its place until [`Grants::mark`] brings it back, and its sender goes
    /// behind the others until new bytes come from it (rule `grant-7`). What it was granted may still come, and is not `expected` any
    /// more when the sender counts as silent.
    pub(crate) fn suspend(
        &mut self,
        now: Time,
        key: RpcKey,
        message: &mut Incoming,
        expected: bool,
        peer: &mut Peer,
        of: PeerKey,
    ) {
        peer.stalled.get_or_insert(now);
        if !std::mem::replace(&mut message.suspended, true) {
            peer.suspended = peer.suspended.saturating_add(1);
        }
        if !expected {
            self.expect(message, 0, 0);
        }
        self.unrank(key, message, peer, of);
        let best = peer.grantable.first().copied();
        self.replace_best(best, peer, of);
        self.changed |= !peer.stands_still();
    }

    /// A peer has shown that it receives at its address, or sent new bytes: it stands where its messages do.
    pub(crate) fn bring_forward(&mut self, peer: &mut Peer, of: PeerKey) {
        peer.stalled = None;
        let best = peer.grantable.first().copied();
        self.replace_best(best, peer, of);
    }

    /// A sender may be granted that was not.
    #[inline]
    pub(crate) fn reconsider(&mut self) {
        self.changed = true;
    }

    /// There is more room in some budget.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        self.changed |= self.starved;
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.changed || !self.dirty.is_empty()
    }

    /// Grants what should be granted now. O(overcommitment + messages marked × log messages).
    pub(crate) fn issue(
        &mut self,
        now: Time,
        config: &Config,
        levels: Levels<'_>,
        messages: &mut impl Messages,
        peers: &mut Peers,
        issued: &mut Vec<Issued>,
    ) {
        self.rerank_marked(messages, peers);
        self.changed = false;
        self.starved = false;
        let part = self.part(config, self.limit);
        self.earn_by_time(now, config, part.active);
        self.issue_fifo(now, config, levels.fifo, messages, peers, issued);
        let active: Vec<(bool, Rank, PeerKey)> =
            //= docs/protocol.md#grant-2
            self.order.iter().take(part.active).copied().collect();
        for (rank, &(behind, (_, _, best), sender)) in active.iter().enumerate() {
            //= docs/protocol.md#grant-7
            if peers.get(sender).is_none_or(Peer::stands_still) {
                continue;
            }
            let Some((message, _)) = messages.message(best) else { continue };
            if now.saturating_since(message.progress) > SILENT {
                self.probe(now, sender, messages, peers, issued);
                continue;
            }
            // Charged when all are issued.
            let uncharged =
                |grant: &Issued| messages.message(grant.rpc).map(|(m, _)| m.uncharged());
            let issued_now = issued.iter().filter_map(uncharged).sum();
            let Some((key, affordable)) = self.affordable(best, issued_now, messages, peers) else {
                continue;
            };
            let Some((message, of)) = messages.message(key) else { continue };
            let Some(peer) = peers.get_mut(of) else { continue };
            if now.saturating_since(message.progress) > SILENT {
                self.probe(now, of, messages, peers, issued);
                continue;
            }
            let Some(bytes) = self.worth_granting(config, message, peer, &part, behind, affordable)
            else {
                continue;
            };
            let rest = u64::from(message.ungranted());
            let mut priority = scheduled_priority(levels.max_scheduled, rank, active.len());
            //= docs/protocol.md#prio-6
            if config.priority_by_rest && rest <= u64::from(peer.unscheduled(config)) {
                let rest = message.ungranted();
                let unscheduled = unscheduled_priority(Some(levels.table), config.priorities, rest);
                priority = priority.max(unscheduled);
            }
            let grant = self.extend(now, key, message, peer, bytes, priority);
            self.settle(key, message, peer, of);
            self.earn(bytes * u64::from(config.fifo_share));
            issued.push(Issued { rpc: key, grant, bytes, how: How::InTurn });
        }
    }

    /// How far a message may go on now, within its window, what may be expected and what is `affordable`; `None` if that is not worth a
    /// grant. `part` is that of paths which carry no more than others.
    fn worth_granting(
        &self,
        config: &Config,
        message: &Incoming,
        peer: &Peer,
        part: &Part,
        behind: bool,
        affordable: u64,
    ) -> Option<u64> {
        let limit = peer.incoming_limit(config);
        let long = limit > self.limit;
        let part = if long { &self.part(config, limit) } else { part };
        let packet = u64::from(peer.packet_payload.min(message.length));
        let rest = u64::from(message.ungranted());
        let share = part.share.min(receive_buffer::held(part.buffer_share, packet).max(packet));
        let window = peer.window(config, share);
        let target = u64::from(message.received) + window;
        let wanted = target.saturating_sub(u64::from(message.granted)).min(rest);
        //= docs/protocol.md#grant-8
        let divisor = if behind { 2 } else { 1 };
        //= docs/protocol.md#grant-6
        let counted = if long { self.expected } else { self.expected - self.excess };
        let room = (part.most / divisor).saturating_sub(counted);
        let buffer_room = self.buffer_room(self.capacity / divisor, packet);
        let bytes = wanted.min(room).min(buffer_room).min(affordable);
        //= docs/protocol.md#grant-4
        // Not in crumbs: a grant is worth a packet.
        let (packets, parts) = if comes_singly(config, packet) { (2, 3) } else { (1, 7) };
        let least = rest.min(packets * packet).min(window / parts);
        (bytes > 0 && bytes >= least).then_some(bytes)
    }

    /// Others were granted something: the oldest message has its share of that coming.
    fn earn(&mut self, thousandths: u64) {
        self.fifo_by_grants += thousandths;
        let earned = self.fifo_by_grants.max(self.fifo_earned);
        self.fifo_credit += earned - self.fifo_earned;
        self.fifo_earned = earned;
    }

    /// While senders wait, the oldest message has its share of a part of what the link carries, also when those that are granted do
    /// not use it.
    fn earn_by_time(&mut self, now: Time, config: &Config, active: usize) {
        if self.order.len() <= active {
            (self.fifo_since, self.fifo_by_grants, self.fifo_earned) = (None, 0, 0);
            return;
        }
        let elapsed = now.saturating_since(*self.fifo_since.get_or_insert(now));
        let link = config.link.unwrap_or_else(|| LinkRate::from_mbps(LINK_MBPS / FIFO_LINK_PART));
        //= docs/protocol.md#grant-5
        let by_time = link.bytes_in(elapsed) / FIFO_LINK_PART * u64::from(config.fifo_share);
        if by_time > self.fifo_earned {
            let most = self.fifo_credit.max(1000 * self.fifo_increment);
            self.fifo_credit = (self.fifo_credit + (by_time - self.fifo_earned)).min(most);
            self.fifo_earned = by_time;
        }
    }

    /// Asks a peer about its best messages of which nothing came for long, instead of granting them: it may have given them up. They
    /// leave the order until new bytes come, so that those go first whose sender is there.
    fn probe(
        &mut self,
        now: Time,
        of: PeerKey,
        messages: &mut impl Messages,
        peers: &mut Peers,
        issued: &mut Vec<Issued>,
    ) {
        let Some(peer) = peers.get_mut(of) else { return };
        //= docs/protocol.md#grant-9
        for _ in 0..PROBED_MAX {
            let Some(&(_, _, key)) = peer.grantable.first() else { break };
            let Some((message, _)) = messages.message(key) else { break };
            if now.saturating_since(message.progress) <= SILENT {
                break;
            }
            let bytes = peer.packet_payload.min(message.ungranted());
            //= docs/protocol.md#grant-6
            if u64::from(bytes) > self.buffer_room(self.capacity, bytes.into()) {
                return;
            }
            self.unrank(key, message, peer, of);
            // What it grants comes at the level that the sender was told last.
            let level = message.scheduled;
            let grant = self.extend(now, key, message, peer, bytes.into(), level);
            message.grant_sent = None;
            issued.push(Issued { rpc: key, grant, bytes: bytes.into(), how: How::Probe });
        }
        self.changed = true;
    }

    /// The share of the oldest message, whatever its length (rule `grant-5`). It may go beyond the
    /// limit, so it comes first: where the limit is all the receive buffer can hold, the ordinary
    /// grants would leave it nothing.
    fn issue_fifo(
        &mut self,
        now: Time,
        config: &Config,
        priority: Priority,
        messages: &mut impl Messages,
        peers: &mut Peers,
        issued: &mut Vec<Issued>,
    ) {
        if self.fifo_credit < 1000 * self.fifo_increment {
            return;
        }
        //= docs/protocol.md#grant-5
        let uses_its_grants = |&(_, key): &(u64, RpcKey)| {
            let (message, of) = messages.message(key)?;
            let peer = peers.get(of).filter(|peer| !peer.behind)?;
            let limit = peer.incoming_limit(config).min(self.capacity);
            (message.outstanding() < limit / 2 + 2 * self.fifo_increment).then_some(key)
        };
        let Some(key) = self.oldest.iter().take(OLDEST_MAX).find_map(uses_its_grants) else {
            self.fifo_credit = 0;
            return;
        };
        if self.affordable(key, 0, messages, peers).is_none_or(|(affordable, _)| affordable != key)
        {
            return;
        }
        let (message, of) = messages.message(key).expect("found above");
        let Some(peer) = peers.get_mut(of) else { return };
        let packet = u64::from(peer.packet_payload);
        let rest = u64::from(message.ungranted());
        let bytes = self.fifo_increment.min(rest).min(self.buffer_room(self.capacity, packet));
        if bytes < rest.min(packet).min(self.capacity / 4) {
            return; // Not in crumbs.
        }
        self.fifo_credit = self.fifo_credit.saturating_sub(1000 * bytes);
        let grant = self.extend(now, key, message, peer, bytes, priority);
        self.settle(key, message, peer, of);
        issued.push(Issued { rpc: key, grant, bytes, how: How::Fifo });
    }

    /// The message itself if the budgets have room for a packet of it beside what was granted just
    /// now, else the one that the room is kept for; and how much room there is.
    fn affordable(
        &mut self,
        key: RpcKey,
        issued_now: u64,
        messages: &mut impl Messages,
        peers: &Peers,
    ) -> Option<(RpcKey, u64)> {
        let mut key = key;
        //= docs/protocol.md#hostile-7
        for _ in 0..KEPT_MAX {
            let (message, of) = messages.message(key)?;
            let rest = u64::from(message.ungranted());
            let to_come = message.uncharged() + issued_now;
            let peer = peers.get(of)?;
            let room = messages.room(key, peer);
            let left = room.bytes.saturating_sub(to_come);
            if left >= rest.min(u64::from(peer.packet_payload)) {
                return Some((key, left));
            }
            self.starved = true;
            key = room.kept_for?;
        }
        None
    }

    fn extend(
        &mut self,
        now: Time,
        key: RpcKey,
        message: &mut Incoming,
        peer: &Peer,
        bytes: u64,
        priority: Priority,
    ) -> Grant {
        message.grant_sent = Some((now, message.granted));
        let bytes = u32::try_from(bytes).expect("no more than the message's length");
        message.grant(message.granted.saturating_add(bytes), priority);
        message.scheduled = priority;
        self.count(message, peer);
        debug_assert!(message.granted <= message.length, "{key:?}");
        Grant { offset: message.granted, priority }
    }

    /// Fully granted messages leave the order; their bytes stay expected until they arrive.
    fn settle(&mut self, key: RpcKey, message: &mut Incoming, peer: &mut Peer, of: PeerKey) {
        if message.granted == message.length {
            self.unrank(key, message, peer, of);
        }
    }

    fn rerank_marked(&mut self, messages: &mut impl Messages, peers: &mut Peers) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some((message, of)) = messages.message(key) else { continue };
            let Some(peer) = peers.get_mut(of) else { continue };
            message.dirty = false;
            self.resume(message, peer);
            //= docs/protocol.md#grant-1
            // A sender finishes the packet in which a grant ends; that far it need not be granted.
            message.granted = message.granted.max(message.end());
            self.count(message, peer);
            let remaining = message.remaining();
            if message.granted == message.length {
                self.unrank(key, message, peer, of);
            } else if message.ranked != Some(remaining) {
                self.unrank(key, message, peer, of);
                let before = peer.grantable.first().copied();
                peer.grantable.insert((remaining, message.birth, key));
                message.ranked = Some(remaining);
                self.oldest.insert((message.birth, key));
                self.replace_best(before, peer, of);
            }
        }
        self.dirty = dirty;
    }

    fn unrank(&mut self, key: RpcKey, message: &mut Incoming, peer: &mut Peer, of: PeerKey) {
        let Some(remaining) = message.ranked.take() else { return };
        let before = peer.grantable.first().copied();
        peer.grantable.remove(&(remaining, message.birth, key));
        self.oldest.remove(&(message.birth, key));
        self.replace_best(before, peer, of);
        self.changed = true;
    }

    fn replace_best(&mut self, before: Option<Rank>, peer: &mut Peer, of: PeerKey) {
        let after = peer.grantable.first().copied();
        //= docs/protocol.md#grant-8
        let behind = peer.stalled.is_some() || !peer.is_confirmed();
        if before == after && behind == peer.behind {
            return;
        }
        if let Some(rank) = before {
            self.order.remove(&(peer.behind, rank, of));
        }
        if let Some(rank) = after {
            self.order.insert((behind, rank, of));
        }
        peer.behind = behind;
        self.changed = true;
    }

    /// Brings the expected bytes in line with a message's grants and arrivals.
    fn count(&mut self, message: &mut Incoming, peer: &Peer) {
        let outstanding = message.outstanding();
        let packet = peer.packet_payload.into();
        let taken = receive_buffer::taken(outstanding, packet, message.remaining().into());
        self.expect(message, outstanding, taken);
    }

    /// Bytes for which there is room in so much of the receive buffer, in packets with this payload. For one there always is.
    fn buffer_room(&self, capacity: u64, packet: u64) -> u64 {
        let room = receive_buffer::held(capacity.saturating_sub(self.taken), packet);
        if self.taken == 0 { room.max(packet) } else { room }
    }

    #[inline]
    fn expect(&mut self, message: &mut Incoming, expected: u64, taken: u64) {
        self.taken = self.taken - std::mem::replace(&mut message.taken, taken) + taken;
        let before = std::mem::replace(&mut message.expected, expected);
        self.changed |= expected < before;
        self.expected = self.expected - before + expected;
        self.excess =
            self.excess - before.saturating_sub(self.lone) + expected.saturating_sub(self.lone);
    }
}

/// Whether the link takes so long for a packet that packets come, and are granted, one by one.
fn comes_singly(config: &Config, packet: u64) -> bool {
    config.link.is_some_and(|link| link.time_of(packet) >= SINGLY)
}

fn fifo_increment(config: &Config) -> u64 {
    //= docs/protocol.md#grant-5
    (config.max_incoming / FIFO_PART).clamp(FIFO_MIN, FIFO_MAX)
}

/// With N active messages the lowest N levels are used, so that a newcomer can take a higher one at
/// once (rule `prio-4`).
fn scheduled_priority(max_scheduled: u8, rank: usize, active: usize) -> Priority {
    //= docs/protocol.md#prio-4
    let top = max_scheduled as usize;
    let level = top.saturating_sub(rank).saturating_sub((top + 1).saturating_sub(active));
    Priority::clamped(level as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_messages_use_the_lowest_levels() {
        let levels =
            |n| (0..n).map(|rank| scheduled_priority(3, rank, n).get()).collect::<Vec<_>>();
        assert_eq!(levels(1), [0]);
        assert_eq!(levels(2), [1, 0]);
        assert_eq!(levels(4), [3, 2, 1, 0]);
        assert_eq!(levels(6), [3, 2, 1, 0, 0, 0]);
    }
}
