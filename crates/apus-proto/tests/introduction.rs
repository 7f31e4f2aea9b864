//! First contact by a handshake, on sealed paths. The link drops OPEN, TOKEN and CONFIRM, as one without keys does.

use crate::pair::*;
use apus_proto::{CallFailed, Greeting};
use apus_wire::{
    Busy, Header, MAX_HEADER, PacketType, PathError, PathId, RpcId, RpcUnknown, Stamp, Token,
    UnknownReason,
};

/// A client and a server that meet by handshakes only.
fn sealed() -> Pair {
    let mut pair = Pair::unacquainted();
    pair.drop_contacts();
    pair
}

/// A handshake under way: the tokens of HELLO and REPLY.
#[derive(Clone, Copy)]
struct Handshake {
    greeting: Greeting,
    answer: Token,
}

impl Handshake {
    fn begin(net: &mut Net, doubts: bool) -> Self {
        let now = net.now;
        let greeting = net.endpoint(CLIENT).greeting(now, path(SERVER), doubts);
        let answer = net.endpoint(SERVER).answer_greeting(now, path(CLIENT), greeting);
        Self { greeting, answer }
    }

    fn is_answered(self, net: &mut Net) -> bool {
        let now = net.now;
        net.endpoint(CLIENT).answered(now, path(SERVER), self.greeting, self.answer)
    }

    fn end_at_client(self, net: &mut Net) -> bool {
        let now = net.now;
        self.is_answered(net)
            && net.endpoint(CLIENT).confirmed(now, path(SERVER), self.greeting, self.answer)
    }

    fn end_at_server(self, net: &mut Net, from: PathId) -> bool {
        let (now, theirs) = (net.now, self.greeting.token);
        net.endpoint(SERVER).introduced(now, from, self.answer, theirs)
    }

    fn complete(self, net: &mut Net) {
        assert!(self.end_at_server(net, path(CLIENT)));
        assert!(self.end_at_client(net));
    }
}

fn handshake(net: &mut Net, doubts: bool) {
    Handshake::begin(net, doubts).complete(net);
}

//= docs/protocol.md#seal-1
#[test]
fn a_call_waits_for_the_handshake_and_goes_when_it_is_complete() {
    let mut pair = sealed();
    let call = pair.call(100);
    pair.drive_for(millis(5));
    assert_eq!(pair.outcome(CLIENT, call), None);
    handshake(&mut pair, false);
    pair.drive();
    pair.response(call);
    assert_eq!(pair.sent_by(CLIENT, PacketType::Confirm).len(), 0);
    assert_eq!((pair.counters(CLIENT).peers_met, pair.counters(SERVER).peers_met), (1, 1));
}

#[test]
fn a_handshake_before_the_first_call_is_used_by_it() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#contact-5
#[test]
fn a_doubted_peer_that_still_knows_its_token_keeps_its_history() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    let first = pair.call(100);
    pair.drive();
    pair.response(first);
    let doubt = Handshake::begin(&mut pair, true);
    assert_eq!(doubt.answer, doubt.greeting.doubted);
    doubt.complete(&mut pair);
    let second = pair.call(100);
    pair.drive();
    pair.response(second);
    assert_eq!((pair.counters(CLIENT).peers_over, pair.counters(SERVER).peers_met), (0, 1));
}

//= docs/protocol.md#contact-5
#[test]
fn a_doubted_peer_with_calls_under_way_keeps_its_history() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let doubt = Handshake::begin(&mut pair, true);
    assert_eq!(doubt.answer, doubt.greeting.doubted);
    doubt.complete(&mut pair);
    pair.reply_from(SERVER, body(50, 1));
    pair.drive();
    pair.response(call);
    assert_eq!((pair.counters(CLIENT).peers_over, pair.counters(SERVER).peers_met), (0, 1));
}

//= docs/protocol.md#contact-7
#[test]
fn a_handshake_from_another_address_keeps_the_history_and_moves_the_peer() {
    let mut pair = Pair::unacquainted_sealed();
    let (server, elsewhere) = (sealed_path(SERVER), sealed_path(7));
    // A handshake of the client from an address. Returns whether the server has answered with the token in doubt.
    let handshake = |pair: &mut Pair, from: PathId, doubts: bool| {
        let now = pair.now;
        let greeting = pair.endpoint(CLIENT).greeting(now, server, doubts);
        let answer = pair.endpoint(SERVER).answer_greeting(now, from, greeting);
        assert!(pair.endpoint(SERVER).introduced(now, from, answer, greeting.token));
        assert!(pair.endpoint(CLIENT).answered(now, server, greeting, answer));
        assert!(pair.endpoint(CLIENT).confirmed(now, server, greeting, answer));
        answer == greeting.doubted
    };
    handshake(&mut pair, sealed_path(CLIENT), false);
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    pair.drop_contacts();
    pair.move_node(CLIENT, elsewhere);
    assert!(handshake(&mut pair, elsewhere, true));
    assert_eq!(pair.counters(SERVER).peers_moved, 1);
    pair.reply_from(SERVER, body(50, 1));
    pair.drive();
    pair.response(call);
    assert_eq!((pair.counters(CLIENT).peers_over, pair.counters(SERVER).peers_met), (0, 1));
}

//= docs/protocol.md#contact-5
#[test]
fn a_refusal_of_a_port_that_no_call_wants_ends_no_doubt() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let doubt = Handshake::begin(&mut pair, true);
    let header = Header { source_port: 1, dest_port: 1, sender_id: RpcId(1) };
    let mut refusal = [0; MAX_HEADER];
    let length = RpcUnknown { reason: UnknownReason::NoContact }.emit(&header, &mut refusal);
    Stamp::new(doubt.greeting.token).write(&mut refusal);
    pair.inject_raw(path(SERVER), CLIENT, &refusal[..length]);
    pair.drive_for(millis(1));
    doubt.complete(&mut pair);
    pair.reply_from(SERVER, body(50, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#contact-5
#[test]
fn a_doubt_without_a_call_asks_for_the_call_whose_packet_is_refused() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    let call = pair.call(500_000);
    pair.drive_until(|net| net.counters(SERVER).granted_bytes > 0);
    pair.restart(SERVER);
    // A handshake has begun a doubt, whose OPEN names no call, and goes no further.
    Handshake::begin(&mut pair, true);
    pair.hook = None;
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#contact-5
#[test]
fn a_doubt_that_ends_before_its_handshake_keeps_the_peer() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let doubt = Handshake::begin(&mut pair, true);
    // The path has its keys still, so OPEN and TOKEN end the doubt.
    pair.hook = None;
    pair.drive_for(millis(1));
    doubt.complete(&mut pair);
    let next = pair.call(100);
    pair.drive_for(millis(1));
    pair.reply_from(SERVER, body(50, 1));
    pair.reply_from(SERVER, body(50, 2));
    pair.drive();
    assert_eq!(
        (&pair.response(call)[..], &pair.response(next)[..]),
        (&body(50, 1)[..], &body(50, 2)[..])
    );
    assert_eq!((pair.counters(CLIENT).peers_met, pair.counters(SERVER).peers_met), (1, 1));
}

//= docs/protocol.md#seal-3
#[test]
fn crossing_handshakes_keep_the_calls_of_both_nodes() {
    let mut pair = sealed();
    let one = pair.call(100);
    let other = pair.call_from(SERVER, CLIENT, body(100, 1));
    let now = pair.now;
    let ours = pair.endpoint(CLIENT).greeting(now, path(SERVER), false);
    let theirs = pair.endpoint(SERVER).greeting(now, path(CLIENT), false);
    let to_ours = pair.endpoint(SERVER).answer_greeting(now, path(CLIENT), ours);
    let to_theirs = pair.endpoint(CLIENT).answer_greeting(now, path(SERVER), theirs);
    // Each node ends its own handshake first, and has not sent a packet when the other one ends.
    assert!(pair.endpoint(CLIENT).answered(now, path(SERVER), ours, to_ours));
    assert!(pair.endpoint(SERVER).answered(now, path(CLIENT), theirs, to_theirs));
    assert!(pair.endpoint(CLIENT).introduced(now, path(SERVER), to_theirs, theirs.token));
    pair.hook = None;
    pair.drive_for(millis(1));
    let now = pair.now;
    assert!(pair.endpoint(SERVER).introduced(now, path(CLIENT), to_ours, ours.token));
    pair.drive();
    pair.response(one);
    assert!(matches!(pair.outcome(SERVER, other), Some(Outcome::Response(_))));
}

//= docs/protocol.md#life-5
#[test]
fn a_packet_with_either_token_of_crossing_handshakes_refutes_a_report() {
    for (is_heard, ends) in [(true, false), (false, true)] {
        let mut pair = sealed();
        pair.hold();
        let now = pair.now;
        let theirs = pair.endpoint(SERVER).greeting(now, path(CLIENT), false);
        let to_theirs = pair.endpoint(CLIENT).answer_greeting(now, path(SERVER), theirs);
        let ours = Handshake::begin(&mut pair, false);
        ours.complete(&mut pair);
        assert!(pair.endpoint(SERVER).answered(now, path(CLIENT), theirs, to_theirs));
        assert!(pair.endpoint(CLIENT).introduced(now, path(SERVER), to_theirs, theirs.token));
        // The call goes by the tokens of the last handshake.
        let call = pair.call(100);
        pair.drive_for(millis(1));
        assert_eq!(pair.active(SERVER), 1);
        // The server's answers to probes are late; what it sent before by the tokens of the other one arrives.
        pair.hook = Some(Box::new(|p| if p.from == SERVER { Fate::Drop } else { Fate::Pass }));
        for _ in 0..20 {
            let now = pair.now;
            let error = PathError::PortUnreachable;
            pair.endpoint(CLIENT).handle_path_error(now, path(SERVER), error);
            if is_heard {
                let header = Header { source_port: 7, dest_port: 7, sender_id: RpcId(9) };
                let mut stray = [0; MAX_HEADER];
                let length = Busy.emit(&header, &mut stray);
                Stamp::new(ours.greeting.token).write(&mut stray);
                pair.inject_raw(path(SERVER), CLIENT, &stray[..length]);
            }
            pair.drive_for(millis(1));
        }
        assert_eq!(pair.outcome(CLIENT, call).is_some(), ends);
    }
}

//= docs/protocol.md#contact-6
#[test]
fn calls_to_a_run_that_is_over_end_or_begin_anew() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    pair.hold();
    let sent = pair.call(100);
    pair.drive_for(millis(1));
    pair.restart(SERVER);
    let doubt = Handshake::begin(&mut pair, true);
    assert_ne!(doubt.answer, doubt.greeting.doubted);
    let waiting = pair.call(100);
    doubt.complete(&mut pair);
    pair.drive();
    assert_eq!(pair.failure(sent), CallFailed::MayHaveExecuted);
    assert!(pair.outcome(CLIENT, waiting).is_some());
    assert_eq!(pair.counters(CLIENT).peers_over, 1);
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#seal-1
#[test]
fn a_token_that_the_server_has_not_confirmed_ends_no_call() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    // The token of a clear REPLY is changed on the way, and then the handshake fails.
    let doubt = Handshake { answer: Token(9), ..Handshake::begin(&mut pair, true) };
    assert!(doubt.is_answered(&mut pair));
    assert_eq!(pair.outcome(CLIENT, call), None);
    // The next one is complete.
    handshake(&mut pair, true);
    pair.reply_from(SERVER, body(50, 1));
    pair.drive();
    pair.response(call);
    assert_eq!(pair.counters(CLIENT).peers_over, 0);
}

//= docs/protocol.md#contact-6
#[test]
fn a_run_that_is_over_is_noticed_without_a_call() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    let first = pair.call(100);
    pair.drive();
    pair.response(first);
    pair.restart(SERVER);
    // A hint puts the path in doubt while no call is under way.
    let doubt = Handshake::begin(&mut pair, true);
    assert_ne!(doubt.answer, doubt.greeting.doubted);
    doubt.complete(&mut pair);
    assert_eq!((pair.counters(CLIENT).peers_over, pair.counters(CLIENT).peers_met), (1, 2));
    let second = pair.call(100);
    pair.drive();
    pair.response(second);
}

//= docs/protocol.md#seal-1
#[test]
fn a_call_that_waits_for_a_doubt_goes_on_if_the_handshake_fails_after_a_sign_of_the_peer() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    let first = pair.call(100);
    pair.drive();
    pair.response(first);
    pair.drive_for(secs(70));
    let call = pair.call(100);
    pair.drive_for(millis(1));
    assert_eq!(pair.outcome(CLIENT, call), None);
    let doubt = Handshake::begin(&mut pair, true);
    assert!(doubt.is_answered(&mut pair));
    // The path has its keys still.
    pair.hook = None;
    let now = pair.now;
    pair.endpoint(CLIENT).contact_failed(now, path(SERVER));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#contact-4
#[test]
fn a_client_that_has_restarted_is_met_anew() {
    let mut pair = sealed();
    let old = Handshake::begin(&mut pair, false);
    old.complete(&mut pair);
    pair.drive_for(secs(2));
    pair.restart(CLIENT);
    // Within the keys of the new handshake, the nodes find out by OPEN and TOKEN that the old run is over.
    pair.hook = None;
    let new = Handshake::begin(&mut pair, false);
    assert_ne!(new.answer, old.answer);
    new.complete(&mut pair);
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
    assert_eq!(pair.counters(SERVER).peers_met, 2);
    let nobody = Greeting { token: Token::NONE, doubted: Token::NONE };
    let nobody = Handshake { greeting: nobody, answer: Token(9) };
    assert!(!nobody.end_at_server(&mut pair, path(CLIENT)));
}

#[test]
fn tokens_of_another_path_are_not_taken() {
    let mut pair = sealed();
    let known = Handshake::begin(&mut pair, false);
    known.complete(&mut pair);
    // Another authenticated peer names the token that it has seen in a clear HELLO.
    let forged = Greeting { token: Token(7), doubted: known.answer };
    let (now, elsewhere) = (pair.now, path(2));
    let answer = pair.endpoint(SERVER).answer_greeting(now, elsewhere, forged);
    assert_ne!(answer, known.answer);
    let forged = Handshake { greeting: forged, answer: known.answer };
    assert!(!forged.end_at_server(&mut pair, elsewhere));
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#contact-6
#[test]
fn a_peer_that_was_forgotten_is_not_met_by_the_doubted_token() {
    let mut pair = sealed();
    handshake(&mut pair, false);
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
    let doubt = Handshake::begin(&mut pair, true);
    assert_eq!(doubt.answer, doubt.greeting.doubted);
    // The client forgets the server before the handshake is complete.
    let restarted = pair.now;
    pair.restart(CLIENT);
    assert!(doubt.end_at_server(&mut pair, path(CLIENT)));
    assert!(!doubt.end_at_client(&mut pair), "ids would begin again at {restarted:?}");
}
