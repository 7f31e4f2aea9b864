//! Measures the cost of a call in the core alone, with few and many calls and peers.
//!
//! Two endpoints back to back over memory: no sockets, no threads, no system calls. A call is 100 bytes each way. The server
//! answers the oldest of the calls under way, so that its state has left the cache by then. The figure is the CPU time of both
//! ends.
//!
//! ```sh
//! cargo run --release -p apus-proto --example core_cost [million calls]
//! ```
//!
//! `core_cost count N` makes N calls in the first setting, N a multiple of 64, and measures nothing: under callgrind, the
//! difference of two such runs is the number of instructions of a call (`cargo xtask instructions`).

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark has a clock")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use apus_proto::{
    CallOptions, Config, Endpoint, Event, Remote, RpcKey, SocketKey, SpentBodies, Time,
};
use apus_wire::{PacketSink, PathId, Transmit};
use bytes::Bytes;

const PORT: u16 = 4000;
/// Number of calls begun, answered and finished in one turn.
const BATCH: usize = 64;
const TURN: Duration = Duration::from_micros(20);

/// Packets under way, end to end in one buffer.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
    packets: Vec<(PathId, usize)>,
}

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        self.bytes.extend_from_slice(packet.header);
        self.bytes.extend_from_slice(packet.payload());
        self.packets.push((packet.path, self.bytes.len()));
    }

    fn max_packet(&self, _: PathId) -> usize {
        1472
    }
}

impl Wire {
    /// Passes packets on. Both ends know each other by the same path, a different one for each pair of peers.
    fn carry(&mut self, now: Time, from: &mut Endpoint, to: &mut Endpoint) {
        while from.poll_transmit(now, self) {}
        let mut start = 0;
        for (path, end) in self.packets.drain(..) {
            to.handle_packet(now, path, &self.bytes[start..end]);
            start = end;
        }
        self.bytes.clear();
    }
}

struct Bench {
    now: Time,
    client: Endpoint,
    server: Endpoint,
    socket: SocketKey,
    peers: Vec<Remote>,
    next_peer: usize,
    under_way: VecDeque<RpcKey>,
    wire: Wire,
    body: Bytes,
    spent: SpentBodies,
}

impl Bench {
    fn new(peers: usize) -> Self {
        let mut config = Config::default();
        let long = Duration::from_secs(10);
        config.resend_initial(long).resend_min(long).peer_timeout(4 * long).pacing(false);
        config.calls_max(1 << 20).peers_max(1 << 20).incast_threshold(1 << 20);
        let mut client = Endpoint::new(config.clone(), 1);
        let mut server = Endpoint::new(config, 2);
        let socket = client.open(None).expect("the first port is free");
        server.open(Some(PORT)).expect("the port is free");
        let peers = (0..peers as u32).map(|n| Remote::new(PathId::new(n, u64::from(n)), PORT));
        Self {
            now: Time::ZERO,
            client,
            server,
            socket,
            peers: peers.collect(),
            next_peer: 0,
            under_way: VecDeque::new(),
            wire: Wire::default(),
            body: Bytes::from_static(&[7; 100]),
            spent: SpentBodies::default(),
        }
    }

    /// Begins calls to the peers in turn.
    fn call(&mut self, calls: usize) {
        for _ in 0..calls {
            let to = self.peers[self.next_peer];
            self.next_peer = (self.next_peer + 1) % self.peers.len();
            self.client
                .call(self.now, self.socket, to, self.body.clone(), CallOptions::default())
                .expect("no limit is reached");
        }
    }

    /// Runs one turn of both ends. Returns the number of calls that ended.
    fn turn(&mut self, answers: usize) -> usize {
        self.now = self.now + TURN;
        self.wire.carry(self.now, &mut self.client, &mut self.server);
        for endpoint in [&mut self.server, &mut self.client] {
            endpoint.take_spent(&mut self.spent);
            self.spent.clear();
        }
        while let Some(event) = self.server.poll_event() {
            let Event::Request { rpc, .. } = event else { panic!("a server has requests") };
            self.under_way.push_back(rpc);
        }
        for rpc in self.under_way.drain(..answers.min(self.under_way.len())) {
            self.server.reply(self.now, rpc, self.body.clone()).expect("it is in service");
        }
        self.wire.carry(self.now, &mut self.server, &mut self.client);
        let mut ended = 0;
        while let Some(event) = self.client.poll_event() {
            assert!(matches!(event, Event::Response { .. }), "nothing is lost here");
            ended += 1;
        }
        for endpoint in [&mut self.client, &mut self.server] {
            if endpoint.poll_timeout().is_some_and(|due| due <= self.now) {
                endpoint.handle_timeout(self.now);
            }
        }
        ended
    }

    /// Begins calls until this many are under way.
    fn fill(&mut self, under_way: usize) {
        let batch = BATCH.min(under_way);
        while self.under_way.len() < under_way - batch {
            self.call(batch);
            self.turn(0);
        }
        self.call(batch);
    }

    /// Ends this many calls, rounded up to whole batches, and begins as many. Returns their number.
    fn end_calls(&mut self, calls: usize, batch: usize) -> usize {
        let mut ended = 0;
        while ended < calls {
            let now_ended = self.turn(batch);
            self.call(now_ended);
            ended += now_ended;
        }
        ended
    }

    /// Returns the nanoseconds per call, with this many under way.
    fn run(&mut self, under_way: usize, calls: usize) -> f64 {
        let batch = BATCH.min(under_way);
        self.fill(under_way);
        self.end_calls(calls / 4, batch);
        let began = Instant::now();
        let ended = self.end_calls(calls, batch);
        began.elapsed().as_secs_f64() * 1e9 / ended as f64
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("count") {
        let calls = std::env::args().nth(2).and_then(|text| text.parse().ok());
        let mut bench = Bench::new(1);
        bench.fill(1_000);
        bench.end_calls(calls.expect("core_cost count N"), BATCH);
        return;
    }
    let millions = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let calls = (millions * 1e6) as usize;
    println!("calls under way      peers    ns a call    of the first");
    let mut first = None;
    for (under_way, peers) in
        [(1_000, 1), (10, 1), (100_000, 1), (1_000, 100), (10_000, 100), (20_000, 10_000)]
    {
        // The minimum of three runs, because the machine has other work.
        let run = |_| Bench::new(peers).run(under_way, calls);
        let nanos = (0..3).map(run).fold(f64::INFINITY, f64::min);
        let base = *first.get_or_insert(nanos);
        println!("{under_way:>15} {peers:>10} {nanos:>12.0} {:>15.2}", nanos / base);
    }
}
