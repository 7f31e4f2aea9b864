//! The endpoint: its tables, and the code that belongs to no single kind of input or output.

use std::collections::{BTreeSet, VecDeque};

use apus_wire::{Header, Meet, PacketSink, PathId, UnknownReason};

use crate::body::Body;
use crate::config::Config;
use crate::control;
use crate::cookie::Cookie;
use crate::counters::Counters;
use crate::endpoint::event::Event;
use crate::endpoint::event::SpentBodies;
use crate::endpoint::parts::Parts;
use crate::endpoint::probe_queue::ProbeQueue;
use crate::endpoint::questions::Questions;
use crate::endpoint::step::{End, Ended, Step};
use crate::endpoint::sweeps::{Sweeps, Swept};
use crate::error::{CallFailed, OpenError};
use crate::grant::Issued;
use crate::host::HostLoad;
use crate::local::{CallRole, LocalCalls, is_local};
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::peers::Peers;
use crate::rights::{PathRights, Rights};
use crate::rpc::Rpc;
use crate::rpcs::Rpcs;
use crate::secrets::Secrets;
use crate::slab::{Handle as _, PeerKey, RpcKey, SocketKey};
use crate::time::{Time, sooner};
use crate::trace::{TraceChoice, TraceEvent, TraceMark, TraceSink, Tracer, cause};

/// One node's end of the protocol: pure state.
///
/// # Order of calls
///
/// Input: `handle_packet` for each packet of a batch, `handle_path_error`, and `handle_timeout` once `poll_timeout` has passed.
/// Then output: `poll_transmit` until it returns false, `poll_event` until it returns `None`, and `poll_timeout` for the latest
/// time of the next input. Bodies that are no longer needed stay until `take_spent`, so that the caller chooses where to drop them.
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
    pub(super) rights: PathRights,
    pub(super) parts: Parts,
    pub(super) secrets: Secrets,
    /// The multi-packet message that the last such packet belonged to.
    pub(super) last_long: Option<RpcKey>,
    /// The request that was examined last in the search for a slow one.
    pub(super) slow_looked_at: (u32, RpcKey),
    /// The message whose packet is expected next.
    pub(super) receive_target: Option<RpcKey>,
    /// Peers whose tokens are awaited, by the time of the next OPEN.
    pub(super) openings: BTreeSet<(Time, PeerKey)>,
    /// RPCs that were taken from the timer wheel and not examined yet.
    pub(super) expired: Vec<RpcKey>,
    pub(super) probe_queue: ProbeQueue,
    pub(super) sweeps: Sweeps,
    /// Grants to transmit; empty between calls.
    pub(super) issued: Vec<Issued>,
    pub(super) questions: Questions,
}

impl Endpoint {
    /// Creates an endpoint without sockets.
    ///
    /// `seed` distinguishes this run of the node from any other, and keys the hash tables and everything that peers must not guess.
    /// Take it from the system's random numbers, or fix it for a repeatable run. Two nodes, or two runs of one, with the same seed
    /// break at-most-once execution.
    ///
    /// # Panics
    ///
    /// If [`Config::check`] finds an error. Call it first for settings from elsewhere.
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
            rights: PathRights::default(),
            parts: Parts::new(config, secrets.first_version()),
            secrets,
            last_long: None,
            slow_looked_at: (0, RpcKey::from_bits(0)),
            receive_target: None,
            openings: BTreeSet::new(),
            expired: Vec::new(),
            probe_queue: ProbeQueue::default(),
            sweeps: Sweeps::default(),
            issued: Vec::new(),
            questions: Questions::default(),
        }
    }

    /// Sends events of chosen calls, and of slow and failed calls, to `sink` from now on. The id determines whether a call is
    /// chosen, so both ends choose the same ones. Calls within the host are not recorded.
    pub fn set_trace(&mut self, sink: Box<dyn TraceSink>, choice: TraceChoice) {
        self.parts.tracer = Tracer::new(sink, choice);
    }

    /// Changes the choice of recorded calls. Has no effect before [`set_trace`](Self::set_trace).
    pub fn set_trace_choice(&mut self, choice: TraceChoice) {
        self.parts.tracer.choose(choice);
    }

    /// Returns the mark in the trace of an RPC that was just begun here, or whose request was just delivered; `None` if it was not
    /// chosen. Call it once, at that moment. Costs a load if there are no marks.
    #[inline]
    pub fn take_trace_mark(&mut self, key: RpcKey) -> Option<TraceMark> {
        self.parts.tracer.take_mark(key)
    }

    /// Opens a socket: `Some(port)` to serve on that port (1 to 32767), `None` for a socket that only makes calls.
    ///
    /// # Errors
    ///
    /// If the port is out of range or in use.
    pub fn open(&mut self, port: Option<u16>) -> Result<SocketKey, OpenError> {
        self.parts.sockets.open(port)
    }

    /// Closes a socket. Its RPCs end a few at a time, without events.
    pub fn close(&mut self, socket: SocketKey) {
        if self.port(socket).is_some() {
            self.set_undelivered(socket, 0, 0);
            self.close_local(socket);
            self.parts.sockets.close(socket);
            self.sweeps.push(Swept::Socket(socket));
        }
    }

    /// Returns the length of the longest message that is sent or taken, in bytes.
    #[must_use]
    pub fn longest_message(&self) -> usize {
        self.parts.config.message_max as usize
    }

    /// Returns the port of an open socket.
    #[must_use]
    pub fn port(&self, socket: SocketKey) -> Option<u16> {
        self.parts.sockets.port(socket)
    }

    /// Gives an RPC up in any state, without an event. One packet informs the server of a client's call. If that packet is lost,
    /// the answer to the server's next request for the acknowledgement shows the end. For a server's request, the answer to the
    /// client's next request for the response shows it. Returns `false` if the RPC had ended.
    pub fn abort(&mut self, key: RpcKey) -> bool {
        if is_local(key) {
            return self.abort_local(key, UnknownReason::Finished);
        }
        self.send_abort(key);
        let Some(ended) = self.remove_rpc(key) else { return false };
        if ended.is_client {
            self.parts.counters.calls_aborted += 1;
        } else {
            self.parts.counters.requests_abandoned += 1;
        }
        true
    }

    /// Returns the calls of a socket with this cookie. Looks at all RPCs of the endpoint.
    #[must_use]
    pub fn find_calls(&self, socket: SocketKey, cookie: Cookie) -> Vec<RpcKey> {
        let remote = (0..self.rpcs.slots()).filter_map(|slot| self.rpcs.at(slot));
        let is_it = |rpc: &Rpc| rpc.is_client() && rpc.socket == socket && rpc.cookie == cookie;
        let mut found = self.local.find(|call| {
            let own = matches!(&call.role, CallRole::Client(client) if client.cookie == cookie);
            own && call.socket == socket
        });
        found.extend(remote.filter(|(_, rpc)| is_it(rpc)).map(|(key, _)| key));
        found
    }

    /// Returns the body of the call that was refused just now.
    pub fn take_refused(&mut self) -> Option<Body> {
        self.parts.spent.0.pop()
    }

    /// Returns whether calls of this node are in progress.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.parts.outstanding > 0 || self.local.has_calls()
    }

    /// Keeps a body that is no longer needed until [`take_spent`](Self::take_spent).
    #[inline]
    pub fn discard(&mut self, body: impl Into<Body>) {
        self.parts.spent.0.push(body.into());
    }

    /// Returns whether there are spent bodies to take.
    #[inline]
    #[must_use]
    pub fn has_spent(&self) -> bool {
        !self.parts.spent.0.is_empty()
    }

    /// Moves the bodies of calls and responses that are no longer needed into `spent`, which must be empty. Dropping a body may run
    /// any code of the application ([`bytes::Bytes::from_owner`]), so the caller drops them where it holds no lock. An endpoint keeps its
    /// spent bodies until they are taken.
    #[inline]
    pub fn take_spent(&mut self, spent: &mut SpentBodies) {
        debug_assert!(spent.0.is_empty(), "the bodies of the last time are dropped");
        std::mem::swap(&mut self.parts.spent, spent);
    }

    /// Removes and returns the only body that [`take_spent`](Self::take_spent) would move, if it is one.
    #[inline]
    pub fn take_only_spent(&mut self) -> Option<Body> {
        if self.parts.spent.0.len() == 1 { self.parts.spent.0.pop() } else { None }
    }

    /// Returns whether messages wait for [`poll_messages`](Self::poll_messages).
    #[inline]
    #[must_use]
    pub fn has_messages(&self) -> bool {
        !self.local.outbound.is_empty()
    }

    /// Returns whether there are events for the application.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.parts.events.is_empty()
    }

    /// Returns the next event for the application.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.parts.events.pop_front()?;
            if self.parts.sockets.get(event.socket()).is_some() {
                return Some(event);
            }
        }
    }

    /// Returns the time at which [`Endpoint::handle_timeout`] or [`Endpoint::poll_transmit`] has something to do without further
    /// input; [`Time::ZERO`] for now, `None` for never.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.expired.is_empty() || self.parts.drops.are_new() {
            return Some(Time::ZERO);
        }
        let opening = self.openings.first().map(|&(due, _)| due);
        let due = sooner(self.poll_ready(), self.parts.wheel.next());
        let due =
            sooner(due, sooner(self.peers.next_check(), sooner(self.probe_queue.next(), opening)));
        if self.local.len() == 0 { due } else { sooner(due, self.local_timeout()) }
    }

    /// Returns the part of [`Endpoint::poll_timeout`] that needs punctuality: the time at which [`Endpoint::poll_transmit`] has
    /// something to send. The other timers mean "not before": some milliseconds of lateness do no harm.
    #[must_use]
    #[inline]
    pub fn poll_ready(&self) -> Option<Time> {
        if self.has_urgent_packets() || !self.local.outbound.is_empty() {
            return Some(Time::ZERO);
        }
        self.parts.order.has_paced().then(|| self.parts.pacer.ready_at())
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) has anything to do: false while all messages stay within the host.
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

    /// Returns the counters since the creation of the endpoint.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.parts.counters
    }

    /// Returns the number of RPCs in any state, of both roles. A server's RPCs count until they are acknowledged.
    #[must_use]
    pub fn active_rpcs(&self) -> usize {
        self.rpcs.len() + self.local.len()
    }

    /// Returns the number of known peers.
    #[must_use]
    pub fn known_peers(&self) -> usize {
        self.peers.len()
    }

    /// Returns the bytes charged to the total budget.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.parts.total.usage.charged
    }

    /// Returns whether a part of a long message may be sent: the next [`poll_transmit`](Self::poll_transmit) takes as long as
    /// copying it.
    #[must_use]
    #[inline]
    pub fn sends_long(&self) -> bool {
        self.parts.order.has_paced()
    }

    /// Returns whether an RPC has not ended and its client waits for it: false for a request whose client has given the call up, or
    /// is lost.
    #[must_use]
    #[inline]
    pub fn is_active(&self, key: RpcKey) -> bool {
        if is_local(key) {
            return self.is_local_active(key);
        }
        self.rpcs.get(key).is_some_and(|rpc| !rpc.cancelled)
    }

    /// Asks for one [`Event::Cancelled`] when the client of a request in service no longer waits, or when the RPC ends. Returns `false`
    /// if that has happened.
    pub fn watch(&mut self, key: RpcKey) -> bool {
        if is_local(key) {
            return self.watch_local(key);
        }
        let Some(rpc) = self.rpcs.get_mut(key).filter(|rpc| !rpc.cancelled) else { return false };
        rpc.watched = true;
        true
    }

    /// Ends a request in service that the application has not begun to execute, because its client no longer waits: the client has
    /// given the call up or is lost, or its deadline has passed. No packet is sent to the client, because its call has ended too.
    pub fn skip(&mut self, key: RpcKey) {
        //= docs/protocol.md#life-11
        self.parts.counters.requests_skipped += 1;
        if is_local(key) {
            self.end_local(key);
        } else {
            self.remove_rpc(key);
        }
    }

    /// Returns whether nothing is in progress and nothing is queued. Queued MEETs do not count, because a peer may send them
    /// without end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let Parts { outbox, events, .. } = &self.parts;
        let quiet = outbox.is_empty() && self.local.outbound.is_empty() && events.is_empty();
        self.active_rpcs() == 0 && quiet
    }

    /// Sets the bytes of message data that the link's receive buffer holds in packets shorter than 16,000 bytes; in longer ones it
    /// holds almost twice as much. Grants stay below three eighths of it (rule `grant-6`). The peers' buffers are assumed to be as
    /// large: unscheduled bytes in flight to one peer stay below a quarter (`unsched-2`).
    pub fn set_receive_capacity(&mut self, bytes: u64) {
        self.parts.set_receive_capacity(bytes);
    }

    /// Returns whether [`set_receive_drops`](Self::set_receive_drops) matters now: messages of several packets are arriving.
    #[must_use]
    #[inline]
    pub fn awaits_data(&self) -> bool {
        self.parts.total.usage.are_arriving()
    }

    /// Reports the number of packets that the link's receive buffer has refused since it was opened. Nothing else loses packets of
    /// peers of this host, so their silence is no loss while the number stays the same (rule `loss-14`). Report it before
    /// [`handle_timeout`](Self::handle_timeout), and when a gap in a message shows a loss. A caller that does not know the number
    /// reports none.
    pub fn set_receive_drops(&mut self, now: Time, drops: u64) {
        self.parts.drops.report(now, drops);
    }

    /// Returns this endpoint's load on its host's link, for the other endpoints. Costs a few loads.
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

    /// Sets the sum of the loads of the host's other endpoints. This endpoint's later grants and packets leave room for it. For a
    /// host with several endpoints, each turn before output; a single one never needs it. Costs a few stores.
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

    /// Creates an endpoint for simulations in which only time counts: messages of several packets are delivered with an empty body
    /// and take no memory. Otherwise the same as [`new`](Self::new).
    #[must_use]
    pub fn counting(mut config: Config, seed: u128) -> Self {
        config.keep_payload = false;
        Self::new(config, seed)
    }

    /// Reports to the link the paths that peers have begun or ceased to use, which [`poll_transmit`](Self::poll_transmit) does
    /// first. For a caller that passes many paths to the endpoint that are not held yet before it transmits.
    #[inline]
    pub fn report_paths<S: PacketSink + ?Sized>(&mut self, sink: &mut S) {
        self.peers.report_paths(sink);
    }

    /// Sets the properties of a path. Traffic that stays on the host is not paced; the rate of the host's link paces the rest,
    /// unless [`Config::link_mbps`] is set.
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

    /// Returns the RPC of a packet from `peer`, if there is one and its ports match.
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

    /// Removes an RPC from every table.
    pub(super) fn remove_rpc(&mut self, key: RpcKey) -> Option<Ended> {
        let mut step = self.step(key)?;
        step.note_cancelled();
        step.leave_peer();
        let (ended, may_release) = (step.ended(), step.peer.may_release());
        self.parts.outstanding = self.parts.outstanding.saturating_sub(u32::from(ended.is_client));
        self.rpcs.remove(key);
        if may_release {
            self.release(ended.peer);
        }
        Some(ended)
    }

    /// Informs the server of a call that it is given up, unless the server does not know the call.
    pub(super) fn send_abort(&mut self, key: RpcKey) {
        let Some(mut step) = self.step(key) else { return };
        let request = step.rpc.outgoing();
        let is_known = step.rpc.phase.is_incoming() || request.is_some_and(Outgoing::has_begun);
        //= docs/protocol.md#life-8
        if is_known && step.rpc.is_client() && !step.peer.native && step.peer.contact.may_send() {
            step.control(control::Body::Abort);
        }
    }

    /// Ends an RPC with the result of its step.
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

    /// Handles the end of an RPC for the trace. If it is a call that took too long, both ends keep their records.
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
                step.control(control::Body::Freeze);
                step.parts.tracer.record(TraceEvent::FreezeXmit, mark, 0, 0);
            }
            step.parts.tracer.freeze();
        }
    }

    pub(super) fn fail(&mut self, key: RpcKey, error: CallFailed) {
        if matches!(error, CallFailed::DeadlineExceeded { .. }) {
            self.send_abort(key);
        }
        if let Some(step) = self.step(key) {
            let mark = step.peer.trace_mark(step.rpc.id);
            step.parts.tracer.record(TraceEvent::CallFailed, mark, cause(&error), 0);
        }
        let Some(Ended { socket, cookie, peer, .. }) = self.remove_rpc(key) else { return };
        self.parts.counters.calls_failed += 1;
        let path = self.peers.get(peer).map(|peer| peer.path);
        self.parts.events.push_back(Event::Failed { socket, rpc: key, cookie, path, error });
    }

    /// Lets deferred messages to a peer begin if there is room in flight, unless they wait for the answer to a doubt.
    #[inline]
    pub(super) fn release_deferred(&mut self, peer: PeerKey) {
        if self.peers.get(peer).is_some_and(Peer::may_release) {
            self.release(peer);
        }
    }

    pub(super) fn release(&mut self, peer: PeerKey) {
        let Some(peer) = self.peers.get_mut(peer).filter(|peer| peer.contact.may_send()) else {
            return;
        };
        let rights = peer.rights.calls;
        let mut connected = Vec::new();
        for key in peer.flight.release(self.parts.flight_max) {
            let Some(rpc) = self.rpcs.get_mut(key) else { continue };
            if rights != Rights::ALL.calls && !self.parts.may_begin(rpc, rights) {
                // It stays deferred until it ends.
                self.sweeps.push_unsent(key, CallFailed::NotExpected);
                continue;
            }
            match rpc.outgoing_mut() {
                Some(message) => self.parts.order.release(key, message),
                None => connected.push(key),
            }
        }
        connected.into_iter().for_each(|key| self.connected(key));
    }

    /// Unblocks responses whose client is confirmed now.
    pub(super) fn unblock(&mut self, blocked: BTreeSet<RpcKey>) {
        for key in blocked {
            if let Some(message) = self.rpcs.get_mut(key).and_then(|rpc| rpc.outgoing_mut()) {
                self.parts.order.unblock(key, message);
            }
        }
    }

    /// Confirms that the peer receives at its address.
    pub(super) fn confirm_peer(&mut self, peer: PeerKey) {
        let blocked = self.peers[peer].confirm();
        self.parts.grants.bring_forward(&mut self.peers[peer], peer);
        self.unblock(blocked);
    }
}
