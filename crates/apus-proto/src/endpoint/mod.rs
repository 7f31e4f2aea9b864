//! The protocol of one node: every RPC, peer and socket, and nothing else.

mod answer;
mod charge;
mod contact;
mod expire;
mod prefetch;
mod receive;
mod transmit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use apus_wire::{Acked, Header, MAX_LINUX_MESSAGE, RpcId, Token, is_native};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::address::Address;
use crate::budget::{Account, RPC_BYTES, Shares, Total};
use crate::config::{Config, LINK_MBPS};
use crate::control::{Body, Control, Reply};
use crate::counters::Counters;
use crate::cutoffs::{Traffic, unscheduled_priority};
use crate::downlink::Downlink;
use crate::error::{CallError, CallFailed, OpenError, ReplyError};
use crate::grant::{Grants, Issued};
use crate::host::HostLoad;
use crate::lookup::{Lookup, Named};
use crate::outgoing::{Order, Outgoing};
use crate::pacer::Pacer;
use crate::peer::{Peer, Theirs};
use crate::rpc::{Phase, Rpc};
use crate::secrets::Secrets;
use crate::slab::{PeerKey, RpcKey, Slab, SocketKey};
use crate::time::Time;
use crate::timer::{TICK, Wheel};

/// First of the ports given out by themselves; below are server ports.
const FIRST_CLIENT_PORT: u16 = 32_768;

/// Control packets that wait to be sent: many thousand RPCs may ask at the same moment.
const CONTROL_QUEUE_MAX: usize = 1 << 16;

/// Least unscheduled bytes in flight to one peer, however small the receive buffer.
const FLIGHT_MIN: u64 = 1_500;

/// How long a short response waits for the next call to bring its acknowledgement.
const ACK_RTO_MAX: Duration = Duration::from_millis(200);

/// Bodies of messages that an endpoint does not need any more ([`Endpoint::take_spent`]).
#[derive(Default, Debug)]
pub struct SpentBodies(SmallVec<[Bytes; 2]>);

impl SpentBodies {
    /// Drops the bodies and keeps the memory of their list.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// What happened, for the application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A whole request arrived. It is in service until [`Endpoint::reply`] or [`Endpoint::abort`].
    Request {
        /// The socket it is for.
        socket: SocketKey,
        /// The RPC to answer.
        rpc: RpcKey,
        /// Who asks.
        from: Address,
        /// The request.
        body: Bytes,
    },
    /// The response of a call. The RPC has ended.
    Response {
        /// The socket that called.
        socket: SocketKey,
        /// The call.
        rpc: RpcKey,
        /// As given to [`Endpoint::call`].
        cookie: u64,
        /// The response.
        body: Bytes,
    },
    /// The peer that [`Endpoint::connect`] asked for is known. The RPC has ended.
    Connected {
        /// The socket that asked.
        socket: SocketKey,
        /// The RPC.
        rpc: RpcKey,
        /// As given to [`Endpoint::connect`].
        cookie: u64,
    },
    /// A call ended without a response. The RPC has ended.
    Failed {
        /// The socket that called.
        socket: SocketKey,
        /// The call.
        rpc: RpcKey,
        /// As given to [`Endpoint::call`].
        cookie: u64,
        /// Why.
        error: CallFailed,
    },
}

impl Event {
    /// The socket it is for.
    #[must_use]
    pub fn socket(&self) -> SocketKey {
        match *self {
            Self::Request { socket, .. }
            | Self::Response { socket, .. }
            | Self::Connected { socket, .. }
            | Self::Failed { socket, .. } => socket,
        }
    }
}

/// What a call can be told beside its destination and body.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Returned with the response, unseen by the peer.
    pub cookie: u64,
    /// When to give up; `None`: only when the peer is lost.
    pub deadline: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct Socket {
    port: u16,
    /// Bytes charged to the socket's budget.
    pub(crate) held: u64,
    /// Who has which part of them.
    pub(crate) shares: Shares,
    /// Of responses that wait for the application.
    untaken: u64,
    /// What its ends at other endpoints of the host hold.
    pub(crate) others: u64,
}

impl Socket {
    fn is_server(&self) -> bool {
        self.port < FIRST_CLIENT_PORT
    }
}

/// A call that may begin: its peer and its place are found, and nothing is changed yet.
struct Admitted {
    peer: PeerKey,
    socket: SocketKey,
    /// The local and the remote one.
    ports: (u16, u16),
}

/// What is left to say of an RPC that has ended.
#[derive(Debug)]
struct Ended {
    peer: PeerKey,
    socket: SocketKey,
    cookie: u64,
    local_port: u16,
    acked: Acked,
    is_client: bool,
}

/// Work over all RPCs, done a few at a time.
#[derive(Debug)]
struct Sweep {
    of: Swept,
    /// The next slot to look at.
    slot: usize,
}

#[derive(Clone, Copy, Debug)]
enum Swept {
    /// The RPCs of a socket that is closed.
    Socket(SocketKey),
    /// The RPCs that were under way with a port of a peer when the network said that nobody serves it.
    Service(PeerKey, Time, u16),
    /// The RPCs with a run of a peer that is over, and who takes over the calls that were not sent.
    Run(PeerKey, Option<PeerKey>),
    /// The RPCs that were under way with a peer at this moment; calls end with this error.
    Failed(PeerKey, Time, CallFailed),
    /// The requests that an earlier incarnation of a client had begun to send before this moment.
    Incarnation(PeerKey, Time),
}

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
    config: Config,
    secrets: Secrets,
    sockets: Slab<SocketKey, Socket>,
    ports: BTreeMap<u16, SocketKey>,
    next_port: u16,
    peers: Slab<PeerKey, Peer>,
    /// The peer that calls to an address go to.
    peer_index: Lookup<PeerKey, SocketAddr>,
    /// The peer that packets with a token are from.
    token_index: Lookup<PeerKey, Token>,
    /// The peer that has told a token, while it is used.
    theirs_index: Lookup<PeerKey, Theirs>,
    /// Those found last: packets come in runs.
    last_peer: Option<(SocketAddr, PeerKey)>,
    last_token: Option<(Token, PeerKey)>,
    rpcs: Slab<RpcKey, Rpc>,
    rpc_index: Lookup<RpcKey, (PeerKey, RpcId)>,
    order: Order,
    grants: Grants,
    pacer: Pacer,
    traffic: Traffic,
    /// The message that the last packet of one of several packets belonged to.
    last_long: Option<RpcKey>,
    /// The message whose next packet is expected next.
    receive_target: Option<RpcKey>,
    downlink: Downlink,
    control: VecDeque<Control>,
    /// Answers to nodes nothing is kept of.
    replies: VecDeque<Reply>,
    /// Bodies of ended messages and refused calls, for the caller to drop.
    spent: SpentBodies,
    /// Peers whose tokens are asked for, by when they are asked again.
    openings: BTreeSet<(Time, PeerKey)>,
    wheel: Wheel,
    /// Taken from the wheel and not looked at yet.
    expired: Vec<RpcKey>,
    /// Peers of which questions wait for their turn, and when they are looked at next.
    probing: VecDeque<PeerKey>,
    next_probes: Time,
    issued: Vec<Issued>,
    sweeps: VecDeque<Sweep>,
    /// At most one for each call, and one for each request in service: bounded by both.
    events: VecDeque<Event>,
    counters: Counters,
    total: Total,
    /// What the other endpoints of the host hold.
    others: HostLoad,
    /// Unscheduled bytes that may be in flight to one peer.
    flight_max: u64,
    /// Calls of this endpoint that have not ended.
    outstanding: u32,
    /// Birth of the next message.
    births: u64,
    next_peer_check: Time,
    peer_cursor: usize,
}

impl Endpoint {
    /// An endpoint without sockets.
    ///
    /// `seed` makes this run of the node another than any other, and keys the hash tables and all that
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
        let (tables, first_version) = (secrets.tables(), secrets.first_version());
        Self {
            secrets,
            sockets: Slab::new(),
            ports: BTreeMap::new(),
            next_port: FIRST_CLIENT_PORT,
            peers: Slab::new(),
            peer_index: Lookup::new(tables),
            token_index: Lookup::new(tables),
            theirs_index: Lookup::new(tables),
            last_peer: None,
            last_token: None,
            rpcs: Slab::new(),
            rpc_index: Lookup::new(tables),
            order: Order::default(),
            grants: Grants::new(&config),
            pacer: Pacer::new(
                config.pacing,
                config.link_mbps_set().unwrap_or(LINK_MBPS),
                config.pacing_backlog,
            ),
            traffic: Traffic::new(config.priorities, first_version)
                .with_cutoffs(config.cutoffs, config.learn_cutoffs),
            last_long: None,
            receive_target: None,
            downlink: Downlink::new(config.link),
            control: VecDeque::new(),
            replies: VecDeque::new(),
            spent: SpentBodies::default(),
            openings: BTreeSet::new(),
            wheel: Wheel::new(),
            expired: Vec::new(),
            probing: VecDeque::new(),
            next_probes: Time::ZERO,
            issued: Vec::new(),
            sweeps: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            total: Total::default(),
            others: HostLoad::default(),
            flight_max: u64::MAX,
            outstanding: 0,
            births: 0,
            next_peer_check: Time::ZERO,
            peer_cursor: 0,
            config,
        }
    }

    /// Opens a socket: `Some(port)` to serve on that port (1 to 32767), `None` to get a port for
    /// calls only.
    ///
    /// # Errors
    ///
    /// When the port is out of range or taken.
    pub fn open(&mut self, port: Option<u16>) -> Result<SocketKey, OpenError> {
        let port = match port {
            Some(port) if !(1..FIRST_CLIENT_PORT).contains(&port) => {
                return Err(OpenError::PortOutOfRange(port));
            }
            Some(port) if self.ports.contains_key(&port) => return Err(OpenError::PortInUse(port)),
            Some(port) => port,
            None => self.free_port().ok_or(OpenError::NoPortLeft)?,
        };
        let socket = self.sockets.insert(Socket {
            port,
            held: 0,
            shares: Shares::default(),
            untaken: 0,
            others: 0,
        });
        self.ports.insert(port, socket);
        Ok(socket)
    }

    fn free_port(&mut self) -> Option<u16> {
        for _ in FIRST_CLIENT_PORT..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_CLIENT_PORT);
            if !self.ports.contains_key(&port) {
                return Some(port);
            }
        }
        None
    }

    /// Closes a socket. Its RPCs are forgotten a few at a time; no event follows for any of them.
    pub fn close(&mut self, socket: SocketKey) {
        let Some(port) = self.port(socket) else { return };
        self.set_untaken(socket, 0, 0);
        self.sockets.remove(socket);
        self.ports.remove(&port);
        self.sweeps.push_back(Sweep { of: Swept::Socket(socket), slot: 0 });
    }

    /// The port of a socket that is open.
    #[must_use]
    pub fn port(&self, socket: SocketKey) -> Option<u16> {
        self.sockets.get(socket).map(|socket| socket.port)
    }

    /// Starts a call: `body` goes to the service at `to`, and an [`Event::Response`] or
    /// [`Event::Failed`] follows.
    ///
    /// # Errors
    ///
    /// When the request is empty or too large, the socket is closed, or a limit is reached.
    pub fn call(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Address,
        body: Bytes,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let length = body.len();
        let admitted =
            self.check_length(to, length).and_then(|()| self.admit_call(now, socket, to, length));
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                self.discard(body);
                return Err(error);
            }
        };
        let key = self.begin_call(now, admitted, Some(body), options);
        self.start_call(now, key);
        Ok(key)
    }

    /// Whether a request of this length can be sent there.
    fn check_length(&self, to: Address, length: usize) -> Result<(), CallError> {
        let limit = self.config.message_max;
        if length == 0 {
            return Err(CallError::EmptyMessage);
        }
        if length > limit as usize {
            return Err(CallError::MessageTooLarge { length, limit });
        }
        //= docs/protocol.md#linux-1
        if is_native(to.host) && length > MAX_LINUX_MESSAGE as usize {
            return Err(CallError::TooLargeForLinux { length });
        }
        Ok(())
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// When the request is not in service any more, or the response is empty, too large, or does not
    /// fit the budgets; in the latter cases it can be answered again.
    pub fn reply(&mut self, now: Time, key: RpcKey, body: Bytes) -> Result<(), ReplyError> {
        if let Err(error) = self.check_reply(key, body.len()) {
            self.discard(body);
            return Err(error);
        }
        let length = body.len() as u32;
        let cost = RPC_BYTES + u64::from(length);
        let most = self.unscheduled_most();
        let rpc = self.rpcs.get_mut(key).expect("checked above");
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        let priority = unscheduled_priority(peer.cutoffs.as_ref(), self.config.priorities, length);
        let mut unscheduled = peer.unscheduled_of(&self.config, length).min(most);
        //= docs/protocol.md#incast-2
        if rpc.incast {
            unscheduled = unscheduled.min(self.config.incast_unscheduled);
        }
        rpc.phase = Phase::Outgoing;
        rpc.note_progress(now);
        rpc.queued = false;
        //= docs/protocol.md#ack-3
        let client_asks = now.saturating_since(rpc.started) < self.config.resend_min;
        rpc.rto = if client_asks && !peer.native && length <= peer.packet_payload {
            self.config.rto_max().min(ACK_RTO_MAX).max(peer.rto(&self.config))
        } else {
            peer.rto(&self.config)
        };
        let message = rpc.outgoing.insert(Outgoing::new(body, unscheduled, priority, self.births));
        self.order.update(key, message);
        if cost < rpc.held {
            self.grants.make_room();
        }
        self.total.charge(rpc, cost, peer, self.sockets.get_mut(rpc.socket));
        self.births += 1;
        self.counters.responses += 1;
        self.arm(now, key);
        Ok(())
    }

    /// Whether a request can be answered with a response of this length.
    #[inline]
    fn check_reply(&self, key: RpcKey, length: usize) -> Result<(), ReplyError> {
        let limit = self.config.message_max;
        let rpc = self
            .rpcs
            .get(key)
            .filter(|rpc| rpc.phase == Phase::InService)
            .ok_or(ReplyError::NotInService)?;
        if length == 0 {
            return Err(ReplyError::EmptyMessage);
        }
        if length > limit as usize {
            return Err(ReplyError::MessageTooLarge { length, limit });
        }
        let (peer, socket, held) = (rpc.peer, rpc.socket, rpc.held);
        let native = self.peers.get(peer).expect("peers outlive their RPCs").native;
        if native && length > MAX_LINUX_MESSAGE as usize {
            return Err(ReplyError::TooLargeForLinux { length });
        }
        //= docs/protocol.md#hostile-9
        let cost = RPC_BYTES + length as u64;
        if cost > held && !self.has_plenty(peer, socket, cost) {
            let room = self.room_to_send(peer, socket, Account::Theirs, held);
            if length as u64 > room {
                return Err(ReplyError::OverBudget { length, room });
            }
        }
        Ok(())
    }

    /// Keeps a body that is not needed any more until [`take_spent`](Self::take_spent).
    #[inline]
    pub fn discard(&mut self, body: Bytes) {
        self.spent.0.push(body);
    }

    /// Whether there are spent bodies to take.
    #[inline]
    #[must_use]
    pub fn has_spent(&self) -> bool {
        !self.spent.0.is_empty()
    }

    /// Moves the bodies of calls and responses that are not needed any more into `spent`, which must be empty. Dropping a
    /// body may run any code of the application ([`Bytes::from_owner`]), so the caller drops them where it holds no lock. An
    /// endpoint whose spent bodies are not taken keeps them.
    #[inline]
    pub fn take_spent(&mut self, spent: &mut SpentBodies) {
        debug_assert!(spent.0.is_empty(), "the bodies of the last time are dropped");
        std::mem::swap(&mut self.spent, spent);
    }

    /// Gives an RPC up, whatever its state; no event follows. The peer is not told: a client's
    /// server finds out when it asks for the acknowledgement, a server's client when it asks for
    /// the response. False if the RPC had ended.
    pub fn abort(&mut self, key: RpcKey) -> bool {
        //= docs/protocol.md#life-8
        let Some(ended) = self.remove_rpc(key) else { return false };
        if ended.is_client {
            self.counters.calls_aborted += 1;
        } else {
            self.counters.requests_abandoned += 1;
        }
        true
    }

    /// The next thing to tell the application.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            if self.sockets.get(event.socket()).is_some() {
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
        let peers = (self.peers.len() > 0).then_some(self.next_peer_check);
        let questions = (!self.probing.is_empty()).then_some(self.next_probes);
        let opening = self.openings.first().map(|&(due, _)| due);
        let timers = [self.poll_ready(), self.wheel.next(), peers, questions, opening];
        timers.into_iter().flatten().min()
    }

    /// The part of [`Endpoint::poll_timeout`] that is worth being punctual for: when
    /// [`Endpoint::poll_transmit`] has something to send. What remains are timers that mean "not
    /// before": nothing is lost when they are some milliseconds late.
    #[must_use]
    #[inline]
    pub fn poll_ready(&self) -> Option<Time> {
        let at_once = !self.control.is_empty()
            || !self.replies.is_empty()
            || self.order.has_urgent()
            || self.grants.has_work()
            || !self.sweeps.is_empty();
        if at_once {
            return Some(Time::ZERO);
        }
        self.order.has_paced().then(|| self.pacer.ready_at())
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// RPCs in any state, of both roles. A server's are counted until they are acknowledged.
    #[must_use]
    pub fn active_rpcs(&self) -> usize {
        self.rpcs.len()
    }

    /// Peers remembered.
    #[must_use]
    pub fn known_peers(&self) -> usize {
        self.peers.len()
    }

    /// Bytes charged to the total budget.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.total.held
    }

    /// Nothing is under way and nothing waits to be sent or told.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.rpcs.len() == 0
            && self.control.is_empty()
            && self.replies.is_empty()
            && self.events.is_empty()
    }

    /// Bytes of message data the link's receive buffer holds in packets shorter than 16,000 bytes; of longer ones it holds almost
    /// twice as much. Grants stay below three eighths of it (rule `grant-6`). The peers' are taken to hold as much: unscheduled
    /// bytes in flight to one stay below a quarter (`unsched-2`).
    pub fn set_receive_capacity(&mut self, bytes: u64) {
        self.grants.set_capacity(bytes);
        //= docs/protocol.md#unsched-2
        self.flight_max = (bytes / 4).max(FLIGHT_MIN);
    }

    /// What this endpoint holds of its host's link, for its siblings. Costs a few loads.
    #[must_use]
    #[inline]
    pub fn load(&self) -> HostLoad {
        HostLoad {
            expected: self.grants.expected(),
            granting: self.grants.granting(),
            sent: self.pacer.sent(),
            sending: u64::from(self.order.has_paced()),
            held: self.total.held + self.books().reserved(),
            peers: self.peers.len() as u64,
            calls: u64::from(self.outstanding),
        }
    }

    /// What the other endpoints of the host hold, summed: what this one grants and sends from now
    /// on leaves room for it. For a host with several endpoints, before output, each turn; one alone
    /// never needs it. Costs a few stores.
    #[inline]
    pub fn set_others(&mut self, now: Time, others: HostLoad) {
        self.grants.set_others(others);
        self.pacer.set_others(now, others.sent, others.sending);
        if others.held < self.others.held {
            self.grants.make_room();
        }
        self.others = others;
    }

    /// An endpoint for simulations in which only time counts: messages of several packets are delivered with
    /// an empty body and take no memory. All else is as with [`new`](Self::new).
    #[must_use]
    pub fn counting(mut config: Config, seed: u128) -> Self {
        config.keep_payload = false;
        Self::new(config, seed)
    }

    /// Facts about the path to a peer: traffic that stays on the host is not paced, and the rate of
    /// the host's link paces the rest, unless [`Config::link_mbps`] says otherwise.
    pub fn set_path(
        &mut self,
        now: Time,
        peer: SocketAddr,
        loopback: bool,
        link_mbps: Option<u64>,
    ) {
        if let Some(rate) = link_mbps.filter(|_| !loopback && !self.config.is_set("link_mbps")) {
            self.follow_link(rate);
        }
        if let Some(key) = self.peer_for_call(now, peer) {
            self.peers.get_mut(key).expect("found or inserted above").loopback = loopback;
        }
    }

    /// The rate of the link has become known.
    fn follow_link(&mut self, link_mbps: u64) {
        let before = self.config.max_incoming;
        self.config.follow_link(link_mbps);
        self.pacer.set_rate(link_mbps);
        self.pacer.set_backlog(self.config.pacing_backlog);
        self.downlink.set_link(self.config.link);
        if self.config.max_incoming != before {
            self.grants.set_limit(&self.config);
        }
    }

    #[inline]
    fn find_peer(&mut self, addr: SocketAddr) -> Option<PeerKey> {
        if let Some((last, key)) = self.last_peer
            && last == addr
        {
            return Some(key);
        }
        let key = self.peer_index.find(&self.peers, &addr)?;
        self.last_peer = Some((addr, key));
        Some(key)
    }

    fn insert_rpc(&mut self, now: Time, rpc: Rpc) -> RpcKey {
        debug_assert!(
            self.rpc_index.find(&self.rpcs, &rpc.name()).is_none(),
            "ids are unique per peer and direction"
        );
        let key = self.rpcs.insert(rpc);
        self.rpc_index.insert(&self.rpcs, key);
        self.arm(now, key);
        key
    }

    /// Takes an RPC out of everything that belongs to its peer, and drops its messages.
    #[inline]
    fn leave_peer(&mut self, key: RpcKey) {
        self.end_arriving(key);
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        self.rpc_index.remove(key, rpc.name());
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        match rpc.outgoing.take() {
            Some(mut message) => {
                if message.is_blocked() {
                    peer.forget_blocked(key);
                } else if message.is_held() {
                    peer.flight.forget((message.length(), message.birth, key));
                }
                peer.flight.arrived(message.mark);
                self.order.unrank(key, &mut message);
                self.spent.0.push(message.body);
            }
            None if rpc.phase == Phase::Connecting => {
                peer.flight.forget(contact::connecting(key));
            }
            None => {}
        }
        peer.rpcs -= 1;
        peer.calls -= u32::from(rpc.is_client());
        self.total.charge(rpc, 0, peer, self.sockets.get_mut(rpc.socket));
        self.grants.make_room();
    }

    /// Takes an RPC out of every table.
    fn remove_rpc(&mut self, key: RpcKey) -> Option<Ended> {
        self.leave_peer(key);
        let rpc = self.rpcs.get_mut(key)?;
        let ended = Ended {
            peer: rpc.peer,
            socket: rpc.socket,
            cookie: rpc.cookie,
            local_port: rpc.local_port,
            acked: Acked { client_id: rpc.id.client_form(), server_port: rpc.remote_port },
            is_client: rpc.is_client(),
        };
        self.outstanding -= u32::from(ended.is_client);
        self.rpcs.remove(key);
        let peer = self.peers.get(ended.peer).expect("peers outlive their RPCs");
        if peer.flight.holds_any() {
            self.release(ended.peer);
        }
        Some(ended)
    }

    /// Puts an RPC's outgoing message where it belongs in the sending order.
    #[inline]
    fn requeue(&mut self, key: RpcKey) {
        if let Some(message) = self.rpcs.get_mut(key).and_then(|rpc| rpc.outgoing.as_mut()) {
            self.order.update(key, message);
        }
    }

    /// Lets responses go on whose client is now known to receive at its address.
    fn unblock(&mut self, blocked: BTreeSet<RpcKey>) {
        for key in blocked {
            if let Some(message) = self.rpcs.get_mut(key).and_then(|rpc| rpc.outgoing.as_mut()) {
                self.order.unblock(key, message);
            }
        }
    }

    /// A sign of the peer about an RPC: what was sent for it, and before, has arrived.
    fn note_arrived(&mut self, key: RpcKey) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        let Some(message) = &rpc.outgoing else { return };
        let of = rpc.peer;
        let peer = self.peers.get_mut(of).expect("peers outlive their RPCs");
        peer.flight.arrived(message.mark);
        if peer.flight.holds_any() {
            self.release(of);
        }
    }

    /// Lets messages begin for which there is room in flight.
    fn release(&mut self, of: PeerKey) {
        let peer = self.peers.get_mut(of).expect("peers outlive their RPCs");
        if !peer.contact.may_send() {
            return;
        }
        let mut connected = Vec::new();
        for key in peer.flight.release(self.flight_max) {
            match self.rpcs.get_mut(key).map(|rpc| &mut rpc.outgoing) {
                Some(Some(message)) => self.order.release(key, message),
                _ => connected.push(key),
            }
        }
        connected.into_iter().for_each(|key| self.connected(key));
    }

    /// Most unscheduled bytes of one message: one may always be begun, and must leave room for another
    /// sender's in a small buffer.
    fn unscheduled_most(&self) -> u32 {
        //= docs/protocol.md#unsched-2
        u32::try_from(self.flight_max / 2).unwrap_or(u32::MAX)
    }

    /// Makes sure the RPC is looked at when it is due.
    #[inline]
    fn arm(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let timeout = self.config.peer_timeout;
        let mut due = rpc.due(timeout);
        if rpc.queued {
            // Until it is its turn, only to see whether it has to be given up.
            due = rpc.expires.unwrap_or(Time::from_nanos(u64::MAX));
            due = due.min((rpc.last_rx + timeout).max(now + timeout / 4));
        }
        // What is due already and yet not done is looked at again in the next tick.
        let due = due.max(now + Duration::from_nanos(1));
        if rpc.armed <= now || due + TICK <= rpc.armed {
            rpc.armed = self.wheel.insert(now, due, key);
        }
    }

    /// Queues a control packet. Whatever is lost here is made good as if the network had lost it.
    fn control(&mut self, peer: PeerKey, header: Header, body: Body) {
        //= docs/protocol.md#hostile-6
        if self.control.len() >= CONTROL_QUEUE_MAX {
            self.counters.dropped_control += 1;
            return;
        }
        self.control.push_back(Control { peer, header, body });
    }

    /// A control packet for an RPC.
    fn control_for(&mut self, key: RpcKey, body: Body) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        let (peer, header) = (rpc.peer, rpc.header());
        self.control(peer, header, body);
    }

    fn fail(&mut self, key: RpcKey, error: CallFailed) {
        let Some(Ended { socket, cookie, .. }) = self.remove_rpc(key) else { return };
        self.counters.calls_failed += 1;
        self.events.push_back(Event::Failed { socket, rpc: key, cookie, error });
    }
}
