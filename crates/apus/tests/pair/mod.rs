//! A server and a client node on this machine, for tests.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use apus::{Address, CallOptions, Config, Delivery, Incoming, Node, Request, Socket};

pub(crate) const PORT: u16 = 4000;

/// How long only a fault takes: a test that waits longer has failed.
pub(crate) const FAULT_AFTER: Duration = Duration::from_secs(60);

/// Gives way until a condition holds.
pub(crate) fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < FAULT_AFTER, "{condition}: not within {FAULT_AFTER:?}");
        thread::yield_now();
    }
}

pub(crate) struct Pair {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) service: Socket,
    pub(crate) address: Address,
}

/// Two nodes; `change` is applied to the configuration of both.
pub(crate) fn pair_with(change: impl Fn(&mut Config)) -> Pair {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap());
    change(&mut config);
    let server = Node::start(&config).unwrap();
    let client = Node::start(&config).unwrap();
    around(client, server)
}

pub(crate) fn around(client: Node, server: Node) -> Pair {
    let service = server.bind(PORT).unwrap();
    let address = Address::new(server.local_addr(), PORT);
    Pair { client, server, service, address }
}

pub(crate) fn pair(delivery: Delivery) -> Pair {
    pair_with(|config| {
        config.delivery(delivery);
    })
}

/// Makes client and server known to each other. In `fullbusy` nobody turns a node whose thread waits for another one, so
/// that the first contact, which takes both, must be over before one thread works for both.
pub(crate) fn acquaint(pair: &Pair) {
    let socket = pair.client.socket().unwrap();
    thread::scope(|scope| {
        let client = scope.spawn(|| socket.connect(pair.address, CallOptions::new()).unwrap());
        wait_until("the nodes know each other", || {
            assert!(pair.service.try_recv().is_err(), "nobody has called yet");
            client.is_finished()
        });
    });
    // The server has read the CONFIRM when it has read what came after it.
    let call = socket.start(pair.address, "hello", CallOptions::new()).unwrap();
    let Ok(Incoming::Request(request)) = pair.service.recv() else { panic!("the first request") };
    request.reply("hello").unwrap();
    assert_eq!(call.wait().unwrap(), "hello");
}

/// Serves on a thread until the socket or the node closes.
pub(crate) fn serve(
    socket: &Socket,
    mut handler: impl FnMut(Request) + Send + 'static,
) -> JoinHandle<()> {
    let socket = socket.clone();
    thread::spawn(move || socket.serve(&mut handler))
}

pub(crate) fn serve_echo(socket: &Socket) -> JoinHandle<()> {
    serve(socket, echo)
}

/// Answers with the request's bytes. The client may have gone, which is no fault of the server.
pub(crate) fn echo(mut request: Request) {
    let body = request.take_body();
    let _ = request.reply(body);
}

/// Bytes of which every one depends on the seed.
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

pub(crate) fn request(incoming: Incoming) -> Request {
    match incoming {
        Incoming::Request(request) => request,
        other => panic!("expected a request, got {other:?}"),
    }
}
