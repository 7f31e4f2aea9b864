//! The life cycle of a call: any size, both roles, and no state left behind.

use crate::pair::*;
use apus_proto::{
    CallError, CallFailed, CallOptions, Config, Endpoint, OpenError, Remote, ReplyError, RpcKey,
    Time,
};
use apus_wire::{Packet, PacketType, PathId, UnknownReason};
use bytes::Bytes;

//= docs/protocol.md#life-1
#[test]
fn a_request_is_answered_byte_for_byte_at_any_size() {
    for length in [1, 2, 999, 1_000, 1_416, 1_417, 40_000, 56_640, 56_641, 300_000, 5_000_000] {
        for mtu in [600, ETHERNET, 9_000, 65_507] {
            let mut pair = Pair::new();
            (pair.mtu, pair.keep_sent) = (mtu, false);
            let call = pair.call(length);
            pair.drive();
            assert_eq!(pair.response(call), &body(length, length as u64), "{length} {mtu}");
            pair.assert_clean();
        }
    }
}

#[test]
fn request_and_response_differ_in_length() {
    for (request, response) in [(1, 1_000_000), (1_000_000, 1)] {
        let mut pair = Pair::new();
        pair.answer_with(response);
        let call = pair.call(request);
        pair.drive();
        assert_eq!(pair.response(call), &body(response, response as u64));
        assert_eq!(pair.nodes[SERVER].executed, [body(request, request as u64)]);
        pair.assert_clean();
    }
}

#[test]
fn a_short_call_is_two_packets_between_acquaintances() {
    let mut pair = Pair::acquainted(|_| {});
    let call = pair.call(100);
    pair.drive_for(millis(1));
    pair.response(call);
    let kinds: Vec<_> = pair.sent.iter().map(|sent| sent.packet().packet_type()).collect();
    assert_eq!(kinds, [PacketType::Data, PacketType::Data]);
}

#[test]
fn both_sides_call_each_other_at_once() {
    let mut pair = Pair::new();
    let calls: Vec<_> = (0..50)
        .flat_map(|n| {
            let request = body(100 + 1_000 * n, n as u64);
            [(CLIENT, SERVER), (SERVER, CLIENT)]
                .map(|(from, to)| (from, pair.call_from(from, to, request.clone()), n))
        })
        .collect();
    pair.drive();
    for (node, call, n) in calls {
        let expected = Outcome::Response(body(100 + 1_000 * n, n as u64));
        assert_eq!(pair.outcome(node, call), Some(&expected));
    }
    pair.assert_clean();
}

#[test]
fn a_call_can_stay_in_service_longer_than_any_timeout() {
    for peer_timeout in [millis(50), secs(1), secs(20)] {
        let mut pair = Pair::with(|config| {
            config.peer_timeout(peer_timeout);
        });
        pair.hold();
        let call = pair.call(100);
        pair.drive_for(100 * peer_timeout);
        assert_eq!(pair.outcome(CLIENT, call), None);
        pair.reply_from(SERVER, body(5_000, 1));
        pair.drive();
        assert_eq!(pair.response(call), &body(5_000, 1));
        assert_eq!(pair.nodes[SERVER].executed.len(), 1);
        pair.assert_clean();
    }
}

//= docs/protocol.md#life-8
#[test]
fn an_aborted_call_ends_silently_and_its_server_finds_out() {
    let mut pair = Pair::new();
    let call = pair.call(100);
    pair.drive_for(micros(15));
    assert!(pair.endpoint(CLIENT).abort(call) && !pair.endpoint(CLIENT).abort(call));
    pair.drive();
    assert_eq!(pair.outcome(CLIENT, call), None);
    assert_eq!(pair.counters(CLIENT).calls_aborted, 1);
    pair.assert_clean();
}

//= docs/protocol.md#life-8
#[test]
fn the_server_of_a_call_that_is_given_up_is_notified_at_once() {
    for by_deadline in [false, true] {
        let mut pair = Pair::new();
        pair.hold();
        let options = CallOptions {
            deadline: by_deadline.then_some(Time::ZERO + millis(1)),
            ..CallOptions::default()
        };
        let now = pair.now;
        let client = &mut pair.nodes[CLIENT];
        let to = Remote::new(path(SERVER), PORT);
        let call = client.endpoint.call(now, client.socket, to, body(100, 1), options).unwrap();
        pair.drive_for(micros(500));
        let rpc = pair.nodes[SERVER].requests[0].rpc;
        assert!(pair.endpoint(SERVER).is_active(rpc), "the handler works");
        assert!(pair.endpoint(SERVER).watch(rpc));
        if by_deadline {
            pair.drive_for(millis(20));
        } else {
            pair.endpoint(CLIENT).abort(call);
        }
        pair.drive_for(micros(50));
        assert!(
            !pair.endpoint(SERVER).is_active(rpc),
            "the client no longer waits for the response"
        );
        assert_eq!(pair.nodes[SERVER].cancelled, [rpc]);
        assert!(!pair.endpoint(SERVER).watch(rpc));
        let now = pair.now;
        assert_eq!(
            pair.endpoint(SERVER).reply(now, rpc, body(10, 2)),
            Err(ReplyError::NotInService)
        );
        assert_eq!(pair.counters(SERVER).requests_cancelled, 1);
        assert_eq!(pair.sent_by(CLIENT, PacketType::Abort).len(), 1);
        pair.drive();
        pair.assert_clean();
    }
}

//= docs/protocol.md#life-3
#[test]
fn a_server_knows_the_deadline_and_ends_the_request_then() {
    for (length, mtu) in [
        (1, 1_472),
        (1_407, 1_472),
        (1_408, 1_472),
        (1_409, 1_472),
        (1_416, 1_472),
        (100_000, 600),
        (100_000, 65_507),
    ] {
        let mut pair = Pair::new();
        (pair.mtu, pair.keep_sent) = (mtu, false);
        pair.hold();
        let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
        let options = CallOptions { deadline: Some(now + millis(50)), ..CallOptions::default() };
        let to = Remote::new(path(SERVER), PORT);
        let request = body(length, 1);
        pair.endpoint(CLIENT).call(now, socket, to, request.clone(), options).unwrap();
        pair.drive_for(millis(10));
        assert!(pair.nodes[SERVER].requests[0].body == request, "{length} {mtu}");
        // From here on, all packets of the client are lost.
        pair.hook = Some(Box::new(|passing| match passing.from {
            CLIENT => Fate::Drop,
            _ => Fate::Pass,
        }));
        let rpc = pair.nodes[SERVER].requests[0].rpc;
        pair.drive_for(millis(30));
        assert!(pair.endpoint(SERVER).is_active(rpc), "{length} {mtu}");
        pair.drive_for(millis(30));
        assert!(!pair.endpoint(SERVER).is_active(rpc), "{length} {mtu}");
        assert_eq!(pair.counters(SERVER).requests_expired, 1);
        // The application keeps the bytes until it has ended the request.
        assert!(pair.endpoint(SERVER).held_bytes() >= length as u64);
        let now = pair.now;
        let refused = pair.endpoint(SERVER).reply(now, rpc, body(1, 2));
        assert_eq!(refused, Err(ReplyError::NotInService));
        assert_eq!(
            (pair.endpoint(SERVER).active_rpcs(), pair.endpoint(SERVER).held_bytes()),
            (0, 0)
        );
    }
}

//= docs/protocol.md#life-3
#[test]
fn a_deadline_too_far_to_be_encoded_ends_no_request() {
    let mut pair = Pair::new();
    pair.hold();
    let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
    // The time has more microseconds than fit four bytes.
    let options = CallOptions { deadline: Some(now + secs(7_200)), ..CallOptions::default() };
    let to = Remote::new(path(SERVER), PORT);
    pair.endpoint(CLIENT).call(now, socket, to, body(100, 1), options).unwrap();
    pair.drive_for(secs(4_400));
    let rpc = pair.nodes[SERVER].requests[0].rpc;
    assert!(pair.endpoint(SERVER).is_active(rpc));
    assert_eq!(pair.counters(SERVER).requests_expired, 0);
}

//= docs/protocol.md#life-8
#[test]
fn a_request_that_is_given_up_half_sent_begins_no_more() {
    let mut pair = Pair::new();
    let call = pair.call(1_000_000);
    pair.drive_for(micros(100));
    let first = pair.sent_by(CLIENT, PacketType::Data)[0].bytes.clone();
    assert!(pair.endpoint(SERVER).active_rpcs() == 1, "it arrives");
    pair.endpoint(CLIENT).abort(call);
    pair.drive_for(micros(50));
    assert_eq!((pair.endpoint(SERVER).active_rpcs(), pair.endpoint(SERVER).held_bytes()), (0, 0));
    // The network delivers a delayed copy of its first packet.
    pair.inject_raw(path(CLIENT), SERVER, &first);
    assert_eq!(pair.endpoint(SERVER).active_rpcs(), 0);
    pair.drive();
    pair.assert_clean();
}

//= docs/protocol.md#life-8
#[test]
fn a_server_without_notice_finds_out_and_one_that_knows_nothing_gets_none() {
    let mut pair = Pair::new();
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(micros(100));
    pair.hook = Some(Box::new(|passing| match passing.is(PacketType::Abort, CLIENT) {
        true => Fate::Drop,
        false => Fate::Pass,
    }));
    pair.endpoint(CLIENT).abort(call);
    let unsent = pair.call(100);
    pair.endpoint(CLIENT).abort(unsent);
    pair.drive_for(micros(100));
    assert_eq!(pair.sent_by(CLIENT, PacketType::Abort).len(), 1);
    assert_eq!(pair.counters(SERVER).requests_cancelled, 0);
    let Request { rpc, body, .. } = pair.nodes[SERVER].requests.remove(0);
    let now = pair.now;
    pair.endpoint(SERVER).reply(now, rpc, body).unwrap();
    pair.drive();
    pair.assert_clean();
}

/// The server's handler panics with the only request, 100 µs after the call began.
fn handler_panics(pair: &mut Pair) -> RpcKey {
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(micros(100));
    let rpc = pair.nodes[SERVER].requests[0].rpc;
    assert!(pair.endpoint(SERVER).reject(rpc, UnknownReason::HandlerPanicked));
    assert!(!pair.endpoint(SERVER).reject(rpc, UnknownReason::HandlerPanicked), "once");
    pair.drive();
    assert_eq!(pair.nodes[SERVER].requests.len(), 1, "executed once");
    pair.assert_clean();
    call
}

//= docs/protocol.md#handler-1
#[test]
fn a_client_is_notified_at_once_that_the_handler_panicked() {
    let mut pair = Pair::new();
    let call = handler_panics(&mut pair);
    assert_eq!(pair.failure(call), CallFailed::HandlerPanicked);
    let refusals = pair.sent_by(SERVER, PacketType::RpcUnknown);
    let Packet::RpcUnknown { unknown, .. } = refusals[0].packet() else { unreachable!() };
    assert_eq!((refusals.len(), unknown.reason), (1, UnknownReason::HandlerPanicked));
    assert!(pair.ended_at(CLIENT, call) <= Time::ZERO + micros(100) + pair.latency * 2);
}

//= docs/protocol.md#handler-1
//= docs/protocol.md#life-7
#[test]
fn if_the_word_of_a_panic_is_lost_the_response_is_lost() {
    let mut pair = Pair::new();
    pair.lose_first(|passing| passing.is(PacketType::RpcUnknown, SERVER));
    let call = handler_panics(&mut pair);
    assert_eq!(pair.failure(call), CallFailed::ResponseLost);
}

//= docs/protocol.md#life-3
//= docs/protocol.md#server-5
#[test]
fn no_event_follows_the_close_of_a_socket() {
    let mut pair = Pair::new();
    let calls: Vec<_> = (0..600).map(|_| pair.call(2_000)).collect();
    pair.drive_for(micros(15));
    let socket = pair.nodes[CLIENT].socket;
    pair.endpoint(CLIENT).close(socket);
    pair.drive();
    assert!(calls.iter().all(|&call| pair.outcome(CLIENT, call).is_none()));
    assert_eq!(pair.endpoint(CLIENT).port(socket), None);
    let refused = pair.try_call(CLIENT, SERVER, body(1, 1), CallOptions::default());
    assert_eq!(refused, Err(CallError::SocketClosed));
    pair.assert_clean();
}

#[test]
fn an_event_that_waits_when_its_socket_closes_is_dropped() {
    let mut pair = Pair::new();
    let (now, node) = (pair.now, &mut pair.nodes[SERVER]);
    let mut client = Endpoint::new(Config::default(), 9);
    let socket = client.open(None).expect("free");
    let to = Remote::new(path(SERVER), PORT);
    client.call(now, socket, to, body(10, 1), CallOptions::default()).expect("within limits");
    let mut wire = Vec::new();
    client.poll_transmit(now, &mut Collect(&mut wire));
    node.endpoint.handle_packet(now, path(7), &wire[0]);
    node.endpoint.close(node.service);
    assert_eq!(node.endpoint.poll_event(), None);
}

struct Collect<'a>(&'a mut Vec<Vec<u8>>);

impl apus_wire::PacketSink for Collect<'_> {
    fn send(&mut self, packet: apus_wire::Transmit<'_>) {
        self.0.push([packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _: PathId) -> usize {
        ETHERNET
    }
}

#[test]
fn what_cannot_be_sent_is_refused_at_once() {
    let mut pair = Pair::with(|config| {
        config.message_max(1_000).calls_max(2);
    });
    let mut call = |body: Bytes| pair.try_call(CLIENT, SERVER, body, CallOptions::default());
    let too_large = CallError::MessageTooLarge { length: 1_001, limit: 1_000 };
    assert_eq!(call(body(1_001, 1)), Err(too_large));
    assert!(call(body(1_000, 1)).is_ok() && call(body(1, 1)).is_ok());
    assert_eq!(call(body(1, 1)), Err(CallError::TooManyCalls { limit: 2 }));
    pair.drive();
    pair.assert_clean();
}

//= docs/protocol.md#life-1
#[test]
fn empty_messages_arrive_empty_and_once_whatever_is_lost() {
    for lost in 0..8u32 {
        let mut pair = Pair::acquainted(|_| {});
        pair.hold();
        let mut data = 0u32;
        // The hook loses some DATA of the request and of the response.
        pair.hook = Some(Box::new(move |packet| {
            if packet.packet.packet_type() != PacketType::Data {
                return Fate::Pass;
            }
            data += 1;
            if lost >> (data - 1).min(3) & 1 == 1 { Fate::Drop } else { Fate::Pass }
        }));
        let call = pair.try_call(CLIENT, SERVER, Bytes::new(), CallOptions::default()).unwrap();
        pair.drive_for(millis(100));
        assert_eq!(pair.nodes[SERVER].requests.len(), 1, "lost {lost:b}");
        assert_eq!(pair.nodes[SERVER].requests[0].body, Bytes::new());
        pair.reply_from(SERVER, Bytes::new());
        pair.drive();
        assert_eq!(pair.response(call), &Bytes::new());
        pair.assert_clean();
    }
}

#[test]
fn a_refused_reply_leaves_the_request_in_service() {
    let mut pair = Pair::with(|config| {
        config.message_max(1_000);
    });
    pair.hold();
    let call = pair.call(10);
    pair.drive_for(millis(1));
    let (now, rpc) = (pair.now, pair.nodes[SERVER].requests[0].rpc);
    let mut reply = |body: Bytes| pair.endpoint(SERVER).reply(now, rpc, body);
    let too_large = ReplyError::MessageTooLarge { length: 1_001, limit: 1_000 };
    assert_eq!(reply(body(1_001, 1)), Err(too_large));
    assert_eq!(reply(body(7, 7)), Ok(()));
    assert_eq!(reply(body(7, 7)), Err(ReplyError::NotInService));
    pair.drive();
    assert_eq!(pair.response(call), &body(7, 7));
}

#[test]
fn ports_are_given_once_and_again_after_close() {
    let mut endpoint = Endpoint::new(Config::default(), 1);
    assert_eq!(endpoint.open(Some(0)), Err(OpenError::PortOutOfRange(0)));
    assert_eq!(endpoint.open(Some(32_768)), Err(OpenError::PortOutOfRange(32_768)));
    let first = endpoint.open(Some(1)).expect("free");
    assert_eq!(endpoint.open(Some(1)), Err(OpenError::PortInUse(1)));
    endpoint.close(first);
    assert!(endpoint.open(Some(1)).is_ok());
    for _ in 0..32_768 {
        endpoint.open(None).expect("a client port is left");
    }
    assert_eq!(endpoint.open(None), Err(OpenError::NoPortLeft));
}

//= docs/protocol.md#ack-5
#[test]
fn a_client_about_to_stop_reports_its_responses_to_its_servers() {
    let mut pair = Pair::acquainted(|_| {});
    let asked = pair.counters(SERVER).need_acks_sent;
    let call = pair.call(100);
    pair.drive_until(|pair| pair.outcome(CLIENT, call).is_some());
    assert_eq!(pair.active(SERVER), 1, "the response is not acknowledged yet");
    pair.endpoint(CLIENT).acknowledge();
    pair.drive_for(micros(500));
    assert_eq!(pair.active(SERVER), 0);
    assert_eq!(pair.counters(SERVER).need_acks_sent, asked, "the server sends no NEED_ACK");
}

#[test]
fn however_many_timers_are_due_a_turn_is_bounded() {
    let mut pair = Pair::acquainted(|_| {});
    pair.nodes[SERVER].up = false;
    (0..5_000).for_each(|_| {
        pair.call(1);
    });
    pair.drive_for(micros(100));
    pair.now = pair.now + secs(1);
    let now = pair.now;
    let mut turns = 0;
    let mut asked = 0;
    while pair.endpoint(CLIENT).poll_timeout().is_some_and(|due| due <= now) && turns < 100 {
        pair.endpoint(CLIENT).handle_timeout(now);
        turns += 1;
        let mut sent = Discard(0);
        while pair.endpoint(CLIENT).poll_transmit(now, &mut sent) {}
        assert!(sent.0 <= 1_100, "{} packets after one turn", sent.0);
        asked += sent.0;
    }
    //= docs/protocol.md#loss-12
    assert!(asked == 512 && turns >= 5, "{asked} in {turns} turns");
}

/// A link that drops and counts everything.
struct Discard(usize);

impl apus_wire::PacketSink for Discard {
    fn send(&mut self, _: apus_wire::Transmit<'_>) {
        self.0 += 1;
    }

    fn max_packet(&self, _: PathId) -> usize {
        ETHERNET
    }
}
