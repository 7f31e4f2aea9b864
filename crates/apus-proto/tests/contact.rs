//! First contacts of two nodes, and their consequences.

use crate::pair::*;
use apus_proto::{Awaited, CallFailed, CallOptions, Remote};
use apus_wire::{Header, MAX_HEADER, Meet, Open, Packet, PacketType, PathId, RpcId, Stamp, Token};

/// Returns the types of the sent packets, in order.
fn types(net: &Net) -> Vec<PacketType> {
    net.sent.iter().map(|sent| sent.packet().packet_type()).collect()
}

//= docs/protocol.md#contact-2
//= docs/protocol.md#contact-3
//= docs/protocol.md#contact-4
#[test]
fn a_first_call_takes_one_round_trip_more() {
    use PacketType::*;
    let mut pair = Pair::unacquainted();
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    pair.response(call);
    assert_eq!(types(&pair)[..4], [Open, Token, Confirm, Data]);
    assert_eq!(pair.ended_at(CLIENT, call), apus_proto::Time::ZERO + 4 * pair.latency);
    pair.drive();
    pair.sent.clear();
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    assert_eq!(types(&pair)[0], Data);
    pair.drive();
}

//= docs/protocol.md#contact-2
#[test]
fn a_peer_can_be_made_known_before_the_first_call() {
    let mut pair = Pair::unacquainted();
    for _ in 0..2 {
        let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
        let to = Remote::new(path(SERVER), PORT);
        let connect =
            pair.endpoint(CLIENT).connect(now, socket, to, CallOptions::default()).expect("room");
        pair.drive();
        assert_eq!(pair.outcome(CLIENT, connect), Some(&Outcome::Connected));
    }
    pair.sent.clear();
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
    assert_eq!(types(&pair)[0], PacketType::Data);
}

//= docs/protocol.md#contact-5
#[test]
fn a_late_answer_to_another_open_does_not_end_what_was_begun_with_the_first() {
    let mut pair = Pair::unacquainted();
    // The second OPEN arrives in the next unit of time, and its answer names another token.
    let began = apus_proto::Time::from_nanos((1 << 30) - 3_000_000);
    pair.now = began;
    pair.hook = Some(Box::new(move |passing| {
        let after = passing.at.saturating_since(began);
        if passing.from == SERVER {
            Fate::Late(millis(9))
        } else if !passing.is(PacketType::Open, CLIENT) && after < millis(40) {
            // Packets sent before this time arrive after all later ones.
            Fate::Late(millis(80))
        } else {
            Fate::Pass
        }
    }));
    let call = pair.call(100);
    pair.drive();
    let answers = pair.sent_by(SERVER, PacketType::Token);
    let tokens: std::collections::BTreeSet<_> = answers.iter().map(|sent| offered(sent)).collect();
    assert!(tokens.len() > 1, "only one token was offered");
    pair.response(call);
}

/// Returns the token that a TOKEN packet offers.
fn offered(sent: &Sent) -> Token {
    let Packet::Token { credentials, .. } = sent.packet() else { panic!("no TOKEN") };
    credentials.token
}

#[test]
fn a_node_that_connects_to_no_peer_learns_so() {
    let mut pair = Pair::unacquainted();
    pair.nodes[SERVER].up = false;
    let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
    let to = Remote::new(path(SERVER), PORT);
    let options = CallOptions::default();
    let connect = pair.endpoint(CLIENT).connect(now, socket, to, options).expect("room");
    let call = pair.call(100_000);
    pair.drive();
    for rpc in [connect, call] {
        let CallFailed::PeerTimeout {
            waited_for: Awaited::Token,
            silent_for,
            probes_unanswered,
            story,
        } = pair.failure(rpc)
        else {
            panic!("{:?}", pair.failure(rpc));
        };
        assert!(silent_for >= secs(1) && silent_for < millis(1_300) && probes_unanswered >= 5);
        assert!(!story.began() && story.peer_silent_for.is_none(), "{story}");
    }
    assert_eq!(pair.data_sent_by(CLIENT), 0);
    assert!(types(&pair).len() < 20, "a first contact is asked for again, more and more rarely");
}

/// Each packet of a first contact and after it is lost, or arrives twice, the second time at once or much later: the request is
/// executed once, and no call waits for long.
//= docs/protocol.md#contact-5
#[test]
fn a_first_contact_survives_any_loss_and_any_duplicate() {
    for length in [100, 5_000] {
        for victim in 0..10 {
            for fate in
                [Fate::Drop, Fate::Twice(micros(1)), Fate::Twice(millis(30)), Fate::Late(millis(1))]
            {
                let mut pair = Pair::unacquainted();
                let mut number = 0;
                pair.hook = Some(Box::new(move |_| {
                    number += 1;
                    if number == victim + 1 { fate } else { Fate::Pass }
                }));
                let call = pair.call(length);
                pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
                pair.response(call);
                assert!(
                    pair.now < apus_proto::Time::ZERO + millis(13),
                    "{victim} {fate:?} {}",
                    pair.now
                );
                pair.drive();
                pair.drive_for(millis(100));
                assert_eq!(pair.nodes[SERVER].executed.len(), 1, "{victim} {fate:?}");
                assert_eq!(pair.counters(CLIENT).peers_over, 0, "{victim} {fate:?}");
            }
        }
    }
}

/// With one packet in ten lost and as many copied or late, each of many first contacts succeeds.
//= docs/protocol.md#contact-5
#[test]
fn many_first_contacts_on_a_bad_network_end_well() {
    for seed in 0..1_000 {
        let mut pair = Pair::unacquainted();
        let (random, lateness) = (Random::new(seed), millis(2));
        pair.faults = Some(Faults { loss: 100, duplicate: 100, late: 200, lateness, random });
        let calls = [pair.call(100), pair.call(4_000), pair.call(200)];
        pair.drive();
        calls.iter().for_each(|&call| drop(pair.response(call).clone()));
        assert_eq!(pair.nodes[SERVER].executed.len(), 3);
    }
}

#[test]
fn two_nodes_may_call_each_other_first_at_the_same_moment() {
    let mut pair = Pair::unacquainted();
    let one = pair.call(100);
    let other = pair.call_from(SERVER, CLIENT, body(3_000, 1));
    pair.drive();
    pair.response(one);
    assert_eq!(pair.outcome(SERVER, other), Some(&Outcome::Response(body(3_000, 1))));
    // One of the two first contacts lasts.
    pair.sent.clear();
    let more = [pair.call(1), pair.call(2)];
    pair.drive();
    more.iter().for_each(|&call| drop(pair.response(call).clone()));
    assert!(!types(&pair).contains(&PacketType::Open));
}

//= docs/protocol.md#contact-6
#[test]
fn a_quick_restart_of_the_server_executes_nothing_twice() {
    for unacquainted in [true, false] {
        for length in [100, 3_000] {
            let mut pair =
                if unacquainted { Pair::unacquainted() } else { Pair::acquainted(|_| {}) };
            pair.hold();
            let (started, call) = (pair.now, pair.call(length));
            pair.drive_for(millis(1));
            assert_eq!(pair.nodes[SERVER].executed.len(), 1);
            pair.restart(SERVER);
            pair.drive();
            assert_eq!(pair.failure(call), CallFailed::MayHaveExecuted);
            assert_eq!(pair.nodes[SERVER].executed.len(), 0, "the new run has executed nothing");
            let took = pair.ended_at(CLIENT, call).saturating_since(started);
            assert!(took < millis(20), "{took:?}");
            let again = pair.call(length);
            pair.drive();
            pair.response(again);
        }
    }
}

//= docs/protocol.md#contact-6
#[test]
fn a_call_that_was_not_sent_whole_begins_anew_with_the_next_run() {
    let mut pair = Pair::acquainted(|_| {});
    pair.answer_with(1);
    let call = pair.call(1_000_000);
    pair.drive_for(micros(100));
    pair.restart(SERVER);
    pair.drive();
    assert_eq!(pair.response(call), &body(1_000_000, 1_000_000));
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert_eq!(pair.counters(CLIENT).calls_begun_anew, 1);
    pair.assert_clean();
}

//= docs/protocol.md#contact-6
#[test]
fn what_the_run_of_a_client_left_at_its_server_ends_with_it() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    pair.call(100);
    pair.call(1_000_000);
    pair.drive_for(micros(100));
    assert_eq!(pair.active(SERVER), 2);
    pair.restart(CLIENT);
    let call = pair.call(10);
    pair.drive_for(millis(1));
    assert_eq!(pair.active(SERVER), 1);
    assert_eq!(pair.counters(SERVER).requests_orphaned, 2);
    let last = pair.nodes[SERVER].requests.pop().expect("the new call");
    pair.nodes[SERVER].requests = vec![last];
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

/// The storm of the campaign: a client restarts, its server calls it, then it calls that server.
#[test]
fn a_restarted_client_that_is_called_first_and_then_calls_makes_no_storm() {
    let mut pair = Pair::acquainted(|_| {});
    pair.latency = millis(2);
    pair.restart(CLIENT);
    let back = pair.call_from(SERVER, CLIENT, body(100, 1));
    pair.drive_for(millis(3));
    let call = pair.call(300_000);
    pair.sent.clear();
    pair.drive();
    pair.response(call);
    assert!(pair.outcome(SERVER, back).is_some());
    assert!(pair.sent.len() < 900, "{} packets", pair.sent.len());
}

/// The peer that asks whether a token is still known loses its place in the table before it is answered: the token is doubted anew.
//= docs/protocol.md#contact-5
//= docs/protocol.md#hostile-4
#[test]
fn a_full_table_does_not_end_a_doubt_for_good() {
    let mut pair = Pair::acquainted_by_node(|node, config| {
        config.peers_max(if node == CLIENT { 2 } else { 10 });
    });
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    pair.restart(SERVER);
    pair.hook = Some(Box::new(|passing| {
        let answers = passing.from == SERVER && passing.packet.packet_type() == PacketType::Token;
        if answers { Fate::Drop } else { Fate::Pass }
    }));
    pair.drive_until(|net| !net.sent_by(CLIENT, PacketType::Open).is_empty());
    // No node is there; its place is that of the peer that asks.
    let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
    let nowhere = Remote::new(path(9), PORT);
    let options = CallOptions::default();
    pair.endpoint(CLIENT).call(now, socket, nowhere, body(1, 1), options).expect("room");
    assert_eq!(pair.counters(CLIENT).peers_evicted, 1);
    pair.hook = None;
    pair.drive();
    assert_eq!(pair.failure(call), CallFailed::MayHaveExecuted);
}

/// A call after a pause longer than a server remembers its clients is refused, with the reason.
//= docs/protocol.md#contact-6
#[test]
fn a_pause_of_the_client_executes_nothing_twice() {
    let mut pair = Pair {
        net: Net::new(2, |node, config| {
            config.peer_timeout(secs(if node == CLIENT { 1_000 } else { 1 }));
        }),
    };
    let call = pair.call(100);
    pair.hook =
        Some(Box::new(|passing| if passing.from == SERVER { Fate::Drop } else { Fate::Pass }));
    pair.drive_for(millis(1));
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    pair.hook = Some(Box::new(|_| Fate::Drop));
    let mut forgotten = false;
    while !forgotten {
        pair.drive_for(secs(10));
        let server = &mut pair.nodes[SERVER].endpoint;
        forgotten = server.known_peers() == 0;
        assert!(pair.now < apus_proto::Time::ZERO + secs(4_000));
    }
    pair.hook = None;
    pair.drive_for(secs(300));
    assert_eq!(pair.failure(call), CallFailed::MayHaveExecuted);
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    // A call begun after a pause is not mistaken for that.
    for pause in [50, 70, 100, 119, 121, 200] {
        pair.drive_for(secs(pause));
        let call = pair.call(100);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        pair.response(call);
        pair.drive();
    }
}

//= docs/protocol.md#contact-7
#[test]
fn a_client_that_moves_goes_on_and_executes_nothing_twice() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let calls = [pair.call(100), pair.call(200_000)];
    pair.drive_for(millis(3));
    assert_eq!(pair.nodes[SERVER].executed.len(), 2);
    pair.move_node(CLIENT, path(9));
    let later = pair.call(50);
    pair.drive_for(millis(20));
    for length in [10, 300_000, 20] {
        pair.reply_from(SERVER, body(length, 7));
    }
    pair.drive();
    calls.iter().for_each(|&call| drop(pair.response(call).clone()));
    pair.response(later);
    assert_eq!(pair.nodes[SERVER].executed.len(), 3);
    assert_eq!(pair.counters(SERVER).peers_moved, 1);
    let last = pair.sent_by(SERVER, PacketType::Data).last().expect("a response").to;
    assert_eq!(last, path(9));
}

/// A host that sees the traffic can repeat a packet from another address. Later packets go to the same address as before.
//= docs/protocol.md#contact-6
//= docs/protocol.md#contact-7
#[test]
fn a_doubt_about_a_peer_that_moves_asks_where_the_peer_is_now() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    pair.call(100);
    pair.drive_for(millis(1));
    // The client has been silent for so long that a call to it waits for the answer to a doubt.
    pair.hook = Some(Box::new(|_| Fate::Drop));
    pair.now = pair.now + secs(61);
    let waiting = pair.call_from(SERVER, CLIENT, body(100, 1));
    pair.drive_for(millis(1));
    pair.move_node(CLIENT, path(9));
    pair.hook = None;
    pair.call(100);
    pair.drive_for(secs(1));
    assert_eq!(pair.counters(SERVER).peers_moved, 1);
    assert!(matches!(pair.outcome(SERVER, waiting), Some(Outcome::Response(_))));
}

//= docs/protocol.md#contact-7
#[test]
fn a_packet_from_elsewhere_moves_nobody_who_does_not_answer_there() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let copy = pair.sent_by(CLIENT, PacketType::Data)[0].bytes.clone();
    for _ in 0..100 {
        pair.inject_raw(path(9), SERVER, &copy);
        pair.drive_for(micros(10));
    }
    pair.reply_from(SERVER, body(100_000, 1));
    pair.drive();
    assert_eq!(pair.response(call).len(), 100_000);
    let stray: Vec<_> = pair.sent.iter().filter(|sent| sent.to == path(9)).collect();
    assert!(stray.len() <= 2 && stray.iter().all(|sent| sent.bytes.len() == 48), "{}", stray.len());
    assert_eq!(pair.counters(SERVER).peers_moved, 0);
}

//= docs/protocol.md#contact-4
#[test]
fn a_confirmation_that_is_late_or_from_elsewhere_makes_nobody_known() {
    let mut pair = Pair::unacquainted();
    pair.call(100);
    pair.drive();
    let confirm = pair.sent_by(CLIENT, PacketType::Confirm)[0].bytes.clone();
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 1);
    pair.inject_raw(path(9), SERVER, &confirm);
    assert_eq!(pair.counters(SERVER).peers_moved, 0);
    // The peer is forgotten, and the packet is too late.
    pair.drive_for(secs(200));
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 0);
    let request = pair.sent_by(CLIENT, PacketType::Data)[0].bytes.clone();
    for packet in [&confirm, &request] {
        pair.inject_raw(path(CLIENT), SERVER, packet);
        pair.drive_for(millis(1));
    }
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 0);
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert_eq!(pair.counters(SERVER).dropped_proof, 2);
}

//= docs/protocol.md#contact-3
#[test]
fn ten_thousand_strangers_leave_nothing_behind_and_get_no_more_than_they_sent() {
    let mut pair = Pair::acquainted(|_| {});
    let request = pair.call(100);
    pair.drive();
    pair.response(request);
    let request = pair.sent_by(CLIENT, PacketType::Data)[0].bytes.clone();
    pair.sent.clear();
    let mut sent = 0;
    for n in 0..10_000u32 {
        let from = PathId::new(100 + n, 100 + u64::from(n));
        let mut open = [0; 48];
        let header = Header { source_port: 40_000, dest_port: PORT, sender_id: RpcId(2) };
        let length = Open { known: Token(u64::from(n)) }.emit(&header, &mut open);
        Stamp::new(Token(u64::from(n + 1))).write(&mut open);
        let mut request = request.clone();
        Stamp::new(Token(u64::from(n) << 40)).write(&mut request);
        sent += length + request.len();
        pair.inject_raw(from, SERVER, &open[..length]);
        pair.inject_raw(from, SERVER, &request);
        if n % 100 == 0 {
            pair.drive_for(micros(10));
        }
    }
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 1);
    assert!(pair.sent.iter().map(|sent| sent.bytes.len()).sum::<usize>() <= sent);
    let (call, own) = (pair.call(100), pair.call_from(SERVER, CLIENT, body(1, 1)));
    pair.drive_until(|net| {
        net.outcome(CLIENT, call).is_some() && net.outcome(SERVER, own).is_some()
    });
    pair.response(call);
}

//= docs/protocol.md#contact-8
#[test]
fn a_peer_of_another_version_is_refused_with_both_versions() {
    let mut pair = Pair::unacquainted();
    // All packets to and from the server have version 7.
    let call = pair.call(100);
    pair.drive_for(micros(1));
    let mut open = pair.sent_by(CLIENT, PacketType::Open)[0].bytes.clone();
    open[8] = 7;
    pair.inject_raw(path(CLIENT), SERVER, &open);
    pair.hook = Some(Box::new(|_| Fate::Drop));
    pair.drive_for(micros(20));
    let refusal = pair.sent_by(SERVER, PacketType::RpcUnknown);
    let mut refusal = refusal.last().expect("refused").bytes.clone();
    assert_eq!((refusal[8], pair.counters(SERVER).dropped_version), (1, 1));
    refusal[8] = 7;
    // A refusal with another token does not count.
    for token in [0, 1, u64::MAX] {
        let mut forged = refusal.clone();
        Stamp { version: 7, token: Token(token) }.write(&mut forged);
        pair.inject_raw(path(SERVER), CLIENT, &forged);
    }
    pair.drive_for(micros(1));
    assert_eq!(pair.outcome(CLIENT, call), None);
    pair.inject_raw(path(SERVER), CLIENT, &refusal);
    pair.drive_for(micros(1));
    let error = pair.failure(call);
    assert_eq!(error, CallFailed::OtherVersion { ours: 1, theirs: 7 });
    assert_eq!(
        error.to_string(),
        "the peer uses version 7 of the wire format, this node version 1"
    );
}

/// A node that has called itself has a token of its own as its peer's, and a refusal carries that token.
//= docs/protocol.md#contact-5
#[test]
fn a_call_to_itself_begins_anew_with_the_node_that_has_its_address_now() {
    let mut net = Net::unacquainted(2, |_, config| {
        config.unscheduled(2_000);
    });
    net.call_from(0, 0, body(10, 1));
    net.drive();
    let call = net.call_from(0, 0, body(300_000, 1));
    net.drive_until(|net| net.counters(0).granted_bytes > 0);
    net.move_node(0, path(9));
    net.move_node(1, path(0));
    net.drive();
    assert_eq!(net.outcome(0, call), Some(&Outcome::Response(body(300_000, 1))));
    assert_eq!(net.nodes[1].executed.len(), 1);
}

/// Returns a MEET, different for each number.
fn meet(number: u64) -> Meet {
    Meet { nonce: [number, !number], place: number << 32 }
}

fn send_meet(net: &mut Net, from: usize, to: usize, number: u64) -> bool {
    net.endpoint(from).send_meet(path(to), meet(number))
}

/// Returns the queued MEETs of a node, with their paths.
fn meets(net: &mut Net, node: usize) -> Vec<(PathId, Meet)> {
    std::iter::from_fn(|| net.endpoint(node).poll_meet()).collect()
}

//= docs/protocol.md#local-7
//= docs/wire.md#W42
#[test]
fn each_of_two_nodes_that_have_met_can_send_meet_to_the_other() {
    let mut pair = Pair::unacquainted();
    pair.call(100);
    pair.drive();
    pair.sent.clear();
    // One of them has called, the other was called.
    for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
        assert!(send_meet(&mut pair, from, to, 1) && send_meet(&mut pair, from, to, 2));
        assert_eq!(pair.endpoint(from).poll_ready(), Some(apus_proto::Time::ZERO));
        assert!(!pair.is_idle(), "it waits to be sent");
        pair.drive();
        assert_eq!(meets(&mut pair, to), [(path(from), meet(1)), (path(from), meet(2))]);
        assert_eq!(meets(&mut pair, from), []);
        assert_eq!((pair.counters(from).meets_sent, pair.counters(to).meets_received), (2, 2));
    }
    assert_eq!(types(&pair), [PacketType::Meet; 4], "nothing else is sent");
    for sent in &pair.sent {
        let Packet::Meet { header, .. } = sent.packet() else { panic!("no MEET") };
        let expected = Header { source_port: 32_768, dest_port: 32_768, sender_id: RpcId(0) };
        assert_eq!((header, sent.bytes.len()), (expected, 52));
    }
}

//= docs/protocol.md#local-7
#[test]
fn meet_is_sent_only_to_a_peer_that_has_been_met() {
    let mut pair = Pair::unacquainted();
    assert!(!send_meet(&mut pair, CLIENT, SERVER, 1), "no peer is known");
    pair.nodes[SERVER].up = false;
    let call = pair.call(100);
    pair.drive_for(millis(1));
    assert!(!send_meet(&mut pair, CLIENT, SERVER, 1), "the peer has not sent its token");
    pair.nodes[SERVER].up = true;
    pair.drive();
    pair.response(call);
    assert!(send_meet(&mut pair, CLIENT, SERVER, 1));
    let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
    let linux = Remote::new(native_path(SERVER), PORT);
    pair.endpoint(CLIENT)
        .call(now, socket, linux, body(100, 1), CallOptions::default())
        .expect("room");
    assert!(!pair.endpoint(CLIENT).send_meet(native_path(SERVER), meet(1)), "it has no tokens");
    pair.drive_for(millis(1));
    assert_eq!(meets(&mut pair, SERVER), [(path(CLIENT), meet(1))]);
}

//= docs/protocol.md#local-7
//= docs/protocol.md#contact-1
#[test]
fn a_meet_of_a_stranger_or_of_an_earlier_run_is_dropped_and_not_answered() {
    let mut pair = Pair::acquainted(|_| {});
    let header = Header { source_port: 9, dest_port: 9, sender_id: RpcId(0) };
    let mut forged = [0; MAX_HEADER];
    let length = meet(1).emit(&header, &mut forged);
    for token in [0, 1, u64::MAX] {
        Stamp::new(Token(token)).write(&mut forged);
        for from in [path(CLIENT), path(9)] {
            pair.inject_raw(from, SERVER, &forged[..length]);
        }
    }
    assert_eq!(pair.counters(SERVER).dropped_token, 6);
    // On a native link there are no tokens.
    pair.inject_raw(native_path(CLIENT), SERVER, &forged[..length]);
    pair.drive_for(millis(1));
    assert!(pair.sent.is_empty(), "{:?}", types(&pair));
    // The right token from another address: the node probes whether the sender has moved, and does not believe it.
    assert!(send_meet(&mut pair, CLIENT, SERVER, 2));
    pair.hook = Some(Box::new(|_| Fate::Drop));
    pair.drive_for(millis(1));
    let genuine = pair.sent_by(CLIENT, PacketType::Meet)[0].bytes.clone();
    pair.inject_raw(path(9), SERVER, &genuine);
    assert_eq!(pair.counters(SERVER).dropped_elsewhere, 1);
    assert_eq!(pair.counters(SERVER).meets_received, 0);
    assert_eq!(meets(&mut pair, SERVER), []);
    // An earlier run of the client: the request that it left at the server shows it.
    pair.hook = None;
    pair.hold();
    pair.call(100);
    pair.drive_for(millis(1));
    pair.restart(CLIENT);
    pair.call(100);
    pair.drive_for(millis(1));
    assert_eq!(pair.counters(SERVER).peers_over, 1);
    let dropped = pair.counters(SERVER).dropped_token;
    pair.inject_raw(path(CLIENT), SERVER, &genuine);
    assert_eq!(pair.counters(SERVER).dropped_token, dropped + 1);
    assert_eq!(meets(&mut pair, SERVER), []);
    // The next run of the server does not know the token either.
    pair.restart(SERVER);
    pair.sent.clear();
    pair.inject_raw(path(CLIENT), SERVER, &genuine);
    pair.drive_for(micros(1));
    assert_eq!(pair.counters(SERVER).dropped_token, 1);
    assert_eq!(meets(&mut pair, SERVER), []);
    assert_eq!(pair.sent.iter().filter(|sent| sent.from == SERVER).count(), 0, "no answer");
}

//= docs/protocol.md#local-7
#[test]
fn at_most_64_meets_wait_to_be_taken() {
    let mut pair = Pair::acquainted(|_| {});
    for number in 0..100 {
        assert!(send_meet(&mut pair, CLIENT, SERVER, number));
    }
    pair.drive();
    assert!(pair.is_idle(), "those that wait keep no node from its end");
    let counters = pair.counters(SERVER);
    assert_eq!((counters.meets_received, counters.dropped_meets), (100, 36));
    let expected: Vec<_> = (0..64).map(|number| (path(CLIENT), meet(number))).collect();
    assert_eq!(meets(&mut pair, SERVER), expected, "the oldest, in order");
    assert!(send_meet(&mut pair, CLIENT, SERVER, 100));
    pair.drive();
    assert_eq!(meets(&mut pair, SERVER), [(path(CLIENT), meet(100))], "there is room again");
}

//= docs/protocol.md#local-7
#[test]
fn a_lost_meet_is_not_sent_again() {
    let mut pair = Pair::acquainted(|_| {});
    pair.lose_first(|passing| passing.is(PacketType::Meet, CLIENT));
    assert!(send_meet(&mut pair, CLIENT, SERVER, 1));
    pair.drive();
    pair.drive_for(secs(2));
    assert_eq!(types(&pair), [PacketType::Meet]);
    assert_eq!(meets(&mut pair, SERVER), []);
    assert!(send_meet(&mut pair, CLIENT, SERVER, 2));
    pair.drive();
    assert_eq!(meets(&mut pair, SERVER), [(path(CLIENT), meet(2))]);
}

/// A peer is remembered for 120 s after its last packet of any type.
//= docs/protocol.md#local-7
#[test]
fn a_meet_is_a_sign_of_life() {
    let mut pair = Pair::acquainted(|_| {});
    for _ in 0..4 {
        pair.drive_for(secs(50));
        assert!(send_meet(&mut pair, CLIENT, SERVER, 1));
        assert!(send_meet(&mut pair, SERVER, CLIENT, 1));
        pair.drive();
    }
    assert_eq!(meets(&mut pair, SERVER).len(), 4);
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 1);
    pair.drive_for(secs(130));
    assert!(!send_meet(&mut pair, CLIENT, SERVER, 1), "each has forgotten the other");
}
