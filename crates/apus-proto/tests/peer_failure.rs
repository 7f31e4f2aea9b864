//! Lost peers, and the errors of calls to them.

use crate::pair::*;
use apus_proto::{Awaited, CallFailed, CallOptions, Cookie, Remote};
use apus_wire::{PacketType, PathError};

//= docs/protocol.md#life-4
#[test]
fn the_error_says_what_was_waited_for_and_how_long() {
    let waited = |stop_at: u64, request, response| {
        let mut pair = Pair::acquainted(|_| {});
        pair.answer_with(response);
        let call = pair.call(request);
        pair.drive_for(micros(stop_at));
        pair.nodes[SERVER].up = false;
        pair.hook = Some(Box::new(|p| if p.from == SERVER { Fate::Drop } else { Fate::Pass }));
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        let CallFailed::PeerTimeout { waited_for, silent_for, probes_unanswered, story } =
            pair.failure(call)
        else {
            panic!("{:?}", pair.failure(call));
        };
        assert!(silent_for >= secs(1) && silent_for < millis(1_002), "{silent_for:?}");
        assert!(probes_unanswered >= 5, "{probes_unanswered}");
        assert_eq!((story.waited_for, story.probes_unanswered), (waited_for, probes_unanswered));
        assert!(story.peer_silent_for >= Some(silent_for), "{story}");
        (waited_for, story)
    };
    let (waited_for, story) = waited(0, 100, 100);
    assert_eq!((waited_for, story.sent, story.response), (Awaited::Response, 100, None));
    let (waited_for, story) = waited(0, 500_000, 100);
    assert_eq!((waited_for, story.request), (Awaited::Grant, 500_000));
    assert!(story.sent > 0 && story.sent == story.granted && story.sent < 500_000, "{story}");
    let (waited_for, story) = waited(60, 100, 500_000);
    assert_eq!((waited_for, story.response), (Awaited::RestOfResponse, Some(500_000)));
    assert!(story.received > 0 && story.received < 500_000, "{story}");
}

#[test]
fn ten_thousand_calls_to_a_dead_peer_all_end_in_bounded_time() {
    let mut pair = Pair::new();
    pair.nodes[SERVER].up = false;
    let calls: Vec<_> = (0..10_000).map(|n| pair.call(100 + n % 3_000)).collect();
    pair.keep_sent = false;
    pair.drive_until(|net| net.active(CLIENT) == 0);
    assert!(
        pair.now < apus_proto::Time::ZERO + millis(1_500),
        "{} {:?}",
        pair.now,
        pair.counters(CLIENT)
    );
    for call in calls {
        assert!(matches!(pair.failure(call), CallFailed::PeerTimeout { .. }));
    }
    assert_eq!(pair.counters(CLIENT).calls_failed, 10_000);
    assert!(pair.counters(CLIENT).resends_sent < 120_000);
}

fn unreachable(error: PathError, sent: bool) -> CallFailed {
    CallFailed::Unreachable { error, sent }
}

/// Reports to a node that its peer is unreachable, several times at once, every millisecond.
fn refuse(net: &mut Net, node: usize, peer: usize, error: PathError, times: usize) {
    for _ in 0..times {
        for _ in 0..10 {
            let now = net.now;
            net.endpoint(node).handle_path_error(now, path(peer), error);
        }
        net.drive_for(millis(1));
    }
}

//= docs/protocol.md#life-5
#[test]
fn what_the_network_says_ends_all_calls_to_a_silent_peer_and_no_others() {
    let mut net = Net::new(3, |_, _| {});
    net.nodes[1].up = false;
    net.nodes[2].app = App::Hold;
    let gone: Vec<_> = (0..700).map(|_| net.call_from(0, 1, body(100, 1))).collect();
    let fine = net.call_from(0, 2, body(100, 1));
    net.drive_for(millis(1));
    refuse(&mut net, 0, 1, PathError::PortUnreachable, 20);
    let expected = Outcome::Failed(unreachable(PathError::PortUnreachable, true));
    assert!(gone.iter().all(|&call| net.outcome(0, call) == Some(&expected)));
    assert_eq!(net.outcome(0, fine), None);
    assert_eq!(net.active(0), 1);
}

//= docs/protocol.md#life-5
#[test]
fn no_error_ends_a_call_to_a_peer_that_answers() {
    for error in [PathError::HostUnreachable, PathError::PortUnreachable] {
        let mut pair = Pair::acquainted(|_| {});
        pair.hold();
        let call = pair.call(100);
        pair.drive_for(millis(1));
        let before = pair.counters(CLIENT).packets_sent;
        refuse(&mut pair, CLIENT, SERVER, error, 200);
        assert_eq!(pair.outcome(CLIENT, call), None);
        let asked = pair.counters(CLIENT).packets_sent - before;
        assert!((10..=210).contains(&asked), "one probe for an error at most: {asked}");
        pair.reply_from(SERVER, body(1, 1));
        pair.drive();
        pair.response(call);
    }
}

#[test]
fn that_this_node_has_no_link_to_the_peer_ends_its_calls_at_once_and_no_later_one() {
    let mut pair = Pair::new();
    let before = pair.call(100);
    let now = pair.now;
    pair.endpoint(CLIENT).handle_path_error(now, path(SERVER), PathError::NoLink);
    pair.now = now + micros(1);
    let after = pair.call(100);
    pair.drive();
    assert_eq!(pair.failure(before), unreachable(PathError::NoLink, false));
    pair.response(after);
}

//= docs/protocol.md#life-5
#[test]
fn a_late_error_about_an_earlier_run_of_the_peer_ends_nothing() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    // Repeated reports have no effect: in between, the peer answers the probes.
    for _ in 0..5 {
        for _ in 0..10 {
            let now = pair.now;
            pair.endpoint(CLIENT).handle_path_error(now, path(SERVER), PathError::PortUnreachable);
        }
        let asked = pair.counters(CLIENT).resends_sent;
        pair.drive_for(micros(100));
        assert_eq!(pair.counters(CLIENT).resends_sent, asked + 1, "asked at once, and once");
    }
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#life-5
#[test]
fn reports_before_a_call_do_not_count_because_nothing_was_asked() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    for _ in 0..5 {
        let now = pair.now;
        pair.endpoint(CLIENT).handle_path_error(now, path(SERVER), PathError::PortUnreachable);
        pair.drive_for(millis(10));
    }
    let call = pair.call(100);
    let now = pair.now;
    pair.endpoint(CLIENT).handle_path_error(now, path(SERVER), PathError::PortUnreachable);
    pair.drive_for(millis(1));
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#life-5
#[test]
fn reports_about_the_client_of_a_request_in_service_do_not_end_it() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    for _ in 0..12 {
        pair.drive_for(micros(250));
        let now = pair.now;
        pair.endpoint(SERVER).handle_path_error(now, path(CLIENT), PathError::HostUnreachable);
    }
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#life-5
#[test]
fn calls_to_a_port_where_nobody_listens_end_when_three_questions_were_refused() {
    let mut pair = Pair::unacquainted();
    pair.nodes[SERVER].up = false;
    let calls: Vec<_> = (0..10_000).map(|_| pair.call(100)).collect();
    let mut refused = 0;
    while pair.active(CLIENT) > 0 {
        // The peer's host answers every packet within a round trip of 20 us.
        let sent = pair.sent.len();
        pair.drive_for(micros(20));
        let now = pair.now;
        for _ in refused..sent {
            pair.endpoint(CLIENT).handle_path_error(now, path(SERVER), PathError::PortUnreachable);
        }
        refused = sent;
        assert!(now < apus_proto::Time::ZERO + millis(20), "{:?}", pair.counters(CLIENT));
    }
    let expected = unreachable(PathError::PortUnreachable, false);
    assert!(calls.iter().all(|&call| pair.failure(call) == expected));
}

//= docs/protocol.md#life-5
#[test]
fn a_call_after_those_that_the_network_has_ended_is_sent_only_once_the_peer_is_back() {
    for back in [false, true] {
        let mut pair = Pair::acquainted(|_| {});
        pair.nodes[SERVER].up = false;
        let first = pair.call(100);
        pair.drive_for(millis(1));
        refuse(&mut pair, CLIENT, SERVER, PathError::PortUnreachable, 20);
        assert_eq!(pair.failure(first), unreachable(PathError::PortUnreachable, true));
        let second = pair.call(100);
        if back {
            pair.nodes[SERVER].up = true;
            pair.drive();
            pair.response(second);
        } else {
            refuse(&mut pair, CLIENT, SERVER, PathError::PortUnreachable, 60);
            assert_eq!(pair.failure(second), unreachable(PathError::PortUnreachable, false));
        }
    }
}

//= docs/protocol.md#contact-6
#[test]
fn a_call_that_waits_for_the_answer_to_a_doubt_ends_if_the_peer_stays_silent() {
    let mut pair = Pair::acquainted(|_| {});
    pair.nodes[SERVER].up = false;
    let first = pair.call(100);
    pair.drive_for(millis(1));
    refuse(&mut pair, CLIENT, SERVER, PathError::PortUnreachable, 20);
    assert_eq!(pair.failure(first), unreachable(PathError::PortUnreachable, true));
    let waiting = pair.call(100);
    pair.drive_for(millis(900));
    assert_eq!(pair.outcome(CLIENT, waiting), None);
    pair.drive_for(secs(1));
    let failure = pair.failure(waiting);
    let CallFailed::PeerTimeout { silent_for, ref story, .. } = failure else {
        panic!("{failure:?}");
    };
    assert!(silent_for >= secs(1) && !story.may_have_executed(), "{failure}");
}

/// The peer that asks has no RPCs itself, and is not forgotten as an idle one.
//= docs/protocol.md#server-4
//= docs/protocol.md#contact-6
#[test]
fn a_call_that_waits_for_the_answer_to_a_doubt_for_minutes_goes_on_once_the_peer_is_back() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_timeout(secs(1_000));
    });
    // A request of the server keeps the peer.
    pair.nodes[CLIENT].app = App::Hold;
    pair.call_from(SERVER, CLIENT, body(100, 1));
    pair.drive_for(millis(1));
    pair.nodes[SERVER].up = false;
    pair.hook =
        Some(Box::new(|passing| if passing.from == SERVER { Fate::Drop } else { Fate::Pass }));
    pair.drive_for(secs(70));
    let waiting = pair.call(100);
    pair.drive_for(secs(150));
    assert_eq!(pair.outcome(CLIENT, waiting), None);
    pair.hook = None;
    pair.restart(SERVER);
    pair.drive_for(secs(2));
    pair.response(waiting);
}

/// The end of another call makes room for messages that are deferred for room (unsched-2), and answers no doubt.
//= docs/protocol.md#contact-6
#[test]
fn a_call_that_waits_for_the_answer_to_a_doubt_waits_on_when_another_call_is_given_up() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_timeout(secs(1_000));
    });
    pair.hold();
    let held = pair.call(100);
    pair.drive_for(millis(1));
    pair.hook =
        Some(Box::new(|passing| if passing.from == SERVER { Fate::Drop } else { Fate::Pass }));
    pair.drive_for(secs(70));
    let waiting = pair.call(100);
    pair.drive_for(millis(1));
    let requests = pair.sent_by(CLIENT, PacketType::Data).len();
    pair.endpoint(CLIENT).abort(held);
    pair.drive_for(secs(1));
    assert_eq!(pair.sent_by(CLIENT, PacketType::Data).len(), requests);
    pair.hook = None;
    pair.restart(SERVER);
    pair.drive_for(secs(2));
    pair.response(waiting);
}

#[test]
fn a_server_forgets_the_requests_of_a_client_that_is_unreachable() {
    let mut pair = Pair::new();
    pair.hold();
    pair.call(100);
    pair.drive_for(millis(1));
    pair.nodes[CLIENT].up = false;
    pair.hook = Some(Box::new(|p| if p.from == CLIENT { Fate::Drop } else { Fate::Pass }));
    pair.reply_from(SERVER, body(1, 1));
    refuse(&mut pair, SERVER, CLIENT, PathError::HostUnreachable, 20);
    assert_eq!(pair.active(SERVER), 0);
}

//= docs/protocol.md#life-3
#[test]
fn a_deadline_ends_a_call_wherever_it_is() {
    for (deadline, dead) in [(millis(3), true), (millis(700), false), (secs(5), false)] {
        let mut pair = Pair::acquainted(|_| {});
        pair.hold();
        pair.nodes[SERVER].up = !dead;
        let started = pair.now;
        let options = CallOptions {
            cookie: Cookie::Key(7),
            deadline: Some(started + deadline),
            ..CallOptions::default()
        };
        let call = pair.try_call(CLIENT, SERVER, body(100, 1), options).expect("within limits");
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        let CallFailed::DeadlineExceeded { after, story } = pair.failure(call) else {
            panic!("{:?}", pair.failure(call));
        };
        assert!(after >= deadline && after < deadline + millis(1), "{after:?}");
        assert_eq!((story.waited_for, story.sent), (Awaited::Response, 100));
        // A live server answers the probes.
        let silent = story.peer_silent_for.expect("the peer is known");
        assert_eq!(silent >= deadline, dead, "{story}");
    }
}

#[test]
fn a_call_that_waits_for_its_own_link_says_so() {
    let mut pair = Pair::acquainted(|_| {});
    let deadline = pair.now + millis(20);
    let options = CallOptions { cookie: Cookie::Key(7), deadline: Some(deadline), trace: None };
    let call = pair.try_call(CLIENT, SERVER, body(9_000, 1), options).expect("within limits");
    // The link has taken nothing until then.
    pair.now = deadline;
    pair.endpoint(CLIENT).handle_timeout(deadline);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let CallFailed::DeadlineExceeded { story, .. } = pair.failure(call) else {
        panic!("{:?}", pair.failure(call));
    };
    assert_eq!((story.waited_for, story.sent), (Awaited::Link, 0), "{story}");
}

#[test]
fn a_deadline_beyond_every_timer_is_kept() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_timeout(secs(3600)).resend_initial(secs(10)).resend_min(secs(10));
    });
    pair.nodes[SERVER].up = false;
    let deadline = Some(pair.now + secs(30));
    let options = CallOptions { cookie: Cookie::Key(7), deadline, ..CallOptions::default() };
    let call = pair.try_call(CLIENT, SERVER, body(100, 1), options).expect("within limits");
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    assert!(matches!(pair.failure(call), CallFailed::DeadlineExceeded { .. }));
    assert_eq!(pair.counters(CLIENT).resends_sent, 2);
}

//= docs/protocol.md#life-6
#[test]
fn a_port_nobody_serves_is_reported_at_once() {
    for lost in [false, true] {
        let mut pair = Pair::new();
        if lost {
            pair.lose_first(|passing| passing.is(PacketType::RpcUnknown, SERVER));
        }
        for length in [10, 100_000] {
            let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
            for port in [9, CLIENT_PORT] {
                let to = Remote::new(path(SERVER), port);
                let options = CallOptions::default();
                let call = pair.endpoint(CLIENT).call(now, socket, to, body(length, 1), options);
                let call = call.expect("within limits");
                pair.drive();
                assert_eq!(pair.failure(call), CallFailed::NoSuchPort);
            }
        }
        assert!(lost || pair.now < apus_proto::Time::ZERO + millis(1));
        assert_eq!(pair.nodes[SERVER].executed.len(), 0);
        pair.assert_clean();
    }
}

//= docs/protocol.md#life-7
#[test]
fn a_response_that_was_given_up_is_reported_lost_and_not_computed_again() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let rpc = pair.nodes[SERVER].requests.remove(0).rpc;
    assert!(pair.endpoint(SERVER).abort(rpc));
    pair.drive();
    assert_eq!(pair.failure(call), CallFailed::ResponseLost);
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert_eq!(pair.counters(SERVER).requests_abandoned, 1);
}

//= docs/protocol.md#life-7
#[test]
fn a_service_that_closes_over_a_request_does_not_deny_having_it() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let service = pair.nodes[SERVER].service;
    pair.endpoint(SERVER).close(service);
    pair.drive();
    assert_eq!(pair.failure(call), CallFailed::ResponseLost);
}

#[test]
fn a_response_too_long_for_the_client_is_refused() {
    let mut pair = Pair {
        net: Net::new(2, |node, config| {
            config.message_max(if node == CLIENT { 1_000 } else { 100_000 });
        }),
    };
    pair.answer_with(1_001);
    let call = pair.call(10);
    pair.drive();
    assert_eq!(pair.failure(call), CallFailed::ResponseTooLarge { length: 1_001, limit: 1_000 });
}

#[test]
fn a_request_too_long_for_the_server_ends() {
    let mut pair = Pair {
        net: Net::new(2, |node, config| {
            config.message_max(if node == SERVER { 1_000 } else { 100_000 });
        }),
    };
    let call = pair.call(1_001);
    pair.drive();
    assert!(matches!(pair.failure(call), CallFailed::RequestTooLarge { .. }));
    assert!(pair.counters(SERVER).refused_too_large > 0);
}

//= docs/protocol.md#life-4
#[test]
fn a_peer_that_is_heard_of_otherwise_is_asked_sixteen_times() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let unlucky = pair.call(100);
    // From here on, all packets of this call are lost; other calls continue.
    pair.drive_for(millis(1));
    let id = pair.sent.last().expect("the request").packet().header().sender_id.client_form();
    pair.hook = Some(Box::new(move |passing| {
        let about = passing.packet.header().sender_id.client_form();
        if about == id { Fate::Drop } else { Fate::Pass }
    }));
    for _ in 0..100 {
        pair.call(10);
        pair.drive_for(millis(50));
    }
    let CallFailed::PeerTimeout { probes_unanswered, silent_for, .. } = pair.failure(unlucky)
    else {
        panic!("another failure");
    };
    assert_eq!(probes_unanswered, 16);
    assert!(silent_for >= secs(1) && silent_for < secs(4), "{silent_for:?}");
}
