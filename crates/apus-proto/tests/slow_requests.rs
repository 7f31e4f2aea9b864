//! Requests that arrive slowly make room for others.

use std::collections::BTreeMap;

use crate::pair::*;
use apus_proto::{CallFailed, Time};
use apus_wire::PacketType;

const SERVER: usize = 0;
/// Last of the slow clients, which are nodes 1 to this one.
const SLOW: usize = 8;
/// A client that is not slow.
const HONEST: usize = 9;

/// Packets of a slow client that pass at once; later ones pass one per half second.
const AT_ONCE: u32 = 75;

fn net(total: u64) -> Net {
    let mut net = Net::new(10, |node, config| {
        if node == SERVER {
            config.total_budget(total).socket_budget(total);
        }
    });
    net.nodes[SERVER].app = App::Answer(Box::new(|_| body(1, 1)));
    let mut passed: BTreeMap<usize, (u32, Time)> = BTreeMap::new();
    net.hook = Some(Box::new(move |passing| {
        if !(1..=SLOW).contains(&passing.from) || !passing.is(PacketType::Data, passing.from) {
            return Fate::Pass;
        }
        let (count, last) = passed.entry(passing.from).or_insert((0, Time::ZERO));
        if *count >= AT_ONCE && passing.at.saturating_since(*last) < millis(500) {
            return Fate::Drop;
        }
        (*count, *last) = (*count + 1, passing.at);
        Fate::Pass
    }));
    net
}

//= docs/protocol.md#hostile-11
#[test]
fn clients_that_send_a_byte_now_and_then_keep_no_other_one_away() {
    let mut net = net(1 << 20);
    let slow: Vec<_> =
        (1..=SLOW).map(|node| (node, net.call_from(node, SERVER, body(150_000, 1)))).collect();
    net.drive_for(millis(600));
    assert!(net.nodes[SERVER].endpoint.held_bytes() > 700_000, "they fill the budget");
    let mut calls = Vec::new();
    for length in [1, 30_000, 200_000].repeat(20) {
        calls.push(net.call_from(HONEST, SERVER, body(length, 2)));
        net.drive_for(millis(100));
    }
    let answered = |call: &&_| matches!(net.outcome(HONEST, **call), Some(Outcome::Response(_)));
    assert_eq!(calls.iter().filter(answered).count(), calls.len());
    assert!(net.counters(SERVER).requests_too_slow > 0);
    // They received the report that there is no room, and nothing more.
    for (node, call) in slow {
        match net.outcome(node, call) {
            None | Some(Outcome::Response(_)) => {}
            Some(Outcome::Connected) => unreachable!("it is no connection"),
            Some(Outcome::Failed(error)) => {
                assert!(
                    matches!(error, CallFailed::Overloaded { .. } | CallFailed::PeerTimeout { .. }),
                    "{error:?}"
                );
            }
        }
    }
}

//= docs/protocol.md#hostile-11
#[test]
fn a_slow_request_is_completed_while_there_is_room() {
    let mut net = net(100 << 20);
    let slow: Vec<_> =
        (1..=SLOW).map(|node| (node, net.call_from(node, SERVER, body(120_000, 1)))).collect();
    for _ in 0..50 {
        net.call_from(HONEST, SERVER, body(30_000, 2));
        net.drive_for(millis(500));
    }
    assert_eq!(net.counters(SERVER).requests_too_slow, 0);
    for (node, call) in slow {
        assert!(matches!(net.outcome(node, call), Some(Outcome::Response(_))));
    }
}
