//! Timeouts: probes, lost peers and idle peers.

use std::time::Duration;

use apus_wire::{PathError, PathId};

use crate::contact::Contact;
use crate::endpoint::Endpoint;
use crate::endpoint::step::{End, Step};
use crate::endpoint::sweeps::Swept;
use crate::error::{CallFailed, CallStory};
use crate::peer::{Peer, Refusal};
use crate::rpc::{AwaitedPacket, Preempted};
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;

/// Upper bound on the peers examined per search for idle ones.
const PEERS_PER_CHECK: usize = 64;

/// Silence after which an idle peer is forgotten. No packet lives longer in a network, so its history is no longer needed (rule
/// `once-5`).
const PEER_IDLE: Duration = Duration::from_secs(120);

/// Upper bound on the timers handled in one call. After a pause, the timers of every RPC may be due together.
const DUE_MAX: usize = 1_024;

/// Lateness of a timer which means that the process was not running meanwhile.
const LATE: Duration = Duration::from_millis(2);

/// Reciprocal of the part of the peer table that is kept for the servers of this node's calls.
const OWN_SHARE: usize = 8;

/// Upper bound on the peers examined for one to forget when an unknown client needs its place.
const EVICTION_MAX: usize = 64;

/// Reason for making a peer known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// The peer has called this node as a client. A part of the table is left to this node's own calls.
    ForClient(PathId),
    /// This node calls the peer as a server.
    ForServer,
}

impl Endpoint {
    /// Handles due timers, a bounded number of them; the rest is due at once. Harmless to call early.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sweep(now);
        self.request_dropped(now);
        for _ in 0..DUE_MAX {
            if self.expired.is_empty() && !self.parts.wheel.expire(now, &mut self.expired) {
                break;
            }
            if let Some(key) = self.expired.pop() {
                self.on_due(now, key);
            }
        }
        if self.local.len() > 0 {
            self.handle_local_timeout(now);
        }
        self.probe_queued(now);
        self.open_again(now);
        if self.peers.begin_check(now) {
            self.forget_idle_peers(now);
        }
    }

    /// Handles the network's report about a peer. The peer is probed, and its RPCs end if it leaves the probes unanswered (rule
    /// `life-5`). A report that this node has no link to the address ends them at once.
    pub fn handle_path_error(&mut self, now: Time, peer: PathId, error: PathError) {
        let Some(key) = self.peers.find(peer) else { return };
        let refusal = match error {
            PathError::NoService(port) => {
                return self.sweeps.push_error(Swept::Service(key, now, port));
            }
            PathError::NoLink => Refusal::Believe,
            _ => {
                //= docs/protocol.md#life-5
                let last_rx = self.peers.last_rx_at(peer);
                let peer = &mut self.peers[key];
                let rto = peer.rto(&self.parts.config);
                peer.note_refusal(now, rto, last_rx)
            }
        };
        match refusal {
            Refusal::Probe => {
                let is_asked = self.probe_last(now, key);
                self.peers[key].note_asked(is_asked);
            }
            Refusal::Wait => {}
            Refusal::Believe => {
                self.peers[key].reach.believed = now;
                let error = CallFailed::Unreachable { error, sent: true };
                self.sweeps.push_error(Swept::Failed(key, now, error));
            }
        }
    }

    /// Probes the peer at once about the message to it that was begun last, or sends it an OPEN. Returns whether a packet leaves that
    /// the peer must answer.
    fn probe_last(&mut self, now: Time, key: PeerKey) -> bool {
        let peer = &self.peers[key];
        if peer.contact.opening().is_some() {
            let waits = peer.rpcs > 0;
            self.send_open(now, key);
            return waits;
        }
        let asking = peer.contact.met().and_then(|met| met.asking);
        if let Some(asking) = asking {
            self.send_open(now, asking);
        }
        let mut is_asked = asking.is_some();
        if let Some(mut step) = self.peers[key].flight.last().and_then(|key| self.step(key)) {
            is_asked |= step.is_answered_by_peer();
            step.probe(now);
            step.arm(now);
        }
        is_asked
    }

    fn on_due(&mut self, now: Time, key: RpcKey) {
        let Some(mut step) = self.step(key) else { return };
        if step.rpc.armed > now {
            return; // Another entry of the wheel has replaced this one.
        }
        let late = now.saturating_since(step.rpc.armed);
        step.rpc.armed = Time::ZERO;
        if step.rpc.cancelled {
            return; // The application ends the RPC.
        }
        if let Some(end) = step.expire(now) {
            return self.end(now, key, Some(end));
        }
        if step.is_due(now) {
            if step.rpc.may_queue() {
                self.probe_in_turn(now, key);
            } else {
                step.on_silence(now, late);
            }
        }
        if let Some(mut step) = self.step(key) {
            step.arm(now);
        }
    }

    fn forget_idle_peers(&mut self, now: Time) {
        for _ in 0..PEERS_PER_CHECK.min(self.peers.slots()) {
            let Some((key, peer)) = self.peers.next_in_round() else { continue };
            //= docs/protocol.md#server-4
            let over = peer.contact.is_over() && peer.may_be_evicted(now);
            let idle = over || now.saturating_since(peer.last_rx) >= PEER_IDLE;
            if peer.rpcs == 0 && idle && !self.is_awaited(key) {
                self.parts.counters.peers_forgotten += 1;
                self.forget_peer(key);
            }
        }
    }

    /// Returns whether RPCs of another peer wait for the answer to this one.
    fn is_awaited(&self, key: PeerKey) -> bool {
        let Contact::Asking(doubted, _) = self.peers[key].contact else { return false };
        self.peers.get(doubted).is_some_and(|doubted| doubted.rpcs > 0)
    }

    /// Removes a peer without RPCs, its tokens and its address from every table. If it asks on behalf of another peer, that one is
    /// no longer in doubt.
    pub(super) fn forget_peer(&mut self, peer: PeerKey) {
        let Some(Peer { contact, .. }) = self.peers.get(peer).filter(|peer| peer.rpcs == 0) else {
            return;
        };
        if let Contact::Asking(doubted, _) = *contact
            && let Some(doubted) = self.peers.get_mut(doubted)
        {
            doubted.contact.note_asking(None);
        }
        self.leave_host(peer);
        if let Some(charged) = self.peers.remove(peer) {
            self.parts.total.usage.charged -= charged;
        }
    }

    /// Makes room for another known peer. Returns `false` if all are in use.
    pub(super) fn make_room(&mut self, now: Time, room: Room) -> bool {
        //= docs/protocol.md#hostile-4
        let peers_max = self.parts.config.peers_max;
        let (most, looked_at) = match room {
            Room::ForServer => (peers_max, self.peers.slots()),
            Room::ForClient(_) => {
                (peers_max - peers_max / OWN_SHARE, EVICTION_MAX.min(self.peers.slots()))
            }
        };
        //= docs/protocol.md#host-4
        if self.peers.len() as u64 + self.parts.others.peers < most as u64 {
            return true;
        }
        let mut oldest: Option<(bool, bool, Time, PeerKey)> = None;
        for _ in 0..looked_at {
            let Some((key, peer)) = self.peers.next_in_round() else { continue };
            if peer.rpcs == 0 && peer.may_be_evicted(now) {
                let place = (!peer.is_stranger(), peer.is_confirmed(), peer.last_rx, key);
                oldest = Some(oldest.map_or(place, |before| before.min(place)));
            }
        }
        let oldest = oldest.map(|(_, _, _, key)| key);
        let crowded = || self.of_crowded_host(now, room, looked_at);
        let Some(key) = oldest.or_else(crowded) else { return false };
        self.parts.counters.peers_evicted += 1;
        let doubted = match self.peers[key].contact {
            Contact::Asking(doubted, _) => Some(doubted),
            _ => None,
        };
        self.forget_peer(key);
        if let Some(doubted) = doubted {
            //= docs/protocol.md#contact-5
            // Calls have waited for the answer, which does not come any more. They are sent, and a run that is over refuses them.
            self.release(doubted);
        }
        true
    }

    /// Returns the peer with the oldest last packet, among some, of a host with more places than the host of a client that wants
    /// one. The peer's token, whose proof may be fresh, is kept without the peer.
    fn of_crowded_host(&mut self, now: Time, room: Room, looked_at: usize) -> Option<PeerKey> {
        let Room::ForClient(from) = room else { return None };
        let fewest = self.peers.on_host_of(from).saturating_add(1);
        let mut oldest: Option<(Time, PeerKey)> = None;
        for _ in 0..looked_at {
            let Some((key, peer)) = self.peers.next_in_round() else { continue };
            let (path, last_rx) = (peer.path, peer.last_rx);
            let is_idle = peer.rpcs == 0 && peer.contact.met().is_some();
            if is_idle && from.host() != 0 && self.peers.on_host_of(path) > fewest {
                let place = (last_rx, key);
                oldest = Some(oldest.map_or(place, |before| before.min(place)));
            }
        }
        let (_, key) = oldest?;
        let token = self.peers[key].token;
        self.peers.spend(now, token).then_some(key)
    }
}

impl Step<'_> {
    /// Ends the RPC if its deadline has passed or its peer is lost.
    fn expire(&mut self, now: Time) -> Option<End> {
        //= docs/protocol.md#life-3
        if self.rpc.expires.is_some_and(|expires| expires <= now) {
            if !self.rpc.is_client() {
                self.rpc.expires = None;
                self.parts.counters.requests_expired += 1;
                return self.cancel();
            }
            let after = now.saturating_since(self.rpc.started);
            return Some(End::Failed(CallFailed::DeadlineExceeded {
                after,
                story: self.story(now),
            }));
        }
        //= docs/protocol.md#life-4
        let timeout = self.parts.config.peer_timeout;
        self.rpc.is_lost(now, timeout, self.peer).then(|| self.give_up(now))
    }

    /// Gives the RPC up because its peer is lost.
    fn give_up(&mut self, now: Time) -> End {
        let rpc = &*self.rpc;
        if rpc.is_client() {
            //= docs/protocol.md#life-9
            let (since, probes) = match self.peer.contact.opening() {
                Some(opening) => (rpc.started, opening.sent),
                None if rpc.waits_for_answer(self.peer) => {
                    (rpc.started.max(self.peer.last_rx), rpc.probing.probes_unanswered)
                }
                None => (rpc.last_rx, rpc.probing.probes_unanswered),
            };
            let story = self.story(now);
            return End::Failed(if rpc.refused {
                CallFailed::Overloaded { after: now.saturating_since(rpc.started), story }
            } else {
                CallFailed::PeerTimeout {
                    waited_for: rpc.awaited(),
                    silent_for: now.saturating_since(since),
                    probes_unanswered: u32::from(probes),
                    story,
                }
            });
        }
        if rpc.phase.is_outgoing() {
            self.parts.counters.responses_unacknowledged += 1;
        } else {
            //= docs/protocol.md#server-1
            self.parts.counters.requests_timed_out += 1;
        }
        End::Forgotten
    }

    /// Returns the progress of the call until now.
    #[cold]
    pub(super) fn story(&self, now: Time) -> Box<CallStory> {
        let (rpc, peer) = (&*self.rpc, &*self.peer);
        // A response can only arrive once the whole request has.
        let (request, sent, granted) = rpc.outgoing().map_or((0, 0, 0), |request| {
            (request.length(), request.next, request.granted.min(request.length()))
        });
        let opening = peer.contact.opening();
        let is_silent = opening.is_some() || peer.native && peer.last_rx == peer.met;
        Box::new(CallStory {
            id: rpc.id.0 as u32,
            waited_for: rpc.awaited(),
            request,
            sent,
            granted,
            response: rpc.incoming().map(|response| response.length),
            received: rpc.incoming().map_or(0, |response| response.received),
            peer_silent_for: (!is_silent).then(|| now.saturating_since(peer.last_rx)),
            probes_unanswered: opening.map_or(rpc.probing.probes_unanswered, |it| it.sent).into(),
        })
    }

    /// Returns whether the peer has been silent for as long as the RPC waits before a probe.
    fn is_due(&self, now: Time) -> bool {
        !self.rpc.probing.queued && self.rpc.due(self.parts.config.peer_timeout) <= now
    }

    /// Handles the peer's silence; `late` is the lateness of the timer.
    fn on_silence(&mut self, now: Time, late: Duration) {
        let timeout = self.parts.config.peer_timeout;
        match self.rpc.awaited_packet() {
            AwaitedPacket::Nothing => self.rpc.last_rx = now,
            //= docs/protocol.md#loss-10
            AwaitedPacket::Data
                if late > LATE && self.rpc.probing.last_probe <= self.rpc.last_rx =>
            {
                self.rpc.probing.last_probe = now;
            }
            AwaitedPacket::Data => match self.rpc.preempted(now, timeout, &self.parts.downlink) {
                Preempted::Yes => {}
                Preempted::ForLong => self.probe_for(now, 1),
                Preempted::No => self.probe(now),
            },
            _ => self.probe(now),
        }
    }
}
