//! Clients and servers of apus-rpc over a simulated network, for tests of programs (feature `services`).
//!
//! Each channel has two hosts that run the production protocol, a network between them that loses packets, and a clock of its own.
//! Loss and order follow from a seed. A second of virtual time passes as fast as its packets.
//!
//! ```
//! use apus_rpc::{Bytes, Context, Server};
//! use apus_sim::services::Network;
//!
//! let mut network = Network::new(7).loss(0.2);
//! let echo = |_: Context, body: Bytes| async move { Ok(body) };
//! let channel = network.channel(Server::in_memory().route("/a.B/Echo", echo));
//! for _ in 0..20 {
//!     let response = network.run(async { channel.unary("/a.B/Echo", "hello").await });
//!     assert_eq!(response.unwrap().body(), "hello");
//! }
//! assert!(network.lost() > 0);
//! ```
//!
//! # Limits
//!
//! * [`Network::run`] waits for nothing outside of the network. It panics if a handler or a call waits for a thread or a timer of an
//!   executor.
//! * Pauses of repetitions, times of second copies and [`Context::remaining`](apus_rpc::Context::remaining) are real time. The deadline of a
//!   call is both: in real time, and as the protocol has it in virtual time.
//! * A run with deadlines, repetitions or second copies is not repeated exactly by its seed, because their times are real.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use apus_proto::{CallOptions, Config, Endpoint, Event, Remote, RpcKey, SocketKey, Time};
use apus_rpc::carried::{self, CarriedCall, CarriedRequest, CarriedServer};
use apus_rpc::{BoxTask, CallError, Channel, ServerBuilder, Spawn};
use apus_wire::{PacketSink, PathId, Token, Transmit};
use bytes::Bytes;

/// Homa port of the servers.
const PORT: u16 = 1;

/// Longest packet: that of an Ethernet frame.
const MTU: usize = 1472;

/// Longest virtual time of one [`Network::run`].
const RUN_MAX: Duration = Duration::from_secs(3600);

/// A network with a virtual clock, and the channels over it. A test has one, on its thread.
pub struct Network {
    now: Time,
    delay: Duration,
    /// Of a packet, in millionths.
    loss: u64,
    random: u64,
    hosts: Vec<Host>,
    /// Packets under way by the time of arrival; the number orders those of one time.
    flying: BTreeMap<(Time, u64), CarriedPacket>,
    flights: u64,
    lost: u64,
    tasks: Arc<Tasks>,
    running: Vec<BoxTask>,
    woken: Arc<Woken>,
}

struct CarriedPacket {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

struct Host {
    endpoint: Endpoint,
    socket: SocketKey,
    side: HostSide,
}

enum HostSide {
    Client {
        /// Messages of the channel that are not sent yet.
        outgoing: Arc<Mutex<Vec<CarriedRequest>>>,
        calls: BTreeMap<RpcKey, CarriedRequest>,
    },
    Server {
        server: CarriedServer,
        handling: Vec<(RpcKey, CarriedCall)>,
        /// Answers for which the budgets had no room.
        unsent: Vec<(RpcKey, Bytes)>,
    },
}

/// Tasks that handlers go on in. The network runs them.
#[derive(Default)]
struct Tasks {
    new: Mutex<Vec<BoxTask>>,
}

struct Spawner(Arc<Tasks>);

impl Spawn for Spawner {
    fn spawn(&self, task: BoxTask) {
        self.0.new.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }
}

/// Something was woken since the last look.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The packets that a host sends now.
struct Sent(Vec<Vec<u8>>);

impl PacketSink for Sent {
    fn send(&mut self, packet: Transmit<'_>) {
        self.0.push([packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _: PathId) -> usize {
        MTU
    }
}

/// The path to a host.
fn path(host: usize) -> PathId {
    let number = u32::try_from(host).expect("few hosts");
    PathId::new(number, u64::from(number) + 1)
}

/// The token in packets from a host to another one.
fn token(from: usize, to: usize) -> Token {
    Token(path(from).name() << 32 | path(to).name())
}

impl Network {
    /// A network without loss, whose packets take 5 µs. Random numbers follow from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            now: Time::ZERO,
            delay: Duration::from_micros(5),
            loss: 0,
            random: seed,
            hosts: Vec::new(),
            flying: BTreeMap::new(),
            flights: 0,
            lost: 0,
            tasks: Arc::default(),
            running: Vec::new(),
            woken: Arc::default(),
        }
    }

    /// The share of packets that are lost, 0 to 1. Default 0.
    #[must_use]
    pub fn loss(mut self, share: f64) -> Self {
        self.loss = (share.clamp(0.0, 1.0) * 1e6) as u64;
        self
    }

    /// The time of a packet from host to host, at least 1 ns. Default 5 µs.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay.max(Duration::from_nanos(1));
        self
    }

    /// A channel from a new host to a server on another one. [`Server::in_memory`](apus_rpc::Server::in_memory) begins the server, whose
    /// handlers run in [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// As [`Channel::in_memory`].
    pub fn channel(&mut self, server: ServerBuilder<'_>) -> Channel {
        let server = CarriedServer::new(server.spawner(Spawner(Arc::clone(&self.tasks))));
        let outgoing: Arc<Mutex<Vec<CarriedRequest>>> = Arc::default();
        let carried = Arc::clone(&outgoing);
        let client = self.hosts.len();
        self.add(None, HostSide::Client { outgoing, calls: BTreeMap::new() });
        let side = HostSide::Server { server, handling: Vec::new(), unsent: Vec::new() };
        self.add(Some(PORT), side);
        let (one, other, now) = (client, client + 1, self.now);
        for (host, peer) in [(one, other), (other, one)] {
            let (ours, theirs) = (token(host, peer), token(peer, host));
            self.hosts[host].endpoint.introduce(now, path(peer), ours, theirs);
        }
        carried::channel(move |request| {
            carried.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        })
    }

    fn add(&mut self, port: Option<u16>, side: HostSide) {
        let seed = u128::from(self.next()) << 64 | self.hosts.len() as u128;
        let mut endpoint = Endpoint::new(Config::default(), seed);
        let socket = endpoint.open(port).expect("the endpoint is new");
        self.hosts.push(Host { endpoint, socket, side });
    }

    /// The virtual time since the network was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.now.as_nanos())
    }

    /// Number of packets that hosts have sent.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.flights
    }

    /// Number of packets that were lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Runs the network until a future is ready, such as one that awaits calls.
    ///
    /// # Panics
    ///
    /// If an hour of virtual time passes before, or if nothing moves any more.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut task = Context::from_waker(&waker);
        let end = self.now + RUN_MAX;
        loop {
            self.woken.0.store(false, Ordering::SeqCst);
            if let Poll::Ready(value) = future.as_mut().poll(&mut task) {
                return value;
            }
            let mut moves = self.run_tasks(&mut task);
            for host in 0..self.hosts.len() {
                moves |= self.hosts[host].act(self.now, host, &mut task);
                moves |= self.turn(host);
            }
            moves |= self.arrive();
            if !moves && !self.woken.0.load(Ordering::SeqCst) {
                self.advance(end);
            }
        }
    }

    fn run_tasks(&mut self, task: &mut Context<'_>) -> bool {
        let new = mem::take(&mut *self.tasks.new.lock().unwrap_or_else(PoisonError::into_inner));
        let moves = !new.is_empty();
        self.running.extend(new);
        self.running.retain_mut(|running| running.as_mut().poll(task).is_pending());
        moves
    }

    /// Lets a host act on its timers and send its packets.
    fn turn(&mut self, host: usize) -> bool {
        let now = self.now;
        let endpoint = &mut self.hosts[host].endpoint;
        if endpoint.poll_timeout().is_some_and(|due| due <= now) {
            endpoint.handle_timeout(now);
        }
        let mut sent = Sent(Vec::new());
        let mut moves = endpoint.poll_transmit(now, &mut sent);
        moves |= endpoint.poll_timeout().is_some_and(|due| due <= now);
        moves |= !sent.0.is_empty();
        for bytes in sent.0 {
            self.flights += 1;
            if self.next() % 1_000_000 < self.loss {
                self.lost += 1;
                continue;
            }
            // Each host has one peer: the other end of its channel.
            let flight = CarriedPacket { from: host, to: host ^ 1, bytes };
            self.flying.insert((now + self.delay, self.flights), flight);
        }
        moves
    }

    /// Gives hosts the packets that arrive now.
    fn arrive(&mut self) -> bool {
        let mut arrived = false;
        while let Some(entry) = self.flying.first_entry().filter(|it| it.key().0 <= self.now) {
            let CarriedPacket { from, to, bytes } = entry.remove();
            self.hosts[to].endpoint.handle_packet(self.now, path(from), &bytes);
            arrived = true;
        }
        arrived
    }

    /// Sets the clock to the next arrival or timer.
    fn advance(&mut self, end: Time) {
        let timers = self.hosts.iter().filter_map(|host| host.endpoint.poll_timeout());
        let arrival = self.flying.keys().next().map(|(time, _)| *time);
        let next = timers.chain(arrival).min();
        let next = next.expect("the calls wait for something outside of the network");
        assert!(next < end, "an hour of virtual time has passed");
        self.now = next.max(self.now);
    }

    /// A random number (SplitMix64).
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Host {
    /// Takes events, begins calls and answers requests. Returns whether anything has moved.
    fn act(&mut self, now: Time, own: usize, task: &mut Context<'_>) -> bool {
        let mut moves = false;
        while let Some(event) = self.endpoint.poll_event() {
            moves = true;
            self.take(now, event);
        }
        let Self { endpoint, socket, side } = self;
        match side {
            HostSide::Client { outgoing, calls } => {
                let new = mem::take(&mut *outgoing.lock().unwrap_or_else(PoisonError::into_inner));
                for mut request in new {
                    moves = true;
                    let deadline = request.remaining().map(|remaining| now + remaining);
                    let trace = request.trace_context().map(Box::new);
                    let options = CallOptions { deadline, trace, ..CallOptions::default() };
                    let (to, body) = (Remote::new(path(own ^ 1), PORT), request.take_body());
                    match endpoint.call(now, *socket, to, body, options) {
                        Ok(rpc) => _ = calls.insert(rpc, request),
                        Err(error) => request.fail(CallError::refused(error)),
                    }
                }
                calls.retain(|rpc, request| {
                    let is_given_up = request.poll_given_up(task).is_ready();
                    if is_given_up {
                        moves |= endpoint.abort(*rpc);
                    }
                    !is_given_up
                });
            }
            HostSide::Server { handling, unsent, .. } => {
                handling.retain_mut(|(rpc, call)| match Pin::new(call).poll(task) {
                    Poll::Pending => true,
                    Poll::Ready(Ok(answer)) => {
                        unsent.push((*rpc, answer));
                        false
                    }
                    Poll::Ready(Err(_)) => {
                        endpoint.abort(*rpc);
                        moves = true;
                        false
                    }
                });
                unsent.retain(|(rpc, answer)| match endpoint.reply(now, *rpc, answer.clone()) {
                    Err(apus_proto::ReplyError::OverBudget { .. }) => true,
                    _ => {
                        moves = true;
                        false
                    }
                });
            }
        }
        moves
    }

    fn take(&mut self, now: Time, event: Event) {
        match (&mut self.side, event) {
            (
                HostSide::Server { server, handling, .. },
                Event::Request { rpc, body, deadline, trace, .. },
            ) => {
                self.endpoint.watch(rpc);
                let remaining = deadline.map(|at| at.saturating_since(now));
                handling.push((rpc, server.call(body, remaining, trace.map(|it| *it))));
            }
            (HostSide::Server { handling, .. }, Event::Cancelled { rpc, .. }) => {
                handling.retain(|(handled, _)| *handled != rpc);
                self.endpoint.abort(rpc);
            }
            (HostSide::Client { calls, .. }, Event::Response { rpc, body, .. }) => {
                calls.remove(&rpc).into_iter().for_each(|request| request.reply(body.clone()));
            }
            (HostSide::Client { calls, .. }, Event::Failed { rpc, error, .. }) => {
                if let Some(request) = calls.remove(&rpc) {
                    request.fail(CallError::failed(error));
                }
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("now", &self.now()).finish_non_exhaustive()
    }
}
