//! The endpoint: its tables, and what belongs to no single kind of input or output.

use std::collections::{BTreeSet, VecDeque};

use apus_wire::{Header, Meet, PacketSink, PathId, UnknownReason};

use bytes::Bytes;

use crate::config::Config;
use crate::control::Body;
use crate::counters::Counters;
use crate::endpoint::event::Event;
use crate::endpoint::event::SpentBodies;
use crate::endpoint::parts::Parts;
use crate::endpoint::step::{End, Ended, Step};
use crate::endpoint::sweeps::{Sweeps, Swept};
use crate::endpoint::turns::Turns;
use crate::error::{CallFailed, OpenError};
use crate::grant::Issued;
use crate::host::HostLoad;
use crate::local::{LocalCalls, is_local};
use crate::outgoing::Outgoing;
use crate::peers::Peers;
use crate::rpcs::Rpcs;
use crate::secrets::Secrets;
use crate::slab::{Handle as _, PeerKey, RpcKey, SocketKey};
use crate::time::{Time, sooner};
use crate::trace::{TraceChoice, TraceEvent, TraceMark, TraceSink, Tracer, cause};

/// One node's end of the protocol: pure state.
///
/// # Order of calls
///
/// Input: `handle_packet` for each packet of a batch, `handle_path_error`, and `handle_timeout`
/// when `poll_timeout` has passed. Then output: `poll_transmit` until it returns false,
/// `poll_event` until it returns `None`, and `poll_timeout` for when to come back at the latest.
/// Bodies that are not needed any more stay until `take_spent`, so that the caller chooses where they are dropped.
/// `call`, `reply` and `abort` are the application's; they send nothing by themselves.
///
/// Every call does a bounded amount of work.
#[derive(Debug)]
pub struct Endpoint {
    pub(super) rpcs: Rpcs,
    /// Calls within the host.
    pub(super) local: LocalCalls,
    /// MEETs of known peers that wait to be taken.
    pub(super) meets: VecDeque<(PathId, Meet)>,
    pub(super) peers: Peers,
    pub(super) parts: Parts,
    pub(super) secrets: Secrets,
    /// The message that the last packet of one of several packets belonged to.
    pub(super) last_long: Option<RpcKey>,
    /// The request that was looked at last for one that arrives slowly.
    pub(super) slow_looked_at: (u32, RpcKey),
    /// The message whose next packet is expected next.
    pub(super) receive_target: Option<RpcKey>,
    /// Peers whose tokens are asked for, by when the next OPEN goes.
    pub(super) openings: BTreeSet<(Time, PeerKey)>,
    /// Taken from the timer wheel and not looked at yet.
    pub(super) expired: Vec<RpcKey>,
    pub(super) turns: Turns,
    pub(super) sweeps: Sweeps,
    /// Grants to be sent; empty between calls.
    pub(super) issued: Vec<Issued>,
}

impl Endpoint {
    /// An endpoint without sockets.
    ///
    /// `seed` makes this run of the node another than any other, and keys the hash tables and everything that
    /// peers must not guess: take it from the system's random numbers, or fix it for a run that can be
    /// repeated. Two nodes, or two runs of one, with the same seed are a hole in at most once.
    ///
    /// # Panics
    ///
    /// If [`Config::check`] finds an error, which a caller that takes settings from elsewhere asks before.
    #[must_use]
    pub fn new(mut config: Config, seed: u128) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        if let Some(link_mbps) = config.link_mbps_set() {
            config.follow_link(link_mbps);
        }
        let secrets = Secrets::new(seed);
        Self {
            rpcs: Rpcs::new(secrets.tables()),
            local: LocalCalls::new(secrets.tables()),
            meets: VecDeque::new(),
            peers: Peers::new(secrets.tables()),
            parts: Parts::new(config, secrets.first_version()),
            secrets,
            last_long: None,
            slow_looked_at: (0, RpcKey::from_bits(0)),
            receive_target: None,
            openings: BTreeSet::new(),
            expired: Vec::new(),
            turns: Turns::default(),
            sweeps: Sweeps::default(),
            issued: Vec::new(),
        }
    }

    /// From now on, events of chosen calls go to `sink`, and those of slow and failed calls. A call is chosen by its id, so both
    /// ends choose the same ones. Calls within the host are not recorded.
    pub fn set_trace(&mut self, sink: Box<dyn TraceSink>, choice: TraceChoice) {
        self.parts.tracer = Tracer::new(sink, choice);
    }

    /// From now on, other calls are recorded. Has no effect before [`set_trace`](Self::set_trace).
    pub fn set_trace_choice(&mut self, choice: TraceChoice) {
        self.parts.tracer.choose(choice);
    }

    /// How an RPC that was just begun here, or whose request was just delivered, is known in the trace; `None` if it was not
    /// chosen. To be asked once, at that moment. Costs a load if no chosen RPC waits to be asked for.
    #[inline]
    pub fn take_trace_mark(&mut self, key: RpcKey) -> Option<TraceMark> {
        self.parts.tracer.take_mark(key)
    }

    /// Opens a socket: `Some(port)` to serve on that port (1 to 32767), `None` to get a port for
    /// calls only.
    ///
    /// # Errors
    ///
    /// When the port is out of range or taken.
    pub fn open(&mut self, port: Option<u16>) -> Result<SocketKey, OpenError> {
        self.parts.sockets.open(port)
    }

    /// Closes a socket. Its RPCs are forgotten a few at a time; no event follows for any of them.
    pub fn close(&mut self, socket: SocketKey) {
        if self.port(socket).is_some() {
            self.set_untaken(socket, 0, 0);
            self.close_local(socket);
            self.parts.sockets.close(socket);
            self.sweeps.push(Swept::Socket(socket));
        }
    }

    /// Bytes of the longest message that is sent or taken.
    #[must_use]
    pub fn longest_message(&self) -> usize {
        self.parts.config.message_max as usize
    }

    /// The port of a socket that is open.
    #[must_use]
    pub fn port(&self, socket: SocketKey) -> Option<u16> {
        self.parts.sockets.port(socket)
    }

    /// Gives an RPC up, whatever its state; no event follows. A client's server is told, by one packet that may be lost: then it
    /// finds out when it asks for the acknowledgement. A server's client finds out when it asks for the response. False if the
    /// RPC had ended.
    pub fn abort(&mut self, key: RpcKey) -> bool {
        if is_local(key) {
            return self.abort_local(key, UnknownReason::Finished);
        }
        self.tell_aborted(key);
        let Some(ended) = self.remove_rpc(key) else { return false };
        if ended.is_client {
            self.parts.counters.calls_aborted += 1;
        } else {
            self.parts.counters.requests_abandoned += 1;
        }
        true
    }

    /// Takes back the body of a call that was refused just now.
    pub fn take_refused(&mut self) -> Option<Bytes> {
        self.parts.spent.0.pop()
    }

    /// Whether calls of this node are under way.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.parts.outstanding > 0 || self.local.has_calls()
    }

    /// Keeps a body that is not needed any more until [`take_spent`](Self::take_spent).
    #[inline]
    pub fn discard(&mut self, body: Bytes) {
        self.parts.spent.0.push(body);
    }

    /// Whether there are spent bodies to take.
    #[inline]
    #[must_use]
    pub fn has_spent(&self) -> bool {
        !self.parts.spent.0.is_empty()
    }

    /// Moves the bodies of calls and responses that are not needed any more into `spent`, which must be empty. Dropping a
    /// body may run any code of the application ([`Bytes::from_owner`]), so the caller drops them where it holds no lock. An
    /// endpoint whose spent bodies are not taken keeps them.
    #[inline]
    pub fn take_spent(&mut self, spent: &mut SpentBodies) {
        debug_assert!(spent.0.is_empty(), "the bodies of the last time are dropped");
        std::mem::swap(&mut self.parts.spent, spent);
    }

    /// The next event for the application.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.parts.events.pop_front()?;
            if self.parts.sockets.get(event.socket()).is_some() {
                return Some(event);
            }
        }
    }

    /// When [`Endpoint::handle_timeout`] or [`Endpoint::poll_transmit`] has something to do by
    /// itself; [`Time::ZERO`] for now, `None` for never.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.expired.is_empty() {
            return Some(Time::ZERO);
        }
        let opening = self.openings.first().map(|&(due, _)| due);
        let due = sooner(self.poll_ready(), self.parts.wheel.next());
        let due = sooner(due, sooner(self.peers.next_check(), sooner(self.turns.next(), opening)));
        if self.local.len() == 0 { due } else { sooner(due, self.local_timeout()) }
    }

    /// The part of [`Endpoint::poll_timeout`] that is worth being punctual for: when
    /// [`Endpoint::poll_transmit`] has something to send. The other timers mean "not
    /// before": nothing is lost when they are some milliseconds late.
    #[must_use]
    #[inline]
    pub fn poll_ready(&self) -> Option<Time> {
        if self.has_urgent_packets() || !self.local.waiting.is_empty() {
            return Some(Time::ZERO);
        }
        self.parts.order.has_paced().then(|| self.parts.pacer.ready_at())
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has anything to do: false while all messages stay within the host.
    #[must_use]
    #[inline]
    pub fn has_packets(&self) -> bool {
        self.has_urgent_packets() || self.parts.order.has_paced() || self.peers.has_path_changes()
    }

    #[inline]
    fn has_urgent_packets(&self) -> bool {
        let parts = &self.parts;
        !parts.outbox.is_empty()
            || parts.order.has_urgent()
            || parts.grants.has_work()
            || !self.sweeps.is_empty()
    }

    /// Counts since the beginning.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.parts.counters
    }

    /// RPCs in any state, of both roles. A server's are counted until they are acknowledged.
    #[must_use]
    pub fn active_rpcs(&self) -> usize {
        self.rpcs.len() + self.local.len()
    }

    /// Peers remembered.
    #[must_use]
    pub fn known_peers(&self) -> usize {
        self.peers.len()
    }

    /// Bytes charged to the total budget.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.parts.total.usage.charged
    }

    /// Whether a part of a long message waits that may be sent: the next [`poll_transmit`](Self::poll_transmit) takes as long as
    /// copying it.
    #[must_use]
    #[inline]
    pub fn sends_long(&self) -> bool {
        self.parts.order.has_paced()
    }

    /// Whether an RPC has not ended, and its client waits for it: false for a request whose client has given the call up, or is lost.
    #[must_use]
    #[inline]
    pub fn is_active(&self, key: RpcKey) -> bool {
        if is_local(key) {
            return self.is_local_active(key);
        }
        self.rpcs.get(key).is_some_and(|rpc| !rpc.cancelled)
    }

    /// Ends a request in service that the application has not begun to execute, because nobody waits for its response: its client has
    /// given the call up or is lost, or its deadline has passed. The client is told nothing, because its call has ended too.
    pub fn skip(&mut self, key: RpcKey) {
        //= docs/protocol.md#life-11
        self.parts.counters.requests_skipped += 1;
        if is_local(key) {
            self.end_local(key);
        } else {
            self.remove_rpc(key);
        }
    }

    /// Nothing is under way and nothing waits to be sent or told. MEETs that wait do not count, because a peer may send them
    /// without end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let Parts { outbox, events, .. } = &self.parts;
        let quiet = outbox.is_empty() && self.local.waiting.is_empty() && events.is_empty();
        self.active_rpcs() == 0 && quiet
    }

    /// Bytes of message data the link's receive buffer holds in packets shorter than 16,000 bytes; of longer ones it holds almost
    /// twice as much. Grants stay below three eighths of it (rule `grant-6`). The peers' are taken to hold as much: unscheduled
    /// bytes in flight to one stay below a quarter (`unsched-2`).
    pub fn set_receive_capacity(&mut self, bytes: u64) {
        self.parts.set_receive_capacity(bytes);
    }

    /// What this endpoint holds of its host's link, for the other endpoints. Costs a few loads.
    #[must_use]
    #[inline]
    pub fn load(&self) -> HostLoad {
        let parts = &self.parts;
        HostLoad {
            expected: parts.grants.expected(),
            granting: parts.grants.granting(),
            sent: parts.pacer.sent(),
            sending: u64::from(parts.order.has_paced()),
            held: parts.total.usage.charged + self.books().reserved(),
            peers: self.peers.len() as u64,
            calls: u64::from(parts.outstanding),
        }
    }

    /// What the other endpoints of the host hold, summed: what this one grants and sends from now
    /// on leaves room for it. For a host with several endpoints, before output, each turn; one alone
    /// never needs it. Costs a few stores.
    #[inline]
    pub fn set_others(&mut self, now: Time, others: HostLoad) {
        let parts = &mut self.parts;
        parts.grants.set_others(others);
        parts.pacer.set_others(now, others.sent, others.sending);
        if others.held < parts.others.held {
            parts.grants.make_room();
        }
        parts.others = others;
    }

    /// An endpoint for simulations in which only time counts: messages of several packets are delivered with
    /// an empty body and take no memory. All else is as with [`new`](Self::new).
    #[must_use]
    pub fn counting(mut config: Config, seed: u128) -> Self {
        config.keep_payload = false;
        Self::new(config, seed)
    }

    /// Tells the link which paths peers are known by now, and which no more, as [`poll_transmit`](Self::poll_transmit) does first.
    /// For a caller that gives the endpoint paths which are not held yet, and many of them before it transmits.
    #[inline]
    pub fn tell_paths<S: PacketSink + ?Sized>(&mut self, sink: &mut S) {
        self.peers.tell_paths(sink);
    }

    /// Facts about a path: traffic that stays on the host is not paced, and the rate of
    /// the host's link paces the rest, unless [`Config::link_mbps`] says otherwise.
    pub fn set_path(&mut self, now: Time, path: PathId, loopback: bool, link_mbps: Option<u64>) {
        let unset = !self.parts.config.is_set("link_mbps");
        if let Some(rate) = link_mbps.filter(|_| !loopback && unset) {
            self.parts.follow_link(rate);
        }
        if let Some(key) = self.peer_for_call(now, path) {
            self.peers[key].loopback = loopback;
        }
    }

    #[inline]
    pub(super) fn step(&mut self, key: RpcKey) -> Option<Step<'_>> {
        let rpc = self.rpcs.get_mut(key)?;
        let peer = &mut self.peers[rpc.peer];
        Some(Step { key, rpc, peer, parts: &mut self.parts })
    }

    /// The RPC that a packet of `peer` is about, if there is one and its ports fit.
    #[inline]
    pub(super) fn step_for(&mut self, peer: PeerKey, header: &Header) -> Option<Step<'_>> {
        let Some(key) = self.rpcs.find(peer, header.sender_id.flipped()) else {
            self.parts.counters.dropped_unknown_rpc += 1;
            return None;
        };
        let step = self.step(key)?;
        //= docs/protocol.md#life-1
        if !step.rpc.has_ports_of(header) {
            step.parts.counters.dropped_mismatch += 1;
            return None;
        }
        Some(step)
    }

    /// Takes an RPC out of every table.
    pub(super) fn remove_rpc(&mut self, key: RpcKey) -> Option<Ended> {
        let mut step = self.step(key)?;
        step.leave_peer();
        let (ended, defers_any) = (step.ended(), step.peer.flight.defers_any());
        self.parts.outstanding = self.parts.outstanding.saturating_sub(u32::from(ended.is_client));
        self.rpcs.remove(key);
        if defers_any {
            self.release(ended.peer);
        }
        Some(ended)
    }

    /// Tells the server of a call that it is given up, unless the server knows nothing of it.
    pub(super) fn tell_aborted(&mut self, key: RpcKey) {
        let Some(mut step) = self.step(key) else { return };
        let request = step.rpc.outgoing();
        let is_known = step.rpc.phase.is_incoming() || request.is_some_and(Outgoing::has_begun);
        //= docs/protocol.md#life-8
        if is_known && step.rpc.is_client() && !step.peer.native && step.peer.contact.may_send() {
            step.control(Body::Abort);
        }
    }

    /// Ends an RPC as a step of it says.
    #[inline]
    pub(super) fn end(&mut self, now: Time, key: RpcKey, end: Option<End>) {
        let Some(end) = end else { return };
        if self.parts.tracer.watches() {
            self.look_at_time(now, key);
        }
        match end {
            End::Failed(error) => self.fail(key, error),
            End::Responded(body) => self.complete_call(now, key, body),
            End::Forgotten => {
                self.remove_rpc(key);
            }
        }
    }

    /// An RPC ends. If it is a call that took too long, both ends keep what they have recorded.
    #[cold]
    fn look_at_time(&mut self, now: Time, key: RpcKey) {
        let Some(mut step) = self.step(key).filter(|step| step.rpc.is_client()) else { return };
        let took = now.saturating_since(step.rpc.started);
        if !step.parts.tracer.is_slow(took) {
            return;
        }
        let mark = step.peer.trace_mark(step.rpc.id);
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        step.parts.tracer.record(TraceEvent::SlowCall, mark, micros, 0);
        step.parts.counters.slow_calls += 1;
        if step.parts.tracer.may_freeze(now, false) {
            if step.peer.contact.may_send() {
                step.control(Body::Freeze);
                step.parts.tracer.record(TraceEvent::FreezeXmit, mark, 0, 0);
            }
            step.parts.tracer.freeze();
        }
    }

    pub(super) fn fail(&mut self, key: RpcKey, error: CallFailed) {
        if matches!(error, CallFailed::DeadlineExceeded { .. }) {
            self.tell_aborted(key);
        }
        if let Some(step) = self.step(key) {
            let mark = step.peer.trace_mark(step.rpc.id);
            step.parts.tracer.record(TraceEvent::CallFailed, mark, cause(&error), 0);
        }
        let Some(Ended { socket, cookie, .. }) = self.remove_rpc(key) else { return };
        self.parts.counters.calls_failed += 1;
        self.parts.events.push_back(Event::Failed { socket, rpc: key, cookie, error });
    }

    /// Lets deferred messages to a peer begin for which there is room in flight.
    #[inline]
    pub(super) fn release_deferred(&mut self, peer: PeerKey) {
        if self.peers.get(peer).is_some_and(|peer| peer.flight.defers_any()) {
            self.release(peer);
        }
    }

    pub(super) fn release(&mut self, peer: PeerKey) {
        let Some(peer) = self.peers.get_mut(peer).filter(|peer| peer.contact.may_send()) else {
            return;
        };
        let mut connected = Vec::new();
        for key in peer.flight.release(self.parts.flight_max) {
            match self.rpcs.get_mut(key).and_then(|rpc| rpc.outgoing_mut()) {
                Some(message) => self.parts.order.release(key, message),
                None => connected.push(key),
            }
        }
        connected.into_iter().for_each(|key| self.connected(key));
    }

    /// Lets responses go on whose client is now known to receive at its address.
    pub(super) fn unblock(&mut self, blocked: BTreeSet<RpcKey>) {
        for key in blocked {
            if let Some(message) = self.rpcs.get_mut(key).and_then(|rpc| rpc.outgoing_mut()) {
                self.parts.order.unblock(key, message);
            }
        }
    }

    /// The peer is known to receive at its address.
    pub(super) fn confirm_peer(&mut self, peer: PeerKey) {
        let blocked = self.peers[peer].confirm();
        self.parts.grants.bring_forward(&mut self.peers[peer], peer);
        self.unblock(blocked);
    }
}
