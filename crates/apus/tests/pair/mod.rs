//! A server and a client node on this machine, for tests.
#![allow(dead_code, reason = "every test file uses a part of this")]

#[path = "../certificates/mod.rs"]
pub(crate) mod certificates;
pub(crate) mod engine;
pub(crate) mod liar;
#[path = "../../../apus-net/tests/skipped/mod.rs"]
pub(crate) mod skipped;

use std::mem;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use apus::{Address, Call, Client, Config, Delivery, EngineAt, Node, Port, RecvError, Request};

pub(crate) const PORT: u16 = 4000;

/// Time limit of a test's wait. Only a fault takes longer.
pub(crate) const FAULT_AFTER: Duration = Duration::from_secs(60);

/// Yields until a condition holds.
pub(crate) fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < FAULT_AFTER, "{condition}: not within {FAULT_AFTER:?}");
        thread::yield_now();
    }
}

/// A call whose deadline passes `time` from now, and its unanswered request. The call is repeated if no request came, because the
/// machine did not run for too long.
pub(crate) fn call_with_deadline(
    client: &Client,
    service: &Port,
    to: Address,
    time: Duration,
) -> (Call, Request) {
    loop {
        let call = client.call(to, "late").deadline(time).start().unwrap();
        match service.recv_timeout(time) {
            Ok(request) => return (call, request),
            Err(error) => assert_eq!(error, RecvError::Timeout),
        }
    }
}

pub(crate) struct Pair {
    pub(crate) client_node: Node,
    pub(crate) server_node: Node,
    pub(crate) service: Port,
    pub(crate) address: Address,
}

/// Two nodes; `change` is applied to the configuration of both. `APUS_LINK` selects the link between them; by default they share
/// memory from the start. With `APUS_TEST_ENGINE=shared` both use the engine of a third node.
/// With `APUS_TEST_SEALED=1` both have a certificate, or that node has one.
pub(crate) fn pair_with(change: impl Fn(&mut Config)) -> Pair {
    let mut config = Config::new();
    config.apply_environment().unwrap().listen("127.0.0.1:0".parse().unwrap());
    change(&mut config);
    if shares_engine() {
        return pair_of_engine(&config);
    }
    // Handshakes need messages of this length.
    if is_sealed() && config.message_limit() >= 64 << 10 {
        certificates::shared().apply(&mut config, "node");
    }
    let server_node = Node::start(&config).unwrap();
    let client_node = Node::start(&config).unwrap();
    let pair = around(client_node, server_node);
    if config.shares_memory() {
        share_memory(&pair);
    }
    pair
}

/// Whether the nodes of this run have certificates.
pub(crate) fn is_sealed() -> bool {
    std::env::var("APUS_TEST_SEALED").is_ok_and(|sealed| sealed == "1")
}

/// Whether a test does not apply to nodes with certificates.
pub(crate) fn needs_plain(why: &str) -> bool {
    if is_sealed() {
        skipped::skipped(why);
    }
    is_sealed()
}

/// The reason of tests that count messages.
pub(crate) const COUNTS: &str = "it counts messages, and handshakes have some";

/// Whether the tests of this run use the engine of a third node.
pub(crate) fn shares_engine() -> bool {
    std::env::var("APUS_TEST_ENGINE").is_ok_and(|engine| engine == "shared")
}

/// Whether a test does not apply to nodes that use the engine of a third one.
pub(crate) fn skips(why: &str) -> bool {
    if shares_engine() {
        skipped::skipped(why);
    }
    shares_engine()
}

/// Two nodes with the engine of a third one, which runs until the program ends.
fn pair_of_engine(config: &Config) -> Pair {
    let directory = engine::Directory::new();
    let mut of_engine = Config::new();
    of_engine.listen("127.0.0.1:0".parse().unwrap());
    if is_sealed() {
        certificates::shared().apply(&mut of_engine, "node");
    }
    mem::forget(engine::Engine::start(&directory.socket(), &of_engine));
    let mut config = config.clone();
    config.engine(EngineAt::Socket(directory.socket()));
    let [server_node, client_node] = [(); 2].map(|()| Node::start(&config).unwrap());
    around(client_node, server_node)
}

/// Waits until two nodes share memory.
pub(crate) fn share_memory(pair: &Pair) {
    let client = pair.client_node.client().unwrap();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect(pair.address).wait().unwrap());
        wait_until("the nodes share memory", || {
            assert!(pair.service.try_recv().is_err(), "nobody has called yet");
            let pairs = |node: &Node| node.stats().memory.pairs_met;
            let both = pairs(&pair.client_node) == 1 && pairs(&pair.server_node) == 1;
            connecting.is_finished() && both
        });
    });
}

pub(crate) fn around(client_node: Node, server_node: Node) -> Pair {
    let service = server_node.bind(PORT).unwrap();
    let address = Address::new(server_node.local_addr(), PORT);
    Pair { client_node, server_node, service, address }
}

pub(crate) fn pair(delivery: Delivery) -> Pair {
    pair_with(|config| {
        config.delivery(delivery);
    })
}

/// Makes client and server known to each other. In `fullbusy` no thread turns a node whose thread waits for another one, so the
/// first contact, which takes both, must be over before one thread works for both.
pub(crate) fn acquaint(pair: &Pair) {
    let client = pair.client_node.client().unwrap();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect(pair.address).wait().unwrap());
        wait_until("the nodes know each other", || {
            assert!(pair.service.try_recv().is_err(), "nobody has called yet");
            connecting.is_finished()
        });
    });
    // The server has read the CONFIRM when it has read the packets after it.
    let call = client.call(pair.address, "hello").start().unwrap();
    pair.service.recv().unwrap().reply("hello").unwrap();
    assert_eq!(call.wait().unwrap(), "hello");
}

/// Serves on a thread until the service or the node closes.
pub(crate) fn serve(
    service: &Port,
    mut handler: impl FnMut(Request) + Send + 'static,
) -> JoinHandle<()> {
    let service = service.clone();
    thread::spawn(move || service.serve(&mut handler))
}

pub(crate) fn serve_echo(service: &Port) -> JoinHandle<()> {
    serve(service, echo)
}

/// Answers with the request's bytes. The client may have given up, which is not a fault of the server.
pub(crate) fn echo(mut request: Request) {
    let body = request.take_body();
    let _ = request.reply(body);
}

/// Bytes that all depend on the seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
