//! Rights: who may call a service, and whom a client may call.

use crate::pair::*;
use apus_proto::{
    CallError, CallFailed, CallOptions, PathKind, Remote, RequestLimits, Rights, RpcKey, SocketKey,
};
use apus_wire::{
    Credentials, Open, Packet, PacketType, PathId, RpcUnknown, Stamp, Token, UnknownReason,
};

/// The rule of the services in these tests.
const RULE: u8 = 5;

const MAY_CALL: Rights = Rights { requests: 1 << RULE, calls: u64::MAX };

/// Nodes at sealed paths that have not met. The server's rule is [`RULE`].
fn unacquainted() -> Pair {
    let mut pair = Pair::unacquainted_sealed();
    let service = pair.nodes[SERVER].service;
    pair.endpoint(SERVER).set_rule(service, RULE);
    pair
}

/// The same nodes after a first contact.
fn acquainted() -> Pair {
    let mut pair = unacquainted();
    pair.introduce(CLIENT, sealed_path(SERVER));
    pair.introduce(SERVER, sealed_path(CLIENT));
    pair
}

fn try_call(pair: &mut Pair, socket: SocketKey, length: usize) -> Result<RpcKey, CallError> {
    let now = pair.now;
    let to = Remote::new(pair.nodes[SERVER].path, PORT);
    pair.endpoint(CLIENT).call(now, socket, to, body(length, 1), CallOptions::default())
}

/// Gives the client rights at the server.
fn give(pair: &mut Pair, rights: Rights) {
    let path = pair.nodes[CLIENT].path;
    pair.endpoint(SERVER).set_rights(path, rights);
}

/// Returns the reasons that the server has given, and the lengths of these packets.
fn refusals(pair: &Pair) -> Vec<(UnknownReason, usize)> {
    let sent = pair.sent_by(SERVER, PacketType::RpcUnknown).into_iter();
    sent.map(|sent| (RpcUnknown::parse(&sent.bytes).reason, sent.bytes.len())).collect()
}

//= docs/protocol.md#seal-6
#[test]
fn a_request_without_right_is_refused_and_never_executed() {
    for length in [100, 5_000, 500_000] {
        let mut pair = acquainted();
        give(&mut pair, Rights { requests: !(1 << RULE), calls: u64::MAX });
        let forbidden = pair.call(length);
        pair.drive_until(|net| net.outcome(CLIENT, forbidden).is_some());
        assert_eq!(pair.failure(forbidden), CallFailed::NotAllowed);
        assert!(pair.counters(SERVER).refused_not_allowed > 0);
        assert_eq!(pair.ended_at(CLIENT, forbidden), apus_proto::Time::ZERO + 2 * pair.latency);
        give(&mut pair, MAY_CALL);
        let requests = pair.sent_by(CLIENT, PacketType::Data).into_iter().cloned();
        requests.collect::<Vec<_>>().iter().for_each(|request| pair.repeat(request));
        pair.drive_for(secs(40));
        assert_eq!(pair.nodes[SERVER].executed.len(), 0);
        let allowed = pair.call(length);
        pair.drive();
        pair.response(allowed);
        pair.assert_clean();
    }
}

//= docs/protocol.md#seal-4
#[test]
fn requests_to_a_socket_with_limits_are_short_and_few() {
    let mut pair = acquainted();
    let socket = pair.nodes[SERVER].service;
    let limits = RequestLimits { longest: 64 << 10, budget: 100 << 10 };
    pair.endpoint(SERVER).limit_requests(socket, limits);
    for length in [100, 1_000, 60_000, 64 << 10] {
        let call = pair.call(length);
        pair.drive();
        pair.response(call);
    }
    let long = pair.call((64 << 10) + 1);
    pair.drive_until(|net| net.outcome(CLIENT, long).is_some());
    assert_eq!(pair.failure(long), CallFailed::RequestTooLarge { length: (64 << 10) + 1 });
    // Two at a time have no room, and are executed one after the other.
    let calls = [60_000, 60_000, 60_000].map(|length| pair.call(length));
    pair.drive();
    calls.into_iter().for_each(|call| _ = pair.response(call));
    assert!(pair.counters(SERVER).refused_over_budget > 0);
}

//= docs/protocol.md#seal-6
//= docs/protocol.md#loss-6
#[test]
fn a_client_whose_request_was_lost_learns_it_from_a_probe() {
    let mut pair = acquainted();
    give(&mut pair, Rights::NONE);
    pair.lose_first(|passing| passing.is(PacketType::Data, CLIENT));
    let forbidden = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, forbidden).is_some());
    assert_eq!(pair.failure(forbidden), CallFailed::NotAllowed);
    give(&mut pair, Rights::ALL);
    let request = pair.sent_by(CLIENT, PacketType::Data)[0].clone();
    pair.repeat(&request);
    pair.drive();
    assert_eq!(pair.nodes[SERVER].executed.len(), 0);
}

//= docs/protocol.md#seal-17
#[test]
fn a_barred_path_takes_and_sends_nothing_but_the_refusal_of_a_first_contact() {
    let mut pair = Pair::unacquainted();
    pair.move_node(CLIENT, path(CLIENT).barred());
    let barred = pair.call(100);
    pair.drive();
    assert_eq!(pair.failure(barred), CallFailed::SealedOnly);
    assert_eq!(refusals(&pair), [(UnknownReason::ContactSealedOnly, RpcUnknown::LEN)]);
    assert_eq!((pair.counters(SERVER).dropped_plain, pair.counters(SERVER).packets_sent), (1, 1));
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 0);
    // The packets of a client that the server knows, from such a path.
    let mut pair = Pair::new();
    let taken = pair.call(100_000);
    pair.drive();
    pair.response(taken);
    pair.move_node(CLIENT, path(CLIENT).barred());
    let before = pair.counters(SERVER).packets_sent;
    let moved = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, moved).is_some());
    assert!(matches!(pair.failure(moved), CallFailed::PeerTimeout { .. }));
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert_eq!(pair.counters(SERVER).packets_sent, before);
    // A call by such a path.
    let mut pair = Pair::unacquainted();
    pair.move_node(SERVER, path(SERVER).barred());
    let socket = pair.nodes[CLIENT].socket;
    assert_eq!(try_call(&mut pair, socket, 100), Err(CallError::NotExpected));
    assert_eq!(pair.counters(CLIENT).packets_sent, 0);
}

//= docs/protocol.md#seal-17
#[test]
fn a_barred_native_path_is_answered_by_nothing() {
    let mut pair = Pair::unacquainted();
    pair.move_node(SERVER, path(SERVER).native());
    pair.move_node(CLIENT, path(CLIENT).native().barred());
    let barred = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, barred).is_some());
    assert!(matches!(pair.failure(barred), CallFailed::PeerTimeout { .. }));
    assert_eq!((pair.nodes[SERVER].executed.len(), pair.counters(SERVER).packets_sent), (0, 0));
    assert!(pair.counters(SERVER).dropped_plain > 1);
}

#[test]
fn requests_that_come_unencrypted_are_counted() {
    let plain = Pair::new();
    let sealed = acquainted();
    for (mut pair, expected) in [(plain, 4), (sealed, 0)] {
        give(&mut pair, Rights::ALL);
        for length in [100, 100_000, 100, 5_000] {
            let call = pair.call(length);
            pair.drive();
            pair.response(call);
        }
        let counters = pair.counters(SERVER);
        assert_eq!((counters.requests, counters.requests_plain), (4, expected));
    }
}

//= docs/protocol.md#seal-6
#[test]
fn a_first_contact_without_right_ends_the_call_in_one_round_trip_and_leaves_no_state() {
    let kinds = [
        (PathKind::Sealed, CallFailed::NotAllowed, UnknownReason::ContactNotAllowed),
        (PathKind::Plain, CallFailed::SealedOnly, UnknownReason::ContactSealedOnly),
    ];
    for (kind, error, reason) in kinds {
        let mut pair = unacquainted();
        if kind == PathKind::Plain {
            (0..2).for_each(|node| pair.move_node(node, path(node)));
        }
        pair.endpoint(SERVER).set_default_rights(kind, Rights::NONE);
        let calls = [pair.call(100), pair.call(100)];
        pair.drive();
        for call in calls {
            assert_eq!(pair.failure(call), error);
        }
        assert_eq!(pair.ended_at(CLIENT, calls[0]), apus_proto::Time::ZERO + 2 * pair.latency);
        assert_eq!(refusals(&pair), [(reason, RpcUnknown::LEN); 2], "shorter than OPEN");
        assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 0);
        assert_eq!(pair.counters(SERVER).refused_not_allowed, 2);
    }
}

/// The right is taken away between OPEN and CONFIRM: copies of CONFIRM and request may arrive when the right is there again.
//= docs/protocol.md#contact-3
#[test]
fn a_call_whose_confirm_is_not_allowed_may_have_been_executed() {
    for (length, expected) in
        [(100, CallFailed::MayHaveExecuted), (500_000, CallFailed::NotAllowed)]
    {
        let mut pair = unacquainted();
        let call = pair.call(length);
        pair.drive_until(|net| net.counters(CLIENT).peers_met == 1);
        give(&mut pair, Rights::NONE);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        assert_eq!(pair.failure(call), expected);
    }
}

//= docs/protocol.md#contact-3
#[test]
fn a_late_refusal_of_another_open_does_not_end_a_call_that_is_executed() {
    let mut pair = unacquainted();
    pair.hold();
    let call = pair.call(100);
    pair.drive_until(|net| net.counters(SERVER).opens_received == 1);
    let open = pair.sent_by(CLIENT, PacketType::Open)[0].clone();
    give(&mut pair, Rights::NONE);
    pair.inject_raw(sealed_path(CLIENT), SERVER, &open.bytes);
    give(&mut pair, MAY_CALL);
    pair.hook = Some(Box::new(|passing| {
        let refusal = passing.is(PacketType::RpcUnknown, SERVER);
        if refusal { Fate::Late(millis(1)) } else { Fate::Pass }
    }));
    pair.drive_for(millis(2));
    assert_eq!((pair.counters(SERVER).requests, refusals(&pair).len()), (1, 1));
    assert_eq!(pair.outcome(CLIENT, call), None);
    pair.reply_from(SERVER, body(100, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#seal-6
#[test]
fn rights_are_those_of_the_path_or_of_its_kind_and_rules_those_of_the_socket() {
    let mut pair = acquainted();
    let (service, now) = (pair.nodes[SERVER].service, pair.now);
    let may_call = |pair: &mut Pair| {
        let call = pair.call(100);
        pair.drive();
        matches!(pair.outcome(CLIENT, call), Some(Outcome::Response(_)))
    };
    assert!(may_call(&mut pair));
    pair.endpoint(SERVER).set_default_rights(PathKind::Plain, Rights::NONE);
    assert!(may_call(&mut pair));
    pair.endpoint(SERVER).set_default_rights(PathKind::Sealed, Rights::NONE);
    assert!(!may_call(&mut pair));
    give(&mut pair, MAY_CALL);
    assert!(may_call(&mut pair));
    pair.endpoint(SERVER).set_rule(service, 63);
    assert!(!may_call(&mut pair));
    pair.endpoint(SERVER).set_rule(service, RULE);
    pair.endpoint(SERVER).remove_rights(sealed_path(CLIENT));
    assert!(!may_call(&mut pair));
    // Rights outlast the contact.
    give(&mut pair, MAY_CALL);
    pair.drive_for(secs(150));
    assert!(may_call(&mut pair) && pair.now > now);
}

//= docs/protocol.md#seal-6
#[test]
fn requests_in_service_and_arriving_ones_go_on_without_the_right() {
    let mut pair = acquainted();
    pair.hold();
    let calls = [pair.call(100), pair.call(500_000)];
    pair.drive_until(|net| net.counters(SERVER).granted_bytes > 0);
    give(&mut pair, Rights::NONE);
    pair.drive_for(millis(50));
    assert_eq!(pair.nodes[SERVER].requests.len(), 2);
    (0..2).for_each(|_| pair.reply_from(SERVER, body(10, 1)));
    pair.drive();
    calls.iter().for_each(|&call| drop(pair.response(call).clone()));
}

/// Gives the service a rule that does not name the client, and refuses the request that the application has not begun to execute.
fn change_rule(pair: &mut Pair, waiting: RpcKey) {
    let service = pair.nodes[SERVER].service;
    pair.endpoint(SERVER).set_rule(service, RULE + 1);
    assert!(pair.endpoint(SERVER).refuse_if_forbidden(waiting));
    assert!(!pair.endpoint(SERVER).refuse_if_forbidden(waiting), "it is refused already");
    pair.nodes[SERVER].requests.retain(|request| request.rpc != waiting);
}

//= docs/protocol.md#seal-6
//= docs/protocol.md#life-6
#[test]
fn a_new_rule_refuses_requests_that_arrive_or_wait_and_leaves_those_in_service() {
    for loses_reason in [false, true] {
        let mut pair = acquainted();
        give(&mut pair, MAY_CALL);
        pair.hold();
        let [taken, waits, arrives] = [100, 101, 500_000].map(|length| pair.call(length));
        pair.drive_until(|net| net.counters(SERVER).granted_bytes > 0);
        let arrived = pair.nodes[SERVER].requests.iter().map(|request| request.rpc);
        let arrived: Vec<_> = arrived.collect();
        assert_eq!(arrived.len(), 2);
        assert!(!pair.endpoint(SERVER).refuse_if_forbidden(arrived[1]), "the client may call");
        if loses_reason {
            pair.lose_first(|passing| passing.is(PacketType::RpcUnknown, SERVER));
        }
        change_rule(&mut pair, arrived[1]);
        pair.drive_until(|net| net.active(CLIENT) == 1);
        for refused in [waits, arrives] {
            assert_eq!(pair.failure(refused), CallFailed::NotAllowed);
        }
        // Copies are refused even if the client may call again.
        let service = pair.nodes[SERVER].service;
        pair.endpoint(SERVER).set_rule(service, RULE);
        let requests = pair.sent_by(CLIENT, PacketType::Data).into_iter().cloned();
        requests.collect::<Vec<_>>().iter().for_each(|request| pair.repeat(request));
        pair.drive_for(millis(50));
        assert_eq!(pair.nodes[SERVER].executed.len(), 2, "as before");
        pair.reply_from(SERVER, body(10, 1));
        pair.drive();
        pair.response(taken);
        pair.assert_clean();
    }
}

//= docs/protocol.md#seal-6
#[test]
fn a_client_calls_no_known_peer_that_its_rule_does_not_name() {
    let mut pair = acquainted();
    let (socket, now) = (pair.nodes[CLIENT].socket, pair.now);
    let other = pair.endpoint(CLIENT).open(None).expect("a port is free");
    pair.endpoint(CLIENT).set_rule(other, 1);
    pair.endpoint(CLIENT).set_rights(sealed_path(SERVER), Rights { requests: 0, calls: 1 << 1 });
    assert_eq!(try_call(&mut pair, socket, 100), Err(CallError::NotExpected));
    let to = Remote::new(sealed_path(SERVER), PORT);
    let options = CallOptions::default();
    let connect = pair.endpoint(CLIENT).connect(now, socket, to, options.clone());
    assert_eq!(connect, Err(CallError::NotExpected));
    let mut messages = pair.endpoint(CLIENT).short_messages(now, socket, to.path);
    assert_eq!(messages.call(PORT, body(10, 1), options), Err(CallError::NotExpected));
    drop(messages);
    let call = try_call(&mut pair, other, 100).expect("the rule of this socket names the peer");
    pair.drive();
    pair.response(call);
    pair.endpoint(CLIENT).close(other);
    pair.drive();
    pair.assert_clean();
}

//= docs/protocol.md#seal-6
#[test]
fn calls_that_wait_for_contact_end_before_their_first_byte_leaves() {
    let mut pair = unacquainted();
    let other = pair.endpoint(CLIENT).open(None).expect("a port is free");
    pair.endpoint(CLIENT).set_rule(other, 1);
    pair.endpoint(CLIENT).set_default_rights(PathKind::Sealed, Rights::NONE);
    let now = pair.now;
    let mut calls: Vec<_> = (0..1_000).map(|number| pair.call(100 * number + 1)).collect();
    let to = Remote::new(sealed_path(SERVER), PORT);
    let socket = pair.nodes[CLIENT].socket;
    let connect = pair.endpoint(CLIENT).connect(now, socket, to, CallOptions::default());
    calls.push(connect.expect("the identity of the peer is not known yet"));
    let allowed = try_call(&mut pair, other, 2_000).expect("likewise");
    pair.drive_until(|net| !net.sent_by(SERVER, PacketType::Token).is_empty());
    pair.endpoint(CLIENT).set_rights(sealed_path(SERVER), Rights { requests: 0, calls: 1 << 1 });
    pair.drive();
    for call in calls {
        assert_eq!(pair.failure(call), CallFailed::NotExpected);
    }
    pair.response(allowed);
    assert_eq!(pair.data_sent_by(CLIENT), 2_000);
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
}

//= docs/protocol.md#seal-6
#[test]
fn a_path_whose_rights_are_known_needs_no_contact_for_the_error() {
    let mut pair = unacquainted();
    let socket = pair.nodes[CLIENT].socket;
    pair.endpoint(CLIENT).set_rights(sealed_path(SERVER), Rights::NONE);
    assert_eq!(try_call(&mut pair, socket, 100), Err(CallError::NotExpected));
    pair.endpoint(CLIENT).set_default_rights(PathKind::Plain, Rights::NONE);
    pair.move_node(SERVER, path(SERVER));
    assert_eq!(try_call(&mut pair, socket, 100), Err(CallError::NotExpected));
    assert_eq!(pair.nodes[CLIENT].endpoint.known_peers(), 0);
    pair.drive();
    assert!(pair.sent.is_empty());
}

//= docs/protocol.md#seal-6
//= docs/protocol.md#contact-7
#[test]
fn a_peer_that_moves_keeps_its_rights() {
    let mut pair = acquainted();
    pair.endpoint(SERVER).set_default_rights(PathKind::Sealed, Rights::NONE);
    give(&mut pair, MAY_CALL);
    let first = pair.call(100);
    pair.drive();
    pair.response(first);
    for elsewhere in [9, 10, 9] {
        pair.move_node(CLIENT, sealed_path(elsewhere));
        let later = pair.call(100);
        pair.drive();
        pair.response(later);
    }
    assert_eq!(pair.counters(SERVER).peers_moved, 3);
    pair.endpoint(SERVER).set_rights(sealed_path(9), Rights::NONE);
    let forbidden = pair.call(100);
    pair.drive();
    assert_eq!(pair.failure(forbidden), CallFailed::NotAllowed);
}

/// Tokens are in the clear in a handshake, so another node may know those of a sealed path.
//= docs/protocol.md#seal-5
#[test]
fn a_sealed_peer_does_not_move_to_a_plain_path_or_to_one_of_another_identity() {
    let other = PathId::new(9, 77 << 32 | path(9).name()).sealed();
    assert_ne!(other.identity(), sealed_path(CLIENT).identity());
    [path(9), other].into_iter().for_each(does_not_move_to);
}

fn does_not_move_to(elsewhere: PathId) {
    let mut pair = acquainted();
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
    let (ours, theirs) =
        (token(path(SERVER), sealed_path(CLIENT)), token(path(CLIENT), sealed_path(SERVER)));
    let data = pair.sent_by(CLIENT, PacketType::Data)[0].clone();
    pair.sent.clear();
    (0..10).for_each(|_| pair.inject_raw(elsewhere, SERVER, &data.bytes));
    let header = *data.packet().header();
    let stamped = |token: Token, mut packet: Vec<u8>| {
        Stamp::new(token).write(&mut packet);
        packet
    };
    let mut buffer = [0; 64];
    let length = Open { known: ours }.emit(&header, &mut buffer);
    let open = stamped(theirs, buffer[..length].to_vec());
    pair.inject_raw(elsewhere, SERVER, &open);
    pair.drive();
    let offers: Vec<_> = pair.sent_by(SERVER, PacketType::Token).into_iter().cloned().collect();
    assert!(!offers.is_empty());
    for offer in offers {
        let Packet::Token { credentials, .. } = offer.packet() else { continue };
        assert_ne!(credentials.token, ours);
        let confirm = Credentials { token: theirs, ..credentials };
        let length = confirm.emit_confirm(&header, &mut buffer);
        let confirm = stamped(ours, buffer[..length].to_vec());
        pair.inject_raw(elsewhere, SERVER, &confirm);
    }
    pair.drive();
    assert_eq!(pair.counters(SERVER).peers_moved, 0);
    assert!(
        pair.sent
            .iter()
            .filter(|sent| sent.from == SERVER)
            .all(|sent| { !matches!(sent.packet(), Packet::Data { .. } | Packet::Resend { .. }) })
    );
}

/// Whatever is lost, repeated or late, and whenever rights change: a request whose call was refused is not executed.
//= docs/protocol.md#seal-6
#[test]
fn no_refused_request_is_executed_whenever_rights_change() {
    let (mut refused, mut answered) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut pair = if seed % 2 == 0 { acquainted() } else { unacquainted() };
        let random_faults = Random::new(seed + 1_000);
        pair.faults = Some(Faults {
            loss: 30,
            duplicate: 60,
            late: 100,
            lateness: millis(3),
            random: random_faults,
        });
        let mut calls = Vec::new();
        for number in 0..60 {
            let rights = if random.chance(400) { Rights::NONE } else { MAY_CALL };
            give(&mut pair, rights);
            let socket = pair.nodes[CLIENT].socket;
            let request = body(1 + random.below(4_000) as usize, 1_000 * seed + number);
            let to = Remote::new(sealed_path(SERVER), PORT);
            let now = pair.now;
            let options = CallOptions::default();
            let call = pair.endpoint(CLIENT).call(now, socket, to, request.clone(), options);
            calls.push((call.expect("there is room"), request));
            pair.drive_for(micros(random.below(2_000)));
        }
        give(&mut pair, MAY_CALL);
        pair.drive_for(secs(20));
        for (call, request) in calls {
            let times = pair.nodes[SERVER].executed.iter().filter(|it| **it == request).count();
            match pair.outcome(CLIENT, call) {
                Some(Outcome::Failed(CallFailed::NotAllowed)) => {
                    refused += 1;
                    assert_eq!(times, 0, "seed {seed}");
                }
                Some(Outcome::Response(_)) => {
                    answered += 1;
                    assert_eq!(times, 1, "seed {seed}");
                }
                other => assert!(times <= 1, "seed {seed}: {other:?}"),
            }
        }
    }
    assert!(refused > 500 && answered > 500, "{refused} refused, {answered} answered");
}
