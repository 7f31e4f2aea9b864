//! Peers that violate the rules of byte streams (`docs/streams.md`): each loses its own stream and nothing else.

use std::io::{ErrorKind, Read, Write};
use std::thread;

use crate::pair::{Pair, pair, wait_until};
use apus::{Address, Bytes, Call, Client, Delivery, Stream, StreamListener, StreamOptions};

const LISTENER: u16 = 4_001;
const OPEN: u8 = 1;
const FIN: u8 = 2;
const RESET: u8 = 8;
const UNKNOWN: u8 = 2;
const VIOLATION: u8 = 4;

/// A message of a stream, made by hand.
#[derive(Clone, Copy)]
struct Message {
    flags: u8,
    id: u64,
    offset: u64,
    received: u64,
}

impl Message {
    fn new(id: u64, flags: u8, offset: u64) -> Self {
        Self { flags, id, offset, received: 0 }
    }

    fn with(self, payload: &[u8]) -> Vec<u8> {
        let mut message = vec![b'S', b't', 1, self.flags, 2, 0, 0, 0];
        for word in [self.id, self.offset, self.received, 1 << 20] {
            message.extend_from_slice(&word.to_be_bytes());
        }
        message.extend_from_slice(payload);
        message
    }
}

/// The reason of the reset, if the response resets the stream.
fn reset(response: &Bytes) -> Option<u8> {
    assert_eq!(response[..3], [b'S', b't', 1]);
    (response[3] & RESET != 0).then(|| response[5])
}

struct Hostile {
    pair: Pair,
    listener: StreamListener,
    client: Client,
    address: Address,
    /// Calls that the listener holds.
    kept: Vec<Call>,
}

impl Hostile {
    fn new() -> Self {
        let pair = pair(Delivery::default());
        let mut options = StreamOptions::new();
        let listener =
            StreamListener::bind_with(&pair.server_node, LISTENER, options.backlog(64)).unwrap();
        let address = Address::new(pair.server_node.local_addr(), LISTENER);
        let client = pair.client_node.client().unwrap();
        Self { pair, listener, client, address, kept: Vec::new() }
    }

    /// Opens a stream by hand. Returns the window, which is the window of a stream that was not accepted.
    fn open(&self, id: u64) -> u64 {
        let response =
            self.client.call(self.address, Message::new(id, OPEN, 0).with(b"")).wait().unwrap();
        assert_eq!(reset(&response), None);
        u64::from_be_bytes(response[32..40].try_into().unwrap())
    }

    fn call(&self, message: Vec<u8>) -> Option<u8> {
        reset(&self.client.call(self.address, message).wait().unwrap())
    }

    /// Asserts that an honest stream of another client still works.
    fn honest_stream_works(&self) {
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut honest = Stream::connect(&self.pair.client_node, self.address).unwrap();
                honest.write_all(b"honest").unwrap();
                honest.read_exact(&mut [0; 6]).unwrap();
            });
            let is_honest = |stream: &Stream| stream.peer_addr().port != self.client.port();
            let mut stream = self.listener.incoming().find(is_honest).unwrap();
            let mut buffer = [0; 6];
            stream.read_exact(&mut buffer).unwrap();
            stream.write_all(&buffer).unwrap();
        });
    }
}

#[test]
fn lies_reset_the_stream_that_they_are_about() {
    let hostile = Hostile::new();
    let window = hostile.open(99);
    let long = vec![0; usize::try_from(window).unwrap() + 1];
    let lies = [
        Message::new(0, 0, 0).with(&long),        // more than the window
        Message::new(0, 0, u64::MAX).with(b"xy"), // beyond the largest offset
        Message { received: 1, ..Message::new(0, 0, 0) }.with(b""), // reports unsent bytes
        Message::new(0, FIN, 5).with(b""),        // the end, before more bytes
    ];
    for (id, lie) in (1..).zip(&lies) {
        hostile.open(id);
        let mut lie = lie.clone();
        lie[8..16].copy_from_slice(&id.to_be_bytes());
        if id < 4 {
            assert_eq!(hostile.call(lie), Some(VIOLATION), "lie {id}");
        } else {
            assert_eq!(hostile.call(lie), None);
            assert_eq!(hostile.call(Message::new(id, 0, 4).with(b"xy")), Some(VIOLATION)); // bytes after the end
        }
    }
    let counters = hostile.pair.server_node.stats().streams;
    assert_eq!((counters.violations, counters.accepted), (4, 5));
    hostile.honest_stream_works();
}

#[test]
fn a_stream_that_nobody_accepts_has_a_short_window() {
    let hostile = Hostile::new();
    assert_eq!(hostile.open(1), 64 << 10);
}

#[test]
fn gaps_without_end_reset_the_stream() {
    let mut hostile = Hostile::new();
    hostile.open(1);
    for gap in 1..200 {
        let message = Message::new(1, 0, gap * 2).with(b"x");
        hostile.kept.push(hostile.client.call(hostile.address, message).start().unwrap());
    }
    wait_until("the stream is reset", || hostile.pair.server_node.stats().streams.violations == 1);
    hostile.kept.clear();
    hostile.honest_stream_works();
}

#[test]
fn a_stream_belongs_to_the_port_that_opened_it() {
    let hostile = Hostile::new();
    hostile.open(1);
    let other = hostile.pair.client_node.client().unwrap();
    let stolen = other.call(hostile.address, Message::new(1, 0, 0).with(b"stolen")).wait().unwrap();
    assert_eq!(reset(&stolen), Some(UNKNOWN));
    assert_eq!(hostile.call(Message::new(2, 0, 0).with(b"")), Some(UNKNOWN));
    assert_eq!(hostile.pair.server_node.stats().streams.refused_unknown, 2);
    // The honest stream itself is unchanged.
    assert_eq!(hostile.call(Message::new(1, FIN, 0).with(b"own")), None);
    let (mut stream, _) = hostile.listener.accept().unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "own");
}

#[test]
fn what_is_no_stream_is_refused() {
    let hostile = Hostile::new();
    let strange = [&b"x"[..], b"hello, is this the echo service?", &[0xff; 4_000]];
    for body in strange {
        assert_eq!(hostile.call(body.to_vec()), Some(VIOLATION));
    }
    assert_eq!(hostile.pair.server_node.stats().streams.refused_malformed, 3);
    hostile.honest_stream_works();
}

#[test]
fn a_service_that_is_no_listener_ends_the_stream() {
    let pair = pair(Delivery::default());
    for answer in [&b"what?"[..], &[0; 40], &Message::new(5, 0, 0).with(b"")] {
        let error = thread::scope(|scope| {
            scope.spawn(|| pair.service.recv().unwrap().reply(answer.to_vec()).unwrap());
            Stream::connect(&pair.client_node, pair.address).unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    }
}

#[test]
fn a_server_cannot_send_more_than_the_window() {
    let pair = pair(Delivery::default());
    let liar = thread::spawn({
        let service = pair.service.clone();
        move || {
            let request = service.recv().unwrap();
            let id = u64::from_be_bytes(request.body()[8..16].try_into().unwrap());
            request.reply(Message::new(id, 0, 0).with(b"")).unwrap();
            let too_much = vec![0; (1 << 20) + 1];
            service.recv().unwrap().reply(Message::new(id, 0, 0).with(&too_much)).unwrap();
        }
    });
    let mut stream = Stream::connect(&pair.client_node, pair.address).unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    assert_eq!(pair.client_node.stats().streams.violations, 1);
    liar.join().unwrap();
}
