//! Ends of sealed paths: a handshake that fails, and a path that is over.

use crate::pair::*;
use apus_proto::{CallFailed, CallOptions, Greeting, PathKind, Remote, Rights};
use apus_wire::{PacketType, Token};

/// Nodes at sealed paths that have not met.
fn unacquainted() -> Pair {
    let mut pair = Pair::unacquainted_sealed();
    pair.drop_contacts();
    pair
}

/// Completes a handshake, which the client has begun.
fn handshake(pair: &mut Pair) {
    let (now, to, from) = (pair.now, sealed_path(SERVER), sealed_path(CLIENT));
    let greeting = pair.endpoint(CLIENT).greeting(now, to, false);
    let answer = pair.endpoint(SERVER).answer_greeting(now, from, greeting);
    let Greeting { token, .. } = greeting;
    assert!(pair.endpoint(SERVER).introduced(now, from, answer, token));
    assert!(pair.endpoint(CLIENT).answered(now, to, greeting, answer));
}

fn acquainted() -> Pair {
    let mut pair = unacquainted();
    handshake(&mut pair);
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
    pair
}

fn contact_failed(pair: &mut Pair) {
    let now = pair.now;
    pair.endpoint(CLIENT).contact_failed(now, sealed_path(SERVER));
}

//= docs/protocol.md#life-4
#[test]
fn a_call_waits_for_a_handshake_while_there_are_signs_of_the_peer() {
    let mut pair = unacquainted();
    let waiting = pair.call(100);
    for _ in 0..10 {
        pair.drive_for(millis(500));
        let now = pair.now;
        pair.endpoint(CLIENT).note_sign(now, sealed_path(SERVER));
    }
    assert_eq!(pair.outcome(CLIENT, waiting), None);
    pair.drive_for(secs(2));
    assert!(matches!(pair.failure(waiting), CallFailed::PeerTimeout { .. }));
}

//= docs/protocol.md#seal-1
#[test]
fn a_failed_handshake_ends_all_calls_that_wait_for_it() {
    let mut pair = unacquainted();
    contact_failed(&mut pair);
    let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
    let to = Remote::new(sealed_path(SERVER), PORT);
    let connect = pair.endpoint(CLIENT).connect(now, socket, to, CallOptions::default());
    let mut calls = vec![connect.expect("there is room")];
    calls.extend((0..1_000).map(|number| pair.call(1 + 50 * number)));
    pair.drive_for(millis(3));
    contact_failed(&mut pair);
    let next = pair.call(100);
    pair.drive_for(millis(3));
    for call in calls {
        assert_eq!(pair.failure(call), CallFailed::HandshakeFailed);
    }
    assert_eq!(pair.data_sent_by(CLIENT), 0);
    // The next call asks anew, and goes with the next handshake.
    assert_eq!(pair.outcome(CLIENT, next), None);
    assert!(pair.sent_by(CLIENT, PacketType::Open).len() >= 2);
    handshake(&mut pair);
    pair.drive();
    pair.response(next);
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    pair.assert_clean();
}

//= docs/protocol.md#seal-1
#[test]
fn a_failed_handshake_without_calls_leaves_no_peer() {
    let mut pair = unacquainted();
    let (now, waits) = (pair.now, pair.call(100));
    pair.drive_for(millis(1));
    assert!(pair.endpoint(CLIENT).abort(waits));
    contact_failed(&mut pair);
    assert_eq!(pair.nodes[CLIENT].endpoint.known_peers(), 0);
    assert!(pair.now > now);
    pair.drive();
}

/// A request in service for very long; its client has been silent, so that calls to it wait for an answer.
//= docs/protocol.md#seal-1
#[test]
fn a_failed_handshake_for_a_silent_peer_ends_the_calls_that_wait_and_no_others() {
    let mut pair = acquainted();
    // The server calls the client, and the client answers late.
    pair.nodes[CLIENT].app = App::Hold;
    let (now, service) = (pair.now, pair.nodes[SERVER].socket);
    let to = Remote::new(sealed_path(CLIENT), PORT);
    let long = pair.endpoint(SERVER).call(now, service, to, body(50, 2), CallOptions::default());
    long.expect("there is room");
    pair.drive_for(millis(1));
    pair.hook = Some(Box::new(|_| Fate::Drop));
    pair.drive_for(secs(1));
    // Nothing has come from the server since.
    assert_eq!(pair.nodes[CLIENT].requests.len(), 1);
    pair.now = pair.now + secs(61);
    let calls: Vec<_> = (0..300).map(|number| pair.call(100 * number + 1)).collect();
    let now = pair.now;
    let greeting = pair.endpoint(CLIENT).greeting(now, sealed_path(SERVER), true);
    assert_ne!(greeting.doubted, Token::NONE);
    contact_failed(&mut pair);
    pair.drive_for(millis(1));
    for call in calls {
        assert_eq!(pair.failure(call), CallFailed::HandshakeFailed);
    }
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    // The next doubt asks anew, and the peer is still known.
    let again = pair.endpoint(CLIENT).greeting(now, sealed_path(SERVER), true);
    assert_ne!(again.token, greeting.token);
    assert_eq!(again.doubted, greeting.doubted);
    assert_eq!(pair.counters(CLIENT).peers_over, 0);
}

//= docs/protocol.md#seal-1
#[test]
fn a_failed_handshake_ends_the_doubt_about_an_earlier_run_of_the_peer() {
    let mut pair = acquainted();
    // A request of the server keeps its run known to the client.
    pair.nodes[CLIENT].app = App::Hold;
    let (now, service) = (pair.now, pair.nodes[SERVER].socket);
    let to = Remote::new(sealed_path(CLIENT), PORT);
    let long = pair.endpoint(SERVER).call(now, service, to, body(50, 2), CallOptions::default());
    long.expect("there is room");
    pair.drive_for(millis(1));
    pair.hook = Some(Box::new(|_| Fate::Drop));
    pair.now = pair.now + secs(61);
    let waiting = pair.call(100);
    let now = pair.now;
    pair.endpoint(CLIENT).greeting(now, sealed_path(SERVER), true);
    // Another run of the server begins a handshake, and calls by the path go to it. The client's own handshake fails.
    pair.restart(SERVER);
    let greeting = pair.endpoint(SERVER).greeting(now, sealed_path(CLIENT), false);
    let answer = pair.endpoint(CLIENT).answer_greeting(now, sealed_path(SERVER), greeting);
    assert!(pair.endpoint(CLIENT).introduced(now, sealed_path(SERVER), answer, greeting.token));
    contact_failed(&mut pair);
    pair.drive_for(millis(1));
    assert_eq!(pair.failure(waiting), CallFailed::HandshakeFailed);
}

//= docs/protocol.md#seal-1
#[test]
fn a_failed_handshake_for_a_peer_that_answers_ends_nothing() {
    let mut pair = acquainted();
    pair.hold();
    let held = pair.call(100);
    pair.drive_for(millis(1));
    let now = pair.now;
    pair.endpoint(CLIENT).greeting(now, sealed_path(SERVER), true);
    let later = pair.call(100);
    contact_failed(&mut pair);
    pair.drive_for(millis(1));
    (0..2).for_each(|_| pair.reply_from(SERVER, body(10, 1)));
    pair.drive();
    pair.response(held);
    pair.response(later);
}

//= docs/protocol.md#seal-11
//= docs/protocol.md#contact-6
#[test]
fn calls_by_a_path_that_is_over_end_and_say_whether_they_may_have_been_executed() {
    let mut pair = acquainted();
    pair.hold();
    let sent = pair.call(100);
    let part = pair.call(500_000);
    pair.drive_until(|net| net.counters(SERVER).granted_bytes > 0);
    let unsent = pair.call(200);
    pair.endpoint(CLIENT).path_over(sealed_path(SERVER));
    let before = pair.sent_by(CLIENT, PacketType::Data).len();
    pair.drive_for(millis(5));
    assert_eq!(pair.failure(sent), CallFailed::MayHaveExecuted);
    assert_eq!(pair.failure(part), CallFailed::NotSent);
    assert_eq!(pair.failure(unsent), CallFailed::NotSent);
    assert_eq!(pair.sent_by(CLIENT, PacketType::Data).len(), before, "nothing more is sent");
    assert_eq!(pair.active(CLIENT), 0);
}

//= docs/protocol.md#seal-5
//= docs/protocol.md#contact-6
#[test]
fn a_later_peer_at_the_path_gets_nothing_of_the_earlier_one() {
    let mut pair = acquainted();
    pair.hold();
    let old = pair.call(100);
    pair.drive_for(millis(1));
    let rpc = pair.nodes[SERVER].requests.remove(0).rpc;
    pair.endpoint(SERVER).path_over(sealed_path(CLIENT));
    pair.drive_for(millis(1));
    assert!(!pair.nodes[SERVER].endpoint.is_active(rpc));
    let now = pair.now;
    assert!(pair.endpoint(SERVER).reply(now, rpc, body(10, 1)).is_err());
    // Packets with the old tokens are refused.
    let packets: Vec<_> = pair.sent_by(CLIENT, PacketType::Data).into_iter().cloned().collect();
    let dropped = pair.counters(SERVER).dropped_token;
    packets.iter().for_each(|packet| pair.repeat(packet));
    pair.drive_for(millis(1));
    assert!(pair.counters(SERVER).dropped_token >= dropped + packets.len() as u64);
    assert_eq!(pair.nodes[SERVER].executed.len(), 2);
    // A new handshake by the same path makes a new peer.
    pair.endpoint(CLIENT).path_over(sealed_path(SERVER));
    handshake(&mut pair);
    pair.nodes[SERVER].app = App::Echo;
    let new = pair.call(100);
    pair.drive();
    pair.response(new);
    assert_eq!(pair.failure(old), CallFailed::MayHaveExecuted);
    assert_eq!(pair.nodes[SERVER].executed.len(), 3);
}

//= docs/protocol.md#seal-11
#[test]
fn the_path_of_a_peer_in_doubt_or_unknown_ends_too() {
    let mut pair = acquainted();
    let now = pair.now;
    let doubt = pair.endpoint(CLIENT).greeting(now, sealed_path(SERVER), true);
    pair.endpoint(CLIENT).path_over(sealed_path(SERVER));
    let late = pair.endpoint(SERVER).answer_greeting(now, sealed_path(CLIENT), doubt);
    assert!(!pair.endpoint(CLIENT).answered(now, sealed_path(SERVER), doubt, late));
    let waits = pair.call(100);
    pair.drive_for(millis(1));
    pair.endpoint(CLIENT).path_over(sealed_path(SERVER));
    pair.drive_for(millis(1));
    assert_eq!(pair.failure(waits), CallFailed::NotSent);
    pair.endpoint(CLIENT).path_over(sealed_path(7));
    pair.endpoint(CLIENT).path_over(path(SERVER));
    assert_eq!(pair.active(CLIENT), 0);
}

/// The certificate of the peer was revoked while it sends.
//= docs/protocol.md#seal-11
#[test]
fn a_path_that_is_over_keeps_the_rights_that_the_driver_gives_it() {
    let mut pair = acquainted();
    pair.endpoint(SERVER).set_default_rights(PathKind::Sealed, Rights::ALL);
    pair.endpoint(SERVER).path_over(sealed_path(CLIENT));
    pair.endpoint(SERVER).set_rights(sealed_path(CLIENT), Rights::NONE);
    pair.endpoint(CLIENT).path_over(sealed_path(SERVER));
    handshake(&mut pair);
    let forbidden = pair.call(100);
    pair.drive();
    assert_eq!(pair.failure(forbidden), CallFailed::NotAllowed);
}
