//! Grants: the choice of the senders that may continue, and of the offset. The receiver's half of Homa.
//!
//! Messages that are not fully granted stand in a two-level order: the messages of a peer by remaining bytes, and the peers by
//! their best message. The first few peers (the degree of overcommitment) are *active*, so that each sender has at most one granted
//! message at a time (SIGCOMM 2018 section 3.5). Nothing here runs per packet: packets mark their message, and [`Grants::issue`]
//! runs once for all packets that arrived together. Rules `grant-1` to `grant-9` of docs/protocol.md.

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

/// Reciprocal of the part of `max_incoming` that the oldest message gets in its turn (`fifo_grant_increment`).
const FIFO_PART: u64 = 8;
/// Lower bound on that part, in bytes.
const FIFO_MIN: u64 = 3_000;
/// Upper bound on that part, in bytes.
const FIFO_MAX: u64 = 50_000;

/// Time of a packet on the link from which a grant covers two packets instead of one.
const SINGLY: Duration = Duration::from_micros(100);

/// Lower bound on the bytes granted at a time over all messages. A smaller capacity would grant nothing at all.
const CAPACITY_MIN: u64 = 1_500;

/// Upper bound on messages examined to find the oldest one that uses its grants.
const OLDEST_MAX: usize = 64;

/// Silence after which a message is probed before it is granted: by that time, the Linux module has given the message up.
const SILENT: Duration = Duration::from_millis(100);

/// Upper bound on messages of one peer that are probed at once.
const PROBED_MAX: usize = 64;

/// Reciprocal of the part of the link's rate from which the oldest message gets its share, at the least, while senders wait.
const FIFO_LINK_PART: u64 = 4;

/// Upper bound on messages examined to find one that the budgets have room for: the longest of a budget, of another budget that it
/// is charged to, and so on.
const KEPT_MAX: usize = 8;

/// Lookup of incoming messages and their peers: the endpoint's RPC table, or a plain table in tests.
pub(crate) trait Messages {
    /// Returns the message and the peer that sends it, if it exists.
    fn message(&mut self, key: RpcKey) -> Option<(&mut Incoming, PeerKey)>;

    /// Returns the room that the budgets leave for the message.
    fn room(&self, key: RpcKey, peer: &Peer) -> Room;
}

#[derive(Debug)]
pub(crate) struct Grants {
    /// Best message of every peer that has one to grant. Peers that stand behind come last.
    order: BTreeSet<(bool, Rank, PeerKey)>,
    /// All messages that can be granted more, oldest first.
    oldest: BTreeSet<(u64, RpcKey)>,
    /// Bytes that senders may send and that have not arrived, over all messages.
    expected: u64,
    /// Part of `expected` that single messages expect beyond `lone`, on paths that carry more than others.
    excess: u64,
    /// Upper bound on the bytes that one message expects on a path that carries no more than others.
    lone: u64,
    /// Messages whose remaining bytes or grants changed.
    dirty: Vec<RpcKey>,
    /// Whether the order changed or room was made since the order was last examined.
    changed: bool,
    /// Whether a message was not granted for want of room in a budget.
    starved: bool,
    /// Credit of the oldest message, in thousandths of bytes.
    fifo_credit: u64,
    /// Time since which more senders wait than are granted.
    fifo_since: Option<Time>,
    /// Credit that the oldest message has earned since then by grants to others.
    fifo_by_grants: u64,
    /// Credit that the oldest message has earned since then in all.
    fifo_earned: u64,
    /// Bytes that the oldest message gets at a time.
    fifo_increment: u64,
    /// Upper bound on the bytes that the host expects at a time.
    limit: u64,
    /// Part of this endpoint's receive buffer for expected bytes.
    capacity: u64,
    /// Part of `capacity` that expected bytes take.
    taken: u64,
    /// Load of the other endpoints of the host.
    others: HostLoad,
}

/// A grant to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Issued {
    pub(crate) rpc: RpcKey,
    pub(crate) grant: Grant,
    /// Newly granted bytes.
    pub(crate) bytes: u64,
    pub(crate) how: How,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    InTurn,
    /// To the oldest message out of turn.
    Fifo,
    /// A probe of a silent message: requests the last `bytes` before the grant's offset.
    Probe,
}

impl Issued {
    /// Returns the probe that grants as much (rule `loss-5`).
    pub(crate) fn as_probe(&self) -> Body {
        let bytes = u32::try_from(self.bytes).expect("no more than a packet");
        let Grant { offset, priority } = self.grant;
        Body::Resend(Resend { offset: offset.saturating_sub(bytes), length: Some(bytes), priority })
    }
}

/// This endpoint's part of the host's grants.
struct HostShare {
    /// Number of messages to grant at a time.
    active: usize,
    /// Window of a message on an unmeasured path, in bytes.
    share: u64,
    /// Bytes of the receive buffer that such a window takes.
    buffer_share: u64,
    /// Upper bound on the bytes to expect.
    most: u64,
}

/// The priority levels of grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels<'a> {
    pub(crate) max_scheduled: u8,
    pub(crate) fifo: Priority,
    /// The cutoffs of unscheduled packets, for ends of messages that use the same levels.
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

    /// Sets the capacity to three eighths of the link's receive buffer, the maximum for granted bytes (rule `grant-6`). The kernel
    /// may not have given a quarter back yet, and the rest is for unscheduled bytes.
    pub(crate) fn set_capacity(&mut self, bytes: u64) {
        self.capacity = (bytes / 8 * 3).max(CAPACITY_MIN);
    }

    /// Sets the load of the other endpoints of the host.
    pub(crate) fn set_others(&mut self, others: HostLoad) {
        let room = others.expected < self.others.expected || others.granting < self.others.granting;
        self.changed |= room && !self.order.is_empty();
        self.others = others;
    }

    /// Returns the bytes that senders may send and that have not arrived, over all messages.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// Returns the number of senders with a message to grant.
    pub(crate) fn granting(&self) -> u64 {
        self.order.len() as u64
    }

    /// Returns this endpoint's part of the host's grants, if a path may have `limit` bytes expected.
    fn part(&self, config: &Config, limit: u64) -> HostShare {
        let most = config.overcommitment as u64;
        let (own, others) = (self.granting().min(most), self.others.granting.min(most));
        //= docs/protocol.md#host-1
        let active = if own + others <= most { own } else { most * own / (own + others) };
        let active = active.max(1);
        let all = (own + others).min(most).max(active);
        //= docs/protocol.md#host-2
        let fair = limit * active / (all + 1);
        let left = limit.saturating_sub(self.others.expected);
        HostShare {
            active: usize::try_from(active).expect("no more than the overcommitment"),
            share: limit / (all + 1),
            buffer_share: self.capacity / active,
            most: left.max(fair),
        }
    }

    /// Adopts settings that were changed, or that follow a changed link.
    pub(crate) fn set_limit(&mut self, config: &Config) {
        self.limit = config.max_incoming;
        self.fifo_increment = fifo_increment(config);
        if self.expected == 0 {
            self.lone = self.limit / 2;
        }
    }

    /// Marks a message with new data, once until the next [`Grants::issue`].
    #[inline]
    pub(crate) fn mark(&mut self, key: RpcKey, message: &mut Incoming) {
        if !message.dirty {
            message.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Removes a message that is complete or has ended.
    pub(crate) fn forget(
        &mut self,
        key: RpcKey,
        message: &mut Incoming,
        peer: &mut Peer,
        peer_key: PeerKey,
    ) {
        self.unrank(key, message, peer, peer_key);
        self.expect(message, 0, 0);
        self.resume(message, peer);
    }

    /// Ends the suspension of a message that continues or has ended.
    fn resume(&mut self, message: &mut Incoming, peer: &mut Peer) {
        if std::mem::take(&mut message.suspended) {
            peer.grants.suspended = peer.grants.suspended.saturating_sub(1);
            self.changed = true;
        }
    }

    /// Suspends a message whose granted bytes are late. The message loses its place until [`Grants::mark`] restores it, and its
    /// sender goes behind the others until it sends new bytes (rule `grant-7`). The granted bytes may still arrive. They no longer
    /// count as expected once the sender counts as silent; `expected` is false then.
    pub(crate) fn suspend(
        &mut self,
        now: Time,
        key: RpcKey,
        message: &mut Incoming,
        expected: bool,
        peer: &mut Peer,
        peer_key: PeerKey,
    ) {
        peer.grants.stalled.get_or_insert(now);
        if !std::mem::replace(&mut message.suspended, true) {
            peer.grants.suspended = peer.grants.suspended.saturating_add(1);
        }
        if !expected {
            self.expect(message, 0, 0);
        }
        self.unrank(key, message, peer, peer_key);
        let best = peer.grants.grantable.first().copied();
        self.replace_best(best, peer, peer_key);
        self.changed |= !peer.stands_still();
    }

    /// Moves a peer back to the place of its messages, after it was confirmed or sent new bytes.
    pub(crate) fn bring_forward(&mut self, peer: &mut Peer, peer_key: PeerKey) {
        peer.grants.stalled = None;
        let best = peer.grants.grantable.first().copied();
        self.replace_best(best, peer, peer_key);
    }

    /// Makes [`Grants::issue`] examine the order again, because another sender has become grantable.
    #[inline]
    pub(crate) fn reconsider(&mut self) {
        self.changed = true;
    }

    /// Records that some budget has more room.
    #[inline]
    pub(crate) fn make_room(&mut self) {
        self.changed |= self.starved;
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.changed || !self.dirty.is_empty()
    }

    /// Issues the grants that are due. O(overcommitment + messages marked × log messages).
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
            let issued_now = uncharged(issued, messages);
            let Some((key, affordable)) = self.affordable(best, issued_now, messages, peers) else {
                continue;
            };
            let Some((message, peer_key)) = messages.message(key) else { continue };
            let Some(peer) = peers.get_mut(peer_key) else { continue };
            if now.saturating_since(message.progress) > SILENT {
                // A message out of the order was probed, and nothing of it has arrived since.
                if message.ranked.is_some() {
                    self.probe(now, key, messages, peers, issued);
                }
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
            self.settle(key, message, peer, peer_key);
            self.earn(bytes * u64::from(config.fifo_share));
            issued.push(Issued { rpc: key, grant, bytes, how: How::InTurn });
        }
    }

    /// Returns the bytes that a message may be granted now, within its window, the expected bytes and `affordable`; `None` if they
    /// are not worth a grant. `part` applies to paths that carry no more than others.
    fn worth_granting(
        &self,
        config: &Config,
        message: &Incoming,
        peer: &Peer,
        part: &HostShare,
        behind: bool,
        affordable: u64,
    ) -> Option<u64> {
        let limit = peer.incoming_limit(config);
        let long = limit > self.limit;
        let part = if long { &self.part(config, limit) } else { part };
        let packet = u64::from(peer.measured.packet_payload.min(message.length));
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
        // A grant must be worth a packet.
        let (packets, parts) = if comes_singly(config, packet) { (2, 3) } else { (1, 7) };
        let least = rest.min(packets * packet).min(window / parts);
        (bytes > 0 && bytes >= least).then_some(bytes)
    }

    /// Credits the oldest message with its share of a grant to others.
    fn earn(&mut self, thousandths: u64) {
        self.fifo_by_grants += thousandths;
        let earned = self.fifo_by_grants.max(self.fifo_earned);
        self.fifo_credit += earned - self.fifo_earned;
        self.fifo_earned = earned;
    }

    /// Credits the oldest message, while senders wait, with its share of a part of the link's rate, even if the granted senders do
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

    /// Probes a peer about a message that was silent for long, instead of granting it, because the peer may have given it up, and
    /// about its best messages if they were silent too. They leave the order until new bytes arrive, so that messages of live
    /// senders go first.
    fn probe(
        &mut self,
        now: Time,
        silent: RpcKey,
        messages: &mut impl Messages,
        peers: &mut Peers,
        issued: &mut Vec<Issued>,
    ) {
        let mut next = Some(silent);
        //= docs/protocol.md#grant-9
        for _ in 0..PROBED_MAX {
            let Some(key) = next else { break };
            let Some((message, peer_key)) = messages.message(key) else { break };
            let Some(peer) = peers.get_mut(peer_key) else { break };
            if now.saturating_since(message.progress) <= SILENT {
                break;
            }
            let bytes = peer.measured.packet_payload.min(message.ungranted());
            //= docs/protocol.md#grant-6
            if u64::from(bytes) > self.buffer_room(self.capacity, bytes.into()) {
                return;
            }
            //= docs/protocol.md#hostile-7
            let to_come = message.uncharged() + uncharged(issued, messages);
            if to_come + u64::from(bytes) > messages.room(key, peer).bytes {
                self.starved = true;
                break;
            }
            let Some((message, _)) = messages.message(key) else { break };
            self.unrank(key, message, peer, peer_key);
            // The bytes of this grant arrive at the level that was last announced to the sender.
            let level = message.scheduled;
            let grant = self.extend(now, key, message, peer, bytes.into(), level);
            message.grant_sent = None;
            issued.push(Issued { rpc: key, grant, bytes: bytes.into(), how: How::Probe });
            next = peer.grants.grantable.first().map(|&(_, _, key)| key);
        }
        self.changed = true;
    }

    /// Grants the oldest message its share, whatever its length (rule `grant-5`). The share may exceed the limit, so it comes
    /// first: where the limit equals the receive buffer's capacity, the ordinary grants would leave nothing.
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
            let (message, peer_key) = messages.message(key)?;
            let peer = peers.get(peer_key).filter(|peer| !peer.grants.behind)?;
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
        let (message, peer_key) = messages.message(key).expect("found above");
        let Some(peer) = peers.get_mut(peer_key) else { return };
        let packet = u64::from(peer.measured.packet_payload);
        let rest = u64::from(message.ungranted());
        let bytes = self.fifo_increment.min(rest).min(self.buffer_room(self.capacity, packet));
        if bytes < rest.min(packet).min(self.capacity / 4) {
            return; // Not worth a packet.
        }
        self.fifo_credit = self.fifo_credit.saturating_sub(1000 * bytes);
        let grant = self.extend(now, key, message, peer, bytes, priority);
        self.settle(key, message, peer, peer_key);
        issued.push(Issued { rpc: key, grant, bytes, how: How::Fifo });
    }

    /// Returns the message itself if the budgets have room for a packet of it beside the grants just issued, otherwise the message
    /// that the room is kept for. Also returns the room.
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
            let (message, peer_key) = messages.message(key)?;
            let rest = u64::from(message.ungranted());
            let to_come = message.uncharged() + issued_now;
            let peer = peers.get(peer_key)?;
            let room = messages.room(key, peer);
            let left = room.bytes.saturating_sub(to_come);
            if left >= rest.min(u64::from(peer.measured.packet_payload)) {
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

    /// Removes a fully granted message from the order. Its bytes stay expected until they arrive.
    fn settle(&mut self, key: RpcKey, message: &mut Incoming, peer: &mut Peer, peer_key: PeerKey) {
        if message.granted == message.length {
            self.unrank(key, message, peer, peer_key);
        }
    }

    fn rerank_marked(&mut self, messages: &mut impl Messages, peers: &mut Peers) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some((message, peer_key)) = messages.message(key) else { continue };
            let Some(peer) = peers.get_mut(peer_key) else { continue };
            message.dirty = false;
            self.resume(message, peer);
            //= docs/protocol.md#grant-1
            // A sender finishes the packet in which a grant ends, so bytes up to that point need no grant.
            message.granted = message.granted.max(message.end());
            self.count(message, peer);
            let remaining = message.remaining();
            if message.granted == message.length {
                self.unrank(key, message, peer, peer_key);
            } else if message.ranked != Some(remaining) {
                self.unrank(key, message, peer, peer_key);
                let before = peer.grants.grantable.first().copied();
                peer.grants.grantable.insert((remaining, message.birth, key));
                message.ranked = Some(remaining);
                self.oldest.insert((message.birth, key));
                self.replace_best(before, peer, peer_key);
            }
        }
        self.dirty = dirty;
    }

    fn unrank(&mut self, key: RpcKey, message: &mut Incoming, peer: &mut Peer, peer_key: PeerKey) {
        let Some(remaining) = message.ranked.take() else { return };
        let before = peer.grants.grantable.first().copied();
        peer.grants.grantable.remove(&(remaining, message.birth, key));
        self.oldest.remove(&(message.birth, key));
        self.replace_best(before, peer, peer_key);
        self.changed = true;
    }

    fn replace_best(&mut self, before: Option<Rank>, peer: &mut Peer, peer_key: PeerKey) {
        let after = peer.grants.grantable.first().copied();
        //= docs/protocol.md#grant-8
        let behind = peer.grants.stalled.is_some() || !peer.is_confirmed();
        if before == after && behind == peer.grants.behind {
            return;
        }
        if let Some(rank) = before {
            self.order.remove(&(peer.grants.behind, rank, peer_key));
        }
        if let Some(rank) = after {
            self.order.insert((behind, rank, peer_key));
        }
        peer.grants.behind = behind;
        self.changed = true;
    }

    /// Updates the expected bytes after a message's grants and arrivals.
    fn count(&mut self, message: &mut Incoming, peer: &Peer) {
        let outstanding = message.outstanding();
        let packet = peer.measured.packet_payload.into();
        let taken = receive_buffer::taken(outstanding, packet, message.remaining().into());
        self.expect(message, outstanding, taken);
    }

    /// Returns the bytes that fit the rest of `capacity` in packets with this payload. An empty buffer has room for at least one
    /// packet.
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

/// Returns the bytes of the grants just issued, which are charged after all of them.
fn uncharged(issued: &[Issued], messages: &mut impl Messages) -> u64 {
    let uncharged = |grant: &Issued| messages.message(grant.rpc).map(|(it, _)| it.uncharged());
    issued.iter().filter_map(uncharged).sum()
}

/// Returns whether the link takes so much time for a packet that packets arrive, and are granted, one by one.
fn comes_singly(config: &Config, packet: u64) -> bool {
    config.link.is_some_and(|link| link.time_of(packet) >= SINGLY)
}

fn fifo_increment(config: &Config) -> u64 {
    //= docs/protocol.md#grant-5
    (config.max_incoming / FIFO_PART).clamp(FIFO_MIN, FIFO_MAX)
}

/// Returns the priority of an active message. N active messages use the lowest N levels, so that a newcomer can use a higher level
/// at once (rule `prio-4`).
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
