//! What a node holds for its peers is bounded, and what is refused is asked for again.

mod pair;

use apus_proto::{CallError, CallOptions};
use pair::*;

/// Bytes charged for an RPC beside its message.
const RPC: u64 = 512;

//= docs/protocol.md#hostile-1
#[test]
fn requests_beyond_the_peer_budget_wait_until_there_is_room() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_budget(200_000);
    });
    pair.hold();
    let calls: Vec<_> = (0..10).map(|_| pair.call(90_000)).collect();
    let mut most = 0;
    for _ in 0..10 {
        pair.drive_until(|net| {
            most = most.max(net.nodes[SERVER].endpoint.held_bytes());
            !net.nodes[SERVER].requests.is_empty()
        });
        pair.reply_from(SERVER, body(1, 1));
        pair.drive_for(millis(10));
    }
    pair.drive();
    assert!(most <= 200_000 + 4_096, "{most}");
    calls.iter().for_each(|&call| assert_eq!(pair.response(call).len(), 1));
    assert!(pair.counters(SERVER).refused_over_budget > 0);
    pair.assert_clean();
}

//= docs/protocol.md#hostile-1
#[test]
fn the_total_budget_is_shared_by_all_peers_and_the_socket_budget_by_its_clients() {
    for total in [true, false] {
        let mut net = Net::new(6, |_, config| {
            if total {
                config.total_budget(200_000)
            } else {
                config.socket_budget(200_000)
            };
        });
        net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
        let calls: Vec<_> = (1..6).map(|n| (n, net.call_from(n, 0, body(90_000, 1)))).collect();
        let mut most = 0;
        net.drive_until(|net| {
            most = most.max(net.nodes[0].endpoint.held_bytes());
            net.is_idle()
        });
        assert!(most <= 200_000 + 5 * 4_096, "{most}");
        assert!(
            calls
                .iter()
                .all(|&(n, call)| { matches!(net.outcome(n, call), Some(Outcome::Response(_))) })
        );
        assert!(net.counters(0).refused_over_budget > 0);
    }
}

#[test]
fn tiny_requests_are_charged_for_their_state() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_budget(64 << 10);
    });
    pair.hold();
    for _ in 0..1_000 {
        pair.call(1);
    }
    pair.drive_for(millis(1));
    assert_eq!(pair.active(SERVER) as u64, ((64 << 10) - 600) / (RPC + 1));
}

#[test]
fn what_is_held_is_given_back_in_every_phase() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    pair.call(100_000);
    pair.drive_for(millis(5));
    let held = |pair: &Pair| pair.nodes[SERVER].endpoint.held_bytes();
    assert_eq!(held(&pair), 100_000 + RPC);
    pair.reply_from(SERVER, body(300_000, 1));
    assert_eq!(held(&pair), 300_000 + RPC);
    pair.drive();
    pair.assert_clean();
}

#[test]
fn a_response_beyond_the_budget_is_not_kept() {
    let mut pair = Pair {
        net: Net::new(2, |node, config| {
            config.peer_budget(if node == CLIENT { 64 << 10 } else { 1 << 30 });
        }),
    };
    pair.answer_with(100_000);
    let call = pair.call(1);
    pair.drive();
    assert!(matches!(pair.failure(call), apus_proto::CallFailed::PeerTimeout { .. }));
    assert!(pair.counters(CLIENT).refused_over_budget > 0);
    pair.assert_clean();
}

//= docs/protocol.md#hostile-4
#[test]
fn the_peer_table_is_bounded_and_makes_room_again() {
    let mut net = Net::strangers(6, |_, config| {
        config.peers_max(3);
    });
    net.nodes[0].app = App::Hold;
    let calls: Vec<_> = (1..5).map(|n| (n, net.call_from(n, 0, body(100, 1)))).collect();
    net.drive_for(millis(1));
    assert_eq!(net.nodes[0].executed.len(), 3);
    assert!(net.counters(0).dropped_peers_full > 0);
    assert_eq!(net.nodes[0].endpoint.known_peers(), 3);
    // All are in use.
    let refused = net.try_call(0, 5, body(1, 1), CallOptions::default());
    assert_eq!(refused, Err(CallError::TooManyPeers { limit: 3 }));
    while !net.nodes[0].requests.is_empty() {
        net.reply_from(0, body(1, 1));
    }
    net.nodes[0].app = App::Echo;
    net.drive_for(secs(3));
    let served = calls
        .iter()
        .filter(|&&(n, call)| matches!(net.outcome(n, call), Some(Outcome::Response(_))));
    assert_eq!(served.count(), 3, "the fourth gave up");
    // What is idle makes room when its token cannot be confirmed once more.
    net.drive_for(secs(30));
    assert_eq!(net.nodes[0].endpoint.known_peers(), 3);
    let calls = [(0, net.call_from(0, 5, body(1, 1))), (4, net.call_from(4, 0, body(1, 1)))];
    net.drive();
    for (n, call) in calls {
        assert_eq!(net.outcome(n, call), Some(&Outcome::Response(body(1, 1))));
    }
    assert_eq!((net.nodes[0].endpoint.known_peers(), net.counters(0).peers_evicted), (3, 2));
}

//= docs/protocol.md#hostile-4
#[test]
fn a_part_of_the_peer_table_is_kept_for_own_calls() {
    let mut net = Net::strangers(20, |_, config| {
        config.peers_max(16);
    });
    net.nodes[0].app = App::Hold;
    (1..18).for_each(|n| drop(net.call_from(n, 0, body(100, 1))));
    net.drive_for(millis(1));
    assert_eq!(net.nodes[0].endpoint.known_peers(), 14);
    assert!(net.try_call(0, 18, body(1, 1), CallOptions::default()).is_ok());
}

//= docs/protocol.md#once-2
#[test]
fn memory_does_not_grow_with_the_number_of_calls() {
    let mut pair = Pair::acquainted(|_| {});
    pair.keep_sent = false;
    let mut held = Vec::new();
    for _ in 0..4 {
        for _ in 0..5_000 {
            pair.call(8);
        }
        pair.drive();
        held.push(pair.nodes[SERVER].endpoint.held_bytes());
        pair.nodes[SERVER].executed.clear();
    }
    assert!(held.iter().all(|&bytes| bytes < 2_048), "{held:?}");
}

//= docs/protocol.md#life-9
#[test]
fn a_request_that_will_never_fit_fails_at_once() {
    for by_budget in [false, true] {
        let mut pair = Pair {
            net: Net::new(2, |node, config| {
                match node {
                    SERVER if by_budget => config.peer_budget(64 << 10),
                    SERVER => config.message_max(50_000),
                    _ => config,
                };
            }),
        };
        let call = pair.call(100_000);
        pair.drive_for(millis(1));
        let error = pair.failure(call);
        assert_eq!(error, apus_proto::CallFailed::RequestTooLarge { length: 100_000 });
        assert_eq!(pair.counters(SERVER).unknown_sent, 1, "one answer for many packets");
    }
}

//= docs/protocol.md#life-9
#[test]
fn a_request_that_never_found_room_says_so() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_budget(200_000);
    });
    pair.hold();
    pair.call(150_000);
    pair.drive_for(millis(5));
    let call = pair.call(90_000);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    assert!(matches!(pair.failure(call), apus_proto::CallFailed::Overloaded { .. }));
}
