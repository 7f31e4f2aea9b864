//! What happens when nothing arrives: asking again, giving up, forgetting.

use std::time::Duration;

use apus_wire::{PathError, Resend, Token};
use std::net::SocketAddr;

use crate::control::Body;
use crate::endpoint::{Endpoint, Sweep, Swept};
use crate::error::CallFailed;
use crate::lookup::Named;
use crate::peer::Refusal;
use crate::rpc::{Phase, Preempted, Rpc, Waiting};
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;
use crate::timer::TICK;

/// How often idle peers are looked for, and how many are looked at.
pub(super) const PEER_CHECK: Duration = Duration::from_secs(1);
const PEERS_PER_CHECK: usize = 64;
/// A peer with nothing under way is forgotten after this long without a packet. No packet lives
/// longer in a network, so its history is not needed any more (rule `once-5`).
const PEER_IDLE: Duration = Duration::from_secs(120);
/// Timers looked at in one call. After a pause those of every RPC may be due together.
const DUE_MAX: usize = 1_024;
/// RPCs looked at in one tick whose questions wait for their turn.
const QUEUED_MAX: usize = 1_024;
/// RPC slots one step of a sweep looks at.
const SWEEP_STEP: usize = 256;
/// Sweeps that wait, beyond which errors about single ports are not heeded.
const SWEEPS_MAX: usize = 64;
/// Unanswered questions after which a sender counts as silent: what it was granted is granted to
/// others.
const SILENT_AFTER: u8 = 2;
/// A timer that comes up this much late means that the process was not run meanwhile.
const LATE: Duration = Duration::from_millis(2);
/// Ranges asked for at once.
const ASKED_MAX: usize = 16;

impl Endpoint {
    /// Does what has become due, a bounded part of it: what remains is due at once. Harmless to call
    /// early.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sweep(now);
        for _ in 0..DUE_MAX {
            if self.expired.is_empty() && !self.wheel.expire(now, &mut self.expired) {
                break;
            }
            if let Some(key) = self.expired.pop() {
                self.on_due(now, key);
            }
        }
        self.probe_queued(now);
        self.open_again(now);
        if self.peers.len() > 0 && now >= self.next_peer_check {
            self.next_peer_check = now + PEER_CHECK;
            self.forget_idle_peers(now);
        }
    }

    /// The network says something about a peer: it is asked, and its RPCs end when it leaves that
    /// unanswered (rule `life-5`). That this node has no link to such an address ends them at once.
    pub fn handle_path_error(&mut self, now: Time, peer: SocketAddr, error: PathError) {
        let Some(of) = self.find_peer(peer) else { return };
        let believed = match error {
            PathError::NoService(port) => return self.sweep_service(now, of, port),
            PathError::NoLink => Refusal::Believe,
            _ => {
                let peer = self.peers.get_mut(of).expect("found above");
                let rto = peer.rto(&self.config);
                peer.note_refusal(now, rto)
            }
        };
        match believed {
            Refusal::Probe => self.probe_last(now, of),
            Refusal::Wait => {}
            Refusal::Believe => self.sweep_failed(of, now, CallFailed::Unreachable(error)),
        }
    }

    /// Ends the RPCs that were under way with a peer until now.
    pub(super) fn sweep_failed(&mut self, of: PeerKey, now: Time, error: CallFailed) {
        let same = |sweep: &Sweep| matches!(sweep.of, Swept::Failed(peer, at, _) if (peer, at) == (of, now));
        // What a flood of errors says beyond this is found out by silence.
        if self.sweeps.len() < SWEEPS_MAX && !self.sweeps.iter().any(same) {
            self.sweeps.push_back(Sweep { of: Swept::Failed(of, now, error), slot: 0 });
        }
    }

    /// Asks the peer at once about the message to it that was begun last, or for its token.
    fn probe_last(&mut self, now: Time, of: PeerKey) {
        let Some(peer) = self.peers.get_mut(of) else { return };
        if peer.contact.opening().is_some() {
            return self.send_open(now, of);
        }
        let Some(key) = peer.flight.last() else { return };
        self.probe(now, key);
        self.arm(now, key);
    }

    /// Nobody serves a port of a native peer: the RPCs with that port end. Others of the same peer go on.
    fn sweep_service(&mut self, now: Time, of: PeerKey, port: u16) {
        let same = |sweep: &Sweep| matches!(sweep.of, Swept::Service(peer, _, other) if (peer, other) == (of, port));
        // What a flood of errors says beyond this is found out by silence.
        if self.sweeps.len() < SWEEPS_MAX && !self.sweeps.iter().any(same) {
            self.sweeps.push_back(Sweep { of: Swept::Service(of, now, port), slot: 0 });
        }
    }

    fn on_due(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        if rpc.armed > now {
            return; // Another entry of the wheel stands for it.
        }
        let late = now.saturating_since(rpc.armed);
        rpc.armed = Time::ZERO;
        //= docs/protocol.md#life-3
        if rpc.expires.is_some_and(|expires| expires <= now) {
            let after = now.saturating_since(rpc.started);
            return self.fail(key, CallFailed::DeadlineExceeded { after });
        }
        let timeout = self.config.peer_timeout;
        //= docs/protocol.md#life-4
        let of = rpc.peer;
        let peer = self.peers.get_mut(of).expect("peers outlive their RPCs");
        if rpc.is_lost(now, timeout, peer) {
            return self.give_up(now, key);
        }
        if rpc.due(timeout) <= now && !rpc.queued {
            match rpc.waiting() {
                _ if rpc.may_queue() => self.probe_in_turn(now, key),
                Waiting::Nobody => rpc.last_rx = now,
                //= docs/protocol.md#loss-10
                Waiting::Data if late > LATE && rpc.last_probe <= rpc.last_rx => {
                    rpc.last_probe = now
                }
                Waiting::Data => match rpc.preempted(now, timeout, &self.downlink) {
                    Preempted::Yes => {}
                    Preempted::ForLong => self.probe_for(now, key, 1),
                    Preempted::No => self.probe(now, key),
                },
                _ => self.probe(now, key),
            }
        }
        self.arm(now, key);
    }

    fn give_up(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        if rpc.is_client() {
            //= docs/protocol.md#life-9
            let opening = self.peers.get(rpc.peer).and_then(|peer| peer.contact.opening());
            let (since, attempts) = match opening {
                Some(opening) => (rpc.started, opening.sent),
                None => (rpc.last_rx, rpc.probes_unanswered),
            };
            let error = if rpc.refused {
                CallFailed::Overloaded { after: now.saturating_since(rpc.started) }
            } else {
                CallFailed::PeerTimeout {
                    waited_for: rpc.awaited(),
                    silent_for: now.saturating_since(since),
                    attempts: u32::from(attempts),
                }
            };
            return self.fail(key, error);
        }
        if rpc.phase == Phase::Outgoing {
            self.counters.responses_unacknowledged += 1;
        } else {
            //= docs/protocol.md#server-1
            self.counters.requests_timed_out += 1;
        }
        self.remove_rpc(key);
    }

    /// Asks the peer for what is missing (rules `loss-1` to `loss-3`).
    pub(super) fn probe(&mut self, now: Time, key: RpcKey) {
        self.probe_for(now, key, u32::MAX);
    }

    /// As [`probe`](Self::probe), for no more than `most` bytes of missing data; the peer sends whole packets.
    fn probe_for(&mut self, now: Time, key: RpcKey, most: u32) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let waiting = rpc.waiting();
        rpc.last_probe = now;
        rpc.probes_unanswered = rpc.probes_unanswered.saturating_add(1);
        rpc.disturbed |= waiting == Waiting::Data;
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        peer.prober.note(now, rpc.rto);
        let priority = self.traffic.control();
        match waiting {
            //= docs/protocol.md#server-2
            Waiting::Nobody if rpc.phase == Phase::InService => {
                self.control_for(key, Body::NeedAck);
            }
            Waiting::Nobody => {}
            Waiting::Response => {
                self.control_for(key, Body::Resend(Resend { offset: 0, length: None, priority }));
            }
            //= docs/protocol.md#ack-3
            Waiting::Acknowledgement | Waiting::Grant => self.control_for(key, Body::NeedAck),
            Waiting::Confirmation => self.ask_for_confirmation(now, key),
            Waiting::Data => {
                let Some(message) = &mut rpc.incoming else { return };
                message.ahead = self.downlink.ahead_of(message.lowest_level());
                //= docs/protocol.md#grant-7
                let expected = rpc.probes_unanswered + rpc.probes_answered < SILENT_AFTER;
                self.grants.suspend(now, key, message, expected, peer, rpc.peer);
                //= docs/protocol.md#loss-3
                let ranges = if most == u32::MAX { ASKED_MAX } else { 1 };
                let missing: Vec<_> = message.missing().take(ranges).collect();
                for range in missing {
                    let length = Some((range.end - range.start).min(most));
                    let resend = Resend { offset: range.start, length, priority };
                    self.control_for(key, Body::Resend(resend));
                }
            }
        }
    }

    /// Asks now, or when it is this RPC's turn.
    fn probe_in_turn(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        //= docs/protocol.md#loss-12
        let waiting = peer.prober.is_waiting();
        if !waiting && peer.prober.take(now) {
            return self.probe(now, key);
        }
        rpc.queued = true;
        peer.prober.push(key, rpc.is_known());
        if !waiting {
            if self.probing.is_empty() {
                self.next_probes = now + TICK;
            }
            self.probing.push_back(rpc.peer);
        }
    }

    /// Asks what waited for its turn, one peer's after the other.
    fn probe_queued(&mut self, now: Time) {
        if self.probing.is_empty() || now < self.next_probes {
            return;
        }
        self.next_probes = now + TICK;
        let mut left = QUEUED_MAX;
        for _ in 0..self.probing.len() {
            let Some(of) = self.probing.pop_front() else { return };
            self.probe_queued_of(now, of, &mut left);
            if self.peers.get(of).is_some_and(|peer| peer.prober.is_waiting()) {
                self.probing.push_back(of);
            }
            if left == 0 {
                return;
            }
        }
    }

    fn probe_queued_of(&mut self, now: Time, of: PeerKey, left: &mut usize) {
        while *left > 0 {
            let Some(peer) = self.peers.get_mut(of) else { return };
            if !peer.prober.is_waiting() || !peer.prober.take(now) {
                return;
            }
            *left -= 1;
            let asked = peer.prober.pop().is_some_and(|key| self.take_turn(now, key));
            if !asked {
                self.peers.get_mut(of).expect("looked at above").prober.give_back();
            }
        }
    }

    /// It is this RPC's turn to ask; false if it has ended, or has nothing to ask any more.
    fn take_turn(&mut self, now: Time, key: RpcKey) -> bool {
        let Some(rpc) = self.rpcs.get_mut(key).filter(|rpc| rpc.queued) else { return false };
        rpc.queued = false;
        let asks = rpc.may_queue() && rpc.due(self.config.peer_timeout) <= now;
        if asks {
            self.probe(now, key);
        }
        self.arm(now, key);
        asks
    }

    /// One step of the oldest sweep.
    pub(super) fn sweep(&mut self, now: Time) {
        let Some(sweep) = self.sweeps.front_mut() else { return };
        let (of, first) = (sweep.of, sweep.slot);
        sweep.slot += SWEEP_STEP;
        //= docs/protocol.md#server-5
        for slot in first..first + SWEEP_STEP {
            if let Some((key, rpc)) = self.rpcs.at(slot)
                && of.has(rpc)
            {
                self.end_swept(now, key, of);
            }
        }
        if first + SWEEP_STEP >= self.rpcs.slots() {
            self.sweeps.pop_front();
        }
    }

    fn end_swept(&mut self, now: Time, key: RpcKey, of: Swept) {
        let is_client = self.rpcs.get(key).is_some_and(Rpc::is_client);
        match of {
            Swept::Run(_, successor) => self.end_with_run(now, key, successor),
            Swept::Failed(_, _, error) if is_client => self.fail(key, error),
            //= docs/protocol.md#linux-3
            Swept::Service(..) if is_client => self.fail(key, CallFailed::NoSuchPort),
            _ => {
                self.remove_rpc(key);
            }
        }
    }

    fn forget_idle_peers(&mut self, now: Time) {
        for _ in 0..PEERS_PER_CHECK.min(self.peers.slots()) {
            self.peer_cursor = (self.peer_cursor + 1) % self.peers.slots();
            let Some((key, peer)) = self.peers.at(self.peer_cursor) else { continue };
            //= docs/protocol.md#server-4
            let over = peer.contact.is_over() && peer.may_be_evicted(now);
            let idle = over || now.saturating_since(peer.last_rx) >= PEER_IDLE;
            if peer.rpcs == 0 && idle {
                self.counters.peers_forgotten += 1;
                self.forget_peer(key);
            }
        }
    }

    /// Takes a peer without RPCs out of every table. What it was known by is known no more.
    pub(super) fn forget_peer(&mut self, of: PeerKey) {
        let Some(peer) = self.peers.get(of).filter(|peer| peer.rpcs == 0) else { return };
        let (addr, token, held, theirs) = (peer.addr, peer.token, peer.held, Named::name(peer));
        self.theirs_index.remove(of, theirs);
        self.peer_index.remove(of, addr);
        if token != Token::NONE {
            self.token_index.remove(of, token);
        }
        self.peers.remove(of);
        self.total.held -= held;
        (self.last_peer, self.last_token) = (None, None);
    }

    /// Makes sure that another peer may be known; false if all are in use.
    pub(super) fn make_room(&mut self, now: Time, room: Room) -> bool {
        //= docs/protocol.md#hostile-4
        let (most, looked_at) = match room {
            Room::ForServer => (self.config.peers_max, self.peers.slots()),
            Room::ForClient => {
                let reserve = self.config.peers_max / OWN_SHARE;
                (self.config.peers_max - reserve, EVICTION_MAX.min(self.peers.slots()))
            }
        };
        //= docs/protocol.md#host-4
        if self.peers.len() as u64 + self.others.peers < most as u64 {
            return true;
        }
        let mut oldest: Option<(bool, Time, PeerKey)> = None;
        for _ in 0..looked_at {
            self.peer_cursor = (self.peer_cursor + 1) % self.peers.slots();
            let Some((key, peer)) = self.peers.at(self.peer_cursor) else { continue };
            if peer.rpcs == 0 && peer.may_be_evicted(now) {
                let place = (peer.is_confirmed(), peer.last_rx, key);
                oldest = Some(oldest.map_or(place, |before| before.min(place)));
            }
        }
        let Some((_, _, key)) = oldest else { return false };
        self.counters.peers_evicted += 1;
        self.forget_peer(key);
        true
    }
}

/// For whom a peer is made known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// For a client that called us: it leaves a part of the table to our own calls.
    ForClient,
    /// For a server that we call.
    ForServer,
}

/// The part of the peer table that is kept for peers we call: one in so many.
const OWN_SHARE: usize = 8;

/// Peers looked at for one that can be forgotten when a stranger wants its place.
const EVICTION_MAX: usize = 64;

impl Swept {
    /// Whether this RPC ends.
    fn has(self, rpc: &Rpc) -> bool {
        match self {
            Self::Socket(socket) => rpc.socket == socket,
            Self::Run(peer, _) => rpc.peer == peer,
            Self::Failed(peer, at, _) => rpc.peer == peer && rpc.started <= at,
            Self::Service(peer, at, port) => {
                (rpc.peer, rpc.remote_port) == (peer, port) && rpc.started <= at
            }
            Self::Incarnation(peer, at) => {
                let begun = rpc.phase == Phase::Incoming && !rpc.is_client();
                rpc.peer == peer && begun && rpc.started < at
            }
        }
    }
}
