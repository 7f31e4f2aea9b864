//! The bytes that a node holds for its peers are bounded, and refused messages are requested again.

use crate::pair::*;
use apus_proto::{CallError, CallFailed, CallOptions, PathKind, ReplyError, Rights};
use apus_wire::{Data, DataFlags, Header, RpcId};

/// Bytes charged for an RPC beside its messages.
const RPC: u64 = 512;

//= docs/protocol.md#hostile-1
#[test]
fn requests_beyond_the_peer_budget_wait_until_there_is_room() {
    let mut pair = Pair::acquainted_by_node(|node, config| {
        if node == SERVER {
            config.peer_budget(200_000);
        }
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
    let mut pair = Pair::acquainted_by_node(|node, config| {
        if node == SERVER {
            config.peer_budget(64 << 10);
        }
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

//= docs/protocol.md#hostile-9
#[test]
fn a_response_that_will_never_fit_the_budget_ends_its_call_at_once() {
    let mut pair = Pair {
        net: Net::new(2, |node, config| {
            config.peer_budget(if node == CLIENT { 64 << 10 } else { 1 << 30 });
        }),
    };
    pair.answer_with(100_000);
    let (call, began) = (pair.call(1), pair.now);
    pair.drive();
    let limit = (64 << 10) - RPC as u32;
    assert_eq!(pair.failure(call), CallFailed::ResponseTooLarge { length: 100_000, limit });
    assert!(pair.ended_at(CLIENT, call).saturating_since(began) < millis(1));
    assert!(pair.counters(CLIENT).refused_over_budget > 0);
    pair.assert_clean();
}

//= docs/protocol.md#hostile-4
#[test]
fn the_peer_table_is_bounded_and_makes_room_again() {
    let mut net = Net::unacquainted(6, |_, config| {
        config.peers_max(3);
    });
    net.nodes[0].app = App::Hold;
    let calls: Vec<_> = (1..5).map(|n| (n, net.call_from(n, 0, body(100, 1)))).collect();
    net.drive_for(millis(1));
    assert_eq!(net.nodes[0].executed.len(), 3);
    assert!(net.counters(0).dropped_peers_full > 0);
    assert_eq!(net.nodes[0].endpoint.known_peers(), 3);
    // All peers are in use.
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
    // Idle peers make room once their tokens can no longer be confirmed.
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
fn strangers_are_forgotten_before_peers_with_an_identity() {
    let mut net = Net::unacquainted(5, |_, config| {
        config.peers_max(3);
    });
    let sealed = net.nodes[1].path.sealed();
    net.move_node(1, sealed);
    net.endpoint(0).set_default_rights(PathKind::Plain, Rights { requests: 1, calls: 1 });
    for client in [1, 2, 3] {
        let call = net.call_from(client, 0, body(1, 1));
        net.drive();
        assert_eq!(net.outcome(client, call), Some(&Outcome::Response(body(1, 1))));
    }
    net.drive_for(secs(30));
    let later = net.call_from(4, 0, body(1, 1));
    net.drive();
    assert_eq!(net.outcome(4, later), Some(&Outcome::Response(body(1, 1))));
    assert_eq!(net.counters(0).peers_evicted, 1);
    let opens = net.counters(0).opens_received;
    let again = net.call_from(1, 0, body(1, 1));
    net.drive();
    assert_eq!(net.outcome(1, again), Some(&Outcome::Response(body(1, 1))));
    assert_eq!(net.counters(0).opens_received, opens, "the oldest one is still known");
}

//= docs/protocol.md#hostile-4
#[test]
fn a_part_of_the_peer_table_is_kept_for_own_calls() {
    let mut net = Net::unacquainted(20, |_, config| {
        config.peers_max(16);
    });
    net.nodes[0].app = App::Hold;
    for n in 1..18 {
        net.call_from(n, 0, body(100, 1));
    }
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
        assert_eq!(error, CallFailed::RequestTooLarge { length: 100_000 });
        assert_eq!(pair.counters(SERVER).unknown_sent, 1, "one answer for many packets");
    }
}

//= docs/protocol.md#life-9
#[test]
fn a_request_that_never_found_room_says_so() {
    let mut pair = Pair::acquainted_by_node(|node, config| {
        if node == SERVER {
            config.peer_budget(200_000);
        }
    });
    pair.hold();
    pair.call(150_000);
    pair.drive_for(millis(5));
    let call = pair.call(90_000);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    assert!(matches!(pair.failure(call), CallFailed::Overloaded { .. }));
}

/// Returns the first byte of a request of `length` bytes, the `n`th of a client that sends nothing else.
fn claim(n: u64, length: u32) -> Vec<u8> {
    let sender_id = RpcId((1 << 16) + 2 * n);
    let header = Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id };
    let data = Data {
        message_length: length,
        incoming: 1,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: DataFlags::NONE,
        offset: 0,
    };
    data_packet(header, data, b"x")
}

//= docs/protocol.md#hostile-1
#[test]
fn a_claim_is_not_charged() {
    let mut pair = Pair::acquainted(|config| {
        config.total_budget(8 << 20).socket_budget(8 << 20).message_max(500_000);
    });
    pair.answer_with(1);
    for n in 0..1_000 {
        pair.inject(path(7), SERVER, &claim(n, 500_000));
    }
    let charged = 1_000 * (RPC + 1);
    assert!(pair.nodes[SERVER].endpoint.held_bytes() < charged + 4_096);
    let call = pair.call(400_000);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    pair.response(call);
    assert_eq!(pair.counters(SERVER).refused_over_budget, 0);
}

//= docs/protocol.md#hostile-7
#[test]
fn half_received_messages_never_keep_each_other_from_the_end() {
    for (loss, seed) in [(0, 1), (0, 2), (20, 3), (20, 4)] {
        let mut net = Net::new(7, |node, config| {
            if node != 0 {
                return;
            }
            config.total_budget(400_000).socket_budget(300_000).peer_budget(200_000);
            config.unscheduled(20_000).fifo_share(if seed % 2 == 0 { 0 } else { 50 });
        });
        net.keep_sent = false;
        net.faults = (loss > 0).then(|| Faults {
            loss,
            duplicate: 10,
            late: 50,
            lateness: millis(1),
            random: Random::new(seed),
        });
        let mut random = Random::new(seed);
        net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
        let mut calls = Vec::new();
        for _ in 0..10 {
            for from in 1..7 {
                let length = 1_000 + random.below(180_000) as usize;
                calls.push((from, net.call_from(from, 0, body(length, 1))));
            }
        }
        let mut most = 0;
        net.drive_until(|net| {
            most = most.max(net.nodes[0].endpoint.held_bytes());
            net.is_idle()
        });
        assert!(most <= 400_000 + 7 * 1_024, "{most} held");
        let answered = |&&(from, call): &&(usize, _)| {
            matches!(net.outcome(from, call), Some(Outcome::Response(_)))
        };
        let failed: Vec<_> = calls.iter().filter(|call| !answered(call)).collect();
        let outcomes: Vec<_> =
            failed.iter().map(|&&(from, call)| net.outcome(from, call)).collect();
        assert!(outcomes.is_empty(), "{outcomes:?}");
    }
}

/// The request in the middle does not fit beside the rest of the longest one, whose client is down.
//= docs/protocol.md#grant-9
//= docs/protocol.md#hostile-7
#[test]
fn a_silent_message_that_room_is_kept_for_is_probed_once() {
    let mut net = Net::new(3, |_, config| {
        config.total_budget(300_000).socket_budget(300_000).unscheduled(10_000);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    net.call_from(1, 0, body(200_000, 1));
    net.drive_until(|net| net.nodes[0].endpoint.held_bytes() > 20_000);
    net.nodes[1].up = false;
    net.drive_for(millis(150));
    let call = net.call_from(2, 0, body(150_000, 1));
    net.drive_for(secs(3));
    assert_eq!(net.outcome(2, call), Some(&Outcome::Response(body(1, 1))));
}

//= docs/protocol.md#life-9
#[test]
fn a_refused_request_is_sent_again_by_its_first_packet() {
    let mut pair = Pair::acquainted_by_node(|node, config| {
        if node == SERVER {
            config.peer_budget(200_000);
        }
    });
    pair.hold();
    pair.call(150_000);
    pair.drive_for(millis(5));
    let call = pair.call(90_000);
    pair.drive_for(millis(100));
    assert!(pair.counters(SERVER).refused_over_budget > 5);
    let again = pair.data_sent_by(CLIENT) - 150_000 - 40_000;
    assert!(again < 40_000, "{again} bytes again");
    pair.reply_from(SERVER, body(1, 1));
    pair.drive_until(|net| !net.nodes[SERVER].requests.is_empty());
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

/// Returns two acquainted nodes whose peer budgets are small.
fn with_peer_budget(bytes: u64) -> Pair {
    Pair::acquainted(|config| {
        config.peer_budget(bytes).unscheduled(20_000);
    })
}

//= docs/protocol.md#hostile-7
//= docs/protocol.md#hostile-9
#[test]
fn a_long_arriving_request_does_not_keep_an_own_call_from_its_response() {
    let mut pair = with_peer_budget(340_000);
    pair.answer_with(1);
    pair.nodes[CLIENT].app = App::Answer(Box::new(|_| body(3_000, 1)));
    let long = pair.call(290_000);
    pair.drive_until(|net| net.nodes[SERVER].endpoint.held_bytes() > RPC);
    let own = pair.call_from(SERVER, CLIENT, body(54_000, 1));
    pair.drive_for(secs(2));
    assert_eq!(pair.response(long).len(), 1);
    assert_eq!(pair.outcome(SERVER, own), Some(&Outcome::Response(body(3_000, 1))));
    pair.drive();
    pair.assert_clean();
}

//= docs/protocol.md#hostile-9
#[test]
fn messages_longer_than_half_of_the_budget_pass_each_other() {
    for (request, response) in [(250_000, 1), (1, 250_000), (250_000, 250_000), (339_000, 339_000)]
    {
        let mut pair = with_peer_budget(340_000);
        for node in [CLIENT, SERVER] {
            pair.nodes[node].app = App::Answer(Box::new(move |_| body(response, 1)));
        }
        let there = pair.call(request);
        let back = pair.call_from(SERVER, CLIENT, body(request, 1));
        pair.drive_for(secs(5));
        assert_eq!(pair.response(there).len(), response, "{request}");
        assert_eq!(pair.outcome(SERVER, back), Some(&Outcome::Response(body(response, 1))));
        pair.drive();
        pair.assert_clean();
    }
}

//= docs/protocol.md#hostile-9
#[test]
fn a_call_made_while_messages_arrive_does_not_take_the_room_of_the_longest() {
    let mut net = Net::new(4, |_, config| {
        config.total_budget(400_000).socket_budget(400_000).unscheduled(10_000);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    net.nodes[1].app = App::Answer(Box::new(|_| body(30_000, 1)));
    let calls = [(1, 190_000), (2, 180_000), (3, 170_000)]
        .map(|(node, length)| (node, net.call_from(node, 0, body(length, 1))));
    net.drive_until(|net| net.nodes[0].endpoint.held_bytes() > 150_000);
    let own = net.call_from(0, 1, body(150_000, 1));
    net.drive_for(secs(5));
    for (node, call) in calls {
        assert_eq!(net.outcome(node, call), Some(&Outcome::Response(body(1, 1))));
    }
    assert_eq!(net.outcome(0, own), Some(&Outcome::Response(body(30_000, 1))));
}

//= docs/protocol.md#hostile-8
#[test]
fn strangers_share_a_small_part() {
    let mut pair = Pair::acquainted(|config| {
        config.total_budget(1_600_000);
    });
    pair.hold();
    for from in 10..110 {
        for n in 0..100 {
            pair.inject(native_path(from), SERVER, &claim(n, 2));
        }
    }
    assert!(pair.nodes[SERVER].endpoint.held_bytes() <= 200_000 + 101 * 1_024);
    assert!(pair.counters(SERVER).refused_over_budget > 8_000);
    pair.nodes[SERVER].app = App::Echo;
    let call = pair.call(500_000);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    pair.response(call);
}

//= docs/protocol.md#hostile-8
#[test]
fn requests_of_others_leave_room_for_the_responses_to_own_calls() {
    let mut net = Net::new(6, |node, config| {
        if node != 0 {
            return;
        }
        config.total_budget(800_000).socket_budget(800_000);
    });
    net.nodes[0].app = App::Hold;
    for from in 1..5 {
        (0..30).for_each(|_| _ = net.call_from(from, 0, body(20_000, 1)));
    }
    net.drive_for(millis(300));
    assert!(net.counters(0).refused_over_budget > 0);
    assert!(net.nodes[0].endpoint.held_bytes() > 600_000, "others have used their part");
    net.nodes[5].app = App::Answer(Box::new(|_| body(60_000, 1)));
    let call = net.call_from(0, 5, body(100, 1));
    net.drive_for(millis(50));
    let outcome = net.outcome(0, call);
    assert!(matches!(outcome, Some(Outcome::Response(_))), "{outcome:?} {:?}", net.counters(0));
}

//= docs/protocol.md#hostile-9
#[test]
fn responses_that_a_client_does_not_fetch_fill_half_of_the_budget() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_budget(2_000_000);
    });
    pair.hold();
    for _ in 0..96 {
        pair.call(100);
    }
    pair.drive_for(millis(1));
    pair.nodes[CLIENT].up = false;
    let requests = std::mem::take(&mut pair.nodes[SERVER].requests);
    let (now, mut taken) = (pair.now, 0);
    for request in &requests {
        match pair.endpoint(SERVER).reply(now, request.rpc, body(300_000, 1)) {
            Ok(()) => taken += 1,
            Err(ReplyError::OverBudget { length: 300_000, room }) => {
                assert!((100..300_000).contains(&room));
                pair.endpoint(SERVER).reply(now, request.rpc, body(100, 1)).expect("as long");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(taken, 3);
    assert!(pair.nodes[SERVER].endpoint.held_bytes() < 1_000_000 + 100 * (RPC + 100));
    pair.nodes[CLIENT].up = true;
    pair.drive();
    pair.assert_clean();
}

//= docs/protocol.md#hostile-9
#[test]
fn a_client_may_send_half_of_its_budget_and_one_message_of_any_length() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_budget(1_000_000);
    });
    pair.hold();
    let try_call = |pair: &mut Pair, length| {
        pair.try_call(CLIENT, SERVER, body(length, 1), CallOptions::default())
    };
    let long = try_call(&mut pair, 900_000).expect("it is the only one");
    assert_eq!(try_call(&mut pair, 1), Err(CallError::OverBudget { length: 1, room: 0 }));
    pair.endpoint(CLIENT).abort(long);
    for _ in 0..4 {
        try_call(&mut pair, 124_000).expect("half of the budget");
    }
    let room = 500_000 - 4 * (124_000 + RPC) - RPC;
    let refused = try_call(&mut pair, 124_000);
    assert_eq!(refused, Err(CallError::OverBudget { length: 124_000, room }));
    pair.nodes[SERVER].app = App::Echo;
    pair.drive_for(secs(3));
    try_call(&mut pair, 124_000).expect("there is room again");
}

//= docs/protocol.md#hostile-9
#[test]
fn who_does_not_take_responses_gets_no_further_ones() {
    for response in [50_000, 1_000] {
        let mut pair = Pair::acquainted(|config| {
            config.socket_budget(1 << 20);
        });
        pair.answer_with(response);
        let (mut calls, mut took, mut undelivered) = (Vec::new(), 0, 0);
        // The application takes nothing, and calls as often as it may.
        for _ in 0..3_000 {
            let request = body(100, 1);
            let Ok(call) = pair.try_call(CLIENT, SERVER, request, CallOptions::default()) else {
                break;
            };
            calls.push(call);
            pair.drive_for(micros(200));
            undelivered =
                calls.iter().filter(|&&call| pair.outcome(CLIENT, call).is_some()).count();
            let (socket, waiting) = (pair.nodes[CLIENT].socket, undelivered as u64);
            pair.endpoint(CLIENT).set_undelivered(socket, waiting, waiting * response as u64);
        }
        let most = (1 << 20) / (response + RPC as usize);
        assert!((most - 2..=most + 1).contains(&undelivered), "{undelivered} of {most}");
        assert!(pair.nodes[CLIENT].endpoint.held_bytes() < (1 << 20) + response as u64 + 4_096);
        // The client takes all responses, and the rest arrives.
        let socket = pair.nodes[CLIENT].socket;
        pair.endpoint(CLIENT).set_undelivered(socket, 0, 0);
        pair.drive_until(|net| net.active(CLIENT) == 0);
        for call in calls {
            took += usize::from(pair.response(call).len() == response);
        }
        assert!(took >= undelivered);
        pair.drive();
        pair.assert_clean();
    }
}

//= docs/protocol.md#life-8
//= docs/protocol.md#hostile-1
#[test]
fn requests_that_were_given_up_stay_charged_until_the_application_has_ended_them() {
    let budget = 1 << 20;
    let mut pair = Pair::acquainted(|config| {
        config.peer_budget(budget);
    });
    pair.hold();
    for _ in 0..50 {
        let call = pair.call(100_000);
        pair.drive_for(millis(1));
        pair.endpoint(CLIENT).abort(call);
        pair.drive_for(millis(1));
        assert!(pair.endpoint(SERVER).held_bytes() <= budget);
    }
    let held = std::mem::take(&mut pair.nodes[SERVER].requests);
    assert!((9..=11).contains(&held.len()), "{} requests of 100 kB", held.len());
    let now = pair.now;
    for request in held {
        assert!(!pair.endpoint(SERVER).is_active(request.rpc));
        assert!(pair.endpoint(SERVER).reply(now, request.rpc, body(10, 1)).is_err());
    }
    assert_eq!(pair.endpoint(SERVER).held_bytes(), 0);
}
