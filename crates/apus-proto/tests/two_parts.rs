//! Messages in two parts: a head, and the bytes behind it that nobody copies before they leave.

use crate::pair::*;
use apus_proto::{Body, CallOptions, Endpoint, Remote, RpcKey, Time};
use apus_wire::{DATA_HEADER_LEN, PacketSink, PathId, Transmit};
use bytes::Bytes;

/// Returns a body of two parts, and its bytes.
fn parts(first: usize, second: usize) -> (Body, Bytes) {
    let whole = body(first + second, (first ^ second) as u64);
    (Body::parts([whole.slice(..first), whole.slice(first..)]), whole)
}

fn call(pair: &mut Pair, body: Body) -> RpcKey {
    let (now, node) = (pair.now, &mut pair.nodes[CLIENT]);
    let to = Remote::new(path(SERVER), PORT);
    node.endpoint.call(now, node.socket, to, body, CallOptions::default()).unwrap()
}

/// Lengths of parts whose border is in the first packet, at its end, in a later one, and in the last one.
const LENGTHS: [(usize, usize); 6] = [
    (1, 20_000),
    (100, 100_000),
    (ETHERNET - DATA_HEADER_LEN, 30_000),
    (5_000, 5_000),
    (30_000, 1),
    (60_000, 60_000),
];

#[test]
fn they_arrive_whole_in_both_directions_in_spite_of_loss() {
    for seed in 0..5 {
        let mut pair = Pair::new();
        let (loss, duplicate, late) = (150, 50, 100);
        let (lateness, random) = (millis(1), Random::new(seed));
        pair.faults = Some(Faults { loss, duplicate, late, lateness, random });
        pair.hold();
        for (first, second) in LENGTHS {
            let (request, whole) = parts(first, second);
            let call = call(&mut pair, request);
            pair.drive_until(|net| !net.nodes[SERVER].requests.is_empty());
            let request = pair.nodes[SERVER].requests.remove(0);
            assert!(request.body == whole, "{first} and {second} bytes");
            let (response, whole) = parts(second, first);
            let now = pair.now;
            pair.endpoint(SERVER).reply(now, request.rpc, response).unwrap();
            pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
            assert!(*pair.response(call) == whole, "{second} and {first} bytes");
        }
        pair.drive();
        pair.assert_clean();
    }
}

#[test]
fn they_are_sent_again_in_smaller_pieces() {
    let mut pair = Pair::new();
    pair.mtu = 9_000;
    pair.black_hole = Some(ETHERNET);
    let (request, whole) = parts(3_000, 100_000);
    let call = call(&mut pair, request);
    pair.drive();
    assert!(*pair.response(call) == whole);
}

/// Counts payload that is not in the part with the rest of it.
#[derive(Default)]
struct Copies {
    mtu: usize,
    /// Bytes that were copied behind a header.
    copied: usize,
    /// Addresses of the first and the last byte of all other payload.
    places: Vec<(usize, usize)>,
}

impl PacketSink for Copies {
    fn send(&mut self, packet: Transmit<'_>) {
        if packet.body.is_empty() {
            return;
        }
        self.copied += packet.header.len() - DATA_HEADER_LEN;
        let place = packet.payload().as_ptr() as usize;
        self.places.push((place, place + packet.range.len()));
    }

    fn max_packet(&self, _: PathId) -> usize {
        self.mtu
    }
}

/// Sends all that may be sent within 10 ms.
fn copies(node: &mut Endpoint, mut now: Time, mtu: usize) -> Copies {
    let mut sink = Copies { mtu, ..Copies::default() };
    for _ in 0..200 {
        while node.poll_transmit(now, &mut sink) {}
        now = now + micros(50);
    }
    sink
}

#[test]
fn the_head_alone_is_copied_into_the_packet_that_has_the_border() {
    for mtu in [ETHERNET, 9_000, 65_000] {
        let mut pair = Pair::acquainted(|config| {
            config.unscheduled(1 << 20).unscheduled_max(1 << 20).burst(1 << 20);
        });
        let rest = body(100_000, 7);
        let place = rest.as_ptr() as usize;
        call(&mut pair, Body::parts([body(100, 1), rest.clone()]));
        let now = pair.now;
        let sink = copies(pair.endpoint(CLIENT), now, mtu);
        assert_eq!(sink.copied, 100, "the head, once");
        assert_eq!(sink.places.iter().map(|(start, end)| end - start).sum::<usize>(), rest.len());
        assert!(
            sink.places.iter().all(|&(start, end)| start >= place && end <= place + rest.len())
        );
    }
}
