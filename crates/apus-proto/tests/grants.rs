//! The receiver's half: the choice of senders, and the offsets of grants.

use crate::pair::*;
use apus_proto::{Config, Time};
use apus_wire::{Data, DataFlags, Header, Packet, PacketType, Priority, RpcId};

/// Returns the GRANTs of a node: destination, offset and level.
fn grants(net: &Net, node: usize) -> Vec<(usize, u32, Priority)> {
    let grants = net.sent_by(node, PacketType::Grant);
    grants
        .iter()
        .map(|sent| {
            let Packet::Grant { grant, .. } = sent.packet() else { panic!("asked for GRANTs") };
            let to = net.nodes.iter().position(|node| node.path == sent.to).expect("a node");
            (to, grant.offset, grant.priority)
        })
        .collect()
}

/// `n` nodes call node 0, which answers with one byte.
fn incast(lengths: &[usize], change: impl Fn(&mut Config)) -> (Net, Vec<apus_proto::RpcKey>) {
    let mut net = Net::new(lengths.len() + 1, |_, config| {
        config.fifo_share(0);
        change(config);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    let calls = lengths.iter().enumerate();
    let calls = calls.map(|(n, &length)| net.call_from(n + 1, 0, body(length, 1))).collect();
    (net, calls)
}

/// Returns the maximum over the whole run of the granted bytes that have not arrived, computed from the packets alone.
fn most_outstanding(net: &Net, receiver: usize, unscheduled: u64) -> u64 {
    let mut granted = std::collections::BTreeMap::new();
    let mut arrived = std::collections::BTreeMap::new();
    let mut most = 0;
    for sent in &net.sent {
        match sent.packet() {
            Packet::Grant { grant, .. } if sent.from == receiver => {
                granted.insert(sent.to, u64::from(grant.offset));
            }
            Packet::Data { data, payload, .. } if sent.from != receiver => {
                let end = u64::from(data.offset) + payload.len() as u64;
                arrived.insert(path(sent.from), end);
            }
            _ => {}
        }
        let outstanding = |(to, &granted): (_, &u64)| {
            granted.saturating_sub(*arrived.get(to).unwrap_or(&unscheduled))
        };
        most = most.max(granted.iter().map(outstanding).sum());
    }
    most
}

//= docs/protocol.md#grant-1
#[test]
fn a_message_within_its_unscheduled_bytes_needs_no_grant() {
    let (mut net, _) = incast(&[39_648], |_| {});
    net.drive();
    assert_eq!(grants(&net, 0), []);
    let (mut net, _) = incast(&[50_000], |_| {});
    net.drive();
    assert_eq!(grants(&net, 0).last().map(|grant| grant.1), Some(50_000));
}

//= docs/protocol.md#grant-2
#[test]
fn the_shortest_rest_is_finished_first() {
    let (mut net, calls) = incast(&[900_000, 300_000, 600_000], |config| {
        config.overcommitment(1);
    });
    net.drive();
    let mut order = [0, 1, 2];
    order.sort_by_key(|&n| net.ended_at(n + 1, calls[n]));
    assert_eq!(order, [1, 2, 0]);
    // The messages are granted to the end, one after the other.
    let mut senders: Vec<_> = grants(&net, 0).iter().map(|grant| grant.0).collect();
    senders.dedup();
    assert_eq!(senders.last_chunk(), Some(&[2, 3, 1]));
}

//= docs/protocol.md#grant-2
#[test]
fn one_message_of_a_sender_is_granted_at_a_time() {
    let mut net = Net::new(2, |_, config| {
        config.fifo_share(0);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    let long = net.call_from(1, 0, body(500_000, 1));
    let short = net.call_from(1, 0, body(200_000, 2));
    net.drive();
    assert!(net.ended_at(1, short) < net.ended_at(1, long));
    let ids: Vec<_> =
        net.sent_by(0, PacketType::Grant).iter().map(|s| *s.packet().header()).collect();
    let changes = ids.windows(2).filter(|pair| pair[0] != pair[1]).count();
    // The long one may have been granted before a packet of the short one was received.
    assert!(changes <= 2, "{changes} changes");
}

//= docs/protocol.md#grant-2
#[test]
fn no_more_senders_than_the_overcommitment_are_granted() {
    for degree in [1, 2, 4] {
        let (mut net, calls) = incast(&[400_000; 8], |config| {
            config.overcommitment(degree);
        });
        net.drive();
        assert!(calls.iter().enumerate().all(|(n, &call)| net.outcome(n + 1, call).is_some()));
        // In the second half of the run, each granted sender is granted to the end before the next.
        let granted = grants(&net, 0);
        let mut unfinished = std::collections::BTreeSet::new();
        for (to, offset, _) in &granted[granted.len() / 2..] {
            unfinished.insert(to);
            assert!(unfinished.len() <= degree, "{unfinished:?} at once");
            if *offset == 400_000 {
                unfinished.remove(to);
            }
        }
    }
}

//= docs/protocol.md#grant-3
#[test]
fn no_message_is_granted_further_ahead_than_its_window() {
    let (mut net, _) = incast(&[5_000_000], |_| {});
    net.drive();
    let most = most_outstanding(&net, 0, 40_000);
    assert!(most <= 200_000 + 1_416, "{most}");
    let (mut net, _) = incast(&[2_000_000; 3], |_| {});
    net.drive();
    let most = most_outstanding(&net, 0, 40_000);
    assert!(most <= 400_000, "{most} over all");
}

//= docs/protocol.md#grant-4
#[test]
fn grants_are_worth_a_packet() {
    let (mut net, _) = incast(&[1_000_000; 3], |_| {});
    net.drive();
    let mut before = [40_000; 4];
    for (to, offset, _) in grants(&net, 0) {
        let step = offset - std::mem::replace(&mut before[to], offset);
        assert!(step >= 1_416 || offset == 1_000_000, "a grant of {step} bytes");
    }
}

//= docs/protocol.md#grant-5
#[test]
fn the_oldest_message_has_its_share() {
    let run = |share| {
        let mut net = Net::new(5, |_, config| {
            config.fifo_share(share).overcommitment(1);
        });
        net.keep_sent = false;
        net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
        let old = net.call_from(1, 0, body(2_000_000, 1));
        net.drive_for(micros(100));
        // Shorter messages, always one more than are granted.
        for n in 0..30 {
            for from in 2..5 {
                net.call_from(from, 0, body(1_000_000, n));
            }
        }
        net.drive_until(|net| net.outcome(1, old).is_some());
        (net.ended_at(1, old), net.counters(0).fifo_granted_bytes)
    };
    let ((starved, nothing), (shared, some)) = (run(0), run(200));
    assert_eq!(nothing, 0);
    assert!(some > 500_000, "{some} bytes");
    assert!(shared.as_nanos() < starved.as_nanos() * 3 / 4, "{shared} {starved}");
}

//= docs/protocol.md#grant-6
#[test]
fn grants_stay_below_three_eighths_of_the_receive_buffer() {
    for share in [0, 500] {
        let (mut net, _) = incast(&[1_000_000; 6], |config| {
            config.fifo_share(share).unscheduled(2_000);
        });
        net.endpoint(0).set_receive_capacity(100_000);
        net.drive();
        let most = most_outstanding(&net, 0, 2_832);
        assert!(most <= 37_500, "{most} with a share of {share}");
        assert_eq!(net.counters(0).requests, 6);
    }
}

#[test]
fn a_tiny_receive_buffer_slows_but_never_stops() {
    let (mut net, _) = incast(&[100_000; 9], |_| {});
    net.endpoint(0).set_receive_capacity(0);
    net.drive();
    assert_eq!(net.counters(0).requests, 9);
}

//= docs/protocol.md#grant-6
#[test]
fn long_packets_fit_the_receive_buffer_whole() {
    const PACKET: u64 = 65_451;
    let (mut net, _) =
        incast(&[15, 16, 17, 18].map(|packets| packets * PACKET as usize), |config| {
            config.unscheduled(2_000);
        });
    net.mtu = PACKET as usize + 56;
    // The kernel's buffer for a program that requests half of it: the kernel doubles the size, for headers and unused memory.
    net.endpoint(0).set_receive_capacity(212_992);
    net.drive();
    let granted = most_outstanding(&net, 0, PACKET);
    // Two packets and the kernel's descriptors, and no more.
    assert_eq!(granted, 2 * PACKET, "{} bytes of the buffer", 2 * (PACKET + 1_024));
    assert_eq!(net.counters(0).requests, 4);
}

//= docs/protocol.md#grant-7
#[test]
fn a_sender_that_stands_still_is_not_granted_more_and_more() {
    let mut net = Net::new(2, |_, config| {
        config.unscheduled(2_000);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    let calls: Vec<_> = (0..10).map(|n| net.call_from(1, 0, body(300_000, n))).collect();
    net.drive_until(|net| net.counters(0).granted_bytes > 0);
    // The sender's process is stopped for a while.
    let until = net.now + millis(60);
    net.hook = Some(Box::new(move |passing| {
        if passing.from == 1 && passing.at < until {
            Fate::Late(until.saturating_since(passing.at))
        } else {
            Fate::Pass
        }
    }));
    net.drive_for(millis(1));
    let granted = net.counters(0).granted_bytes;
    net.drive_for(millis(50));
    assert_eq!(net.counters(0).granted_bytes, granted);
    net.hook = None;
    net.drive();
    calls.iter().for_each(|&call| assert!(net.outcome(1, call).is_some()));
}

//= docs/protocol.md#grant-7
#[test]
fn a_sender_of_which_one_message_does_not_come_goes_on_with_the_others() {
    let mut net = Net::new(2, |_, config| {
        config.unscheduled(2_000);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    // Only the granted bytes of the first message are lost, for long.
    let first = net.call_from(1, 0, body(290_000, 1));
    let until = net.now + millis(200);
    net.hook = Some(Box::new(move |passing| match passing.data(1) {
        Some(data)
            if data.message_length == 290_000 && data.offset > 2_000 && passing.at < until =>
        {
            Fate::Drop
        }
        _ => Fate::Pass,
    }));
    let others: Vec<_> = (0..10).map(|n| net.call_from(1, 0, body(300_000, n))).collect();
    net.drive_for(millis(40));
    others.iter().for_each(|&call| assert!(net.outcome(1, call).is_some()));
    net.drive();
    assert!(net.outcome(1, first).is_some());
}

//= docs/protocol.md#grant-7
#[test]
fn a_sender_that_says_anything_is_granted_again_at_once() {
    let mut net = Net::new(2, |_, config| {
        config.unscheduled(2_000).window_max(50_000);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    net.call_from(1, 0, body(290_000, 1));
    net.call_from(1, 0, body(300_000, 2));
    // Only the beginning of the first message arrives, and its sender does not probe.
    net.hook = Some(Box::new(|passing| match passing.data(1) {
        Some(data) if data.message_length == 290_000 && data.offset > 0 => Fate::Drop,
        _ if passing.is(PacketType::Resend, 1) => Fate::Drop,
        _ => Fate::Pass,
    }));
    net.drive_until(|net| !net.sent_by(0, PacketType::Resend).is_empty());
    let (asked, granted) = (net.now, net.counters(0).granted_bytes);
    // The sender's sign of life is a grant for a message in the other direction.
    net.call_from(0, 1, body(100_000, 3));
    net.drive_until(|net| net.counters(0).granted_bytes > granted);
    let granted = net.sent_by(1, PacketType::Grant)[0].at; // A round trip takes 10 µs.
    assert!(granted > asked && net.now.saturating_since(granted) < micros(50));
}

//= docs/protocol.md#grant-7
#[test]
fn all_messages_of_a_sender_that_is_gone_are_given_up() {
    let mut net = Net::new(2, |_, config| {
        config.unscheduled(2_000).peer_timeout(millis(100));
    });
    (0..10).for_each(|n| _ = net.call_from(1, 0, body(300_000, n)));
    net.drive_until(|net| net.counters(0).granted_bytes > 0);
    net.nodes[1].up = false;
    net.drive_for(secs(2));
    assert_eq!(net.active(0), 0);
}

//= docs/protocol.md#grant-6
//= docs/protocol.md#grant-9
#[test]
fn messages_that_waited_for_long_are_not_asked_for_all_at_once_where_the_buffer_is_small() {
    let mut net = Net::new(2, |_, config| {
        config.unscheduled(2_000).fifo_share(0);
    });
    net.mtu = 65_507;
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    net.endpoint(0).set_receive_capacity(212_992);
    let calls: Vec<_> = (0..40).map(|n| net.call_from(1, 0, body(300_000, n))).collect();
    // One packet per 2 ms: the last messages wait for more than 100 ms.
    let mut busy_until = net.now;
    net.hook = Some(Box::new(move |passing| match passing.data(1) {
        Some(data) if data.offset > 0 => {
            busy_until = busy_until.max(passing.at) + millis(2);
            Fate::Late(busy_until.saturating_since(passing.at))
        }
        _ => Fate::Pass,
    }));
    let mut most = 0;
    while calls.iter().any(|&call| net.outcome(1, call).is_none()) {
        net.drive_for(millis(5));
        most = most.max(net.endpoint(0).load().expected);
    }
    assert!(most <= 4 * 65_451, "{most}");
}

//= docs/protocol.md#grant-7
#[test]
fn a_sender_that_falls_silent_gives_way_to_the_others() {
    let (mut net, calls) = incast(&[100_000, 3_000_000], |config| {
        config.overcommitment(1).max_incoming(100_000).unscheduled(2_000);
    });
    net.drive_until(|net| net.counters(0).granted_bytes > 0);
    net.nodes[1].up = false;
    net.hook = Some(Box::new(|passing| if passing.from == 1 { Fate::Drop } else { Fate::Pass }));
    let fell_silent = net.now;
    net.drive_until(|net| net.outcome(2, calls[1]).is_some());
    let waited = net.now.saturating_since(fell_silent);
    assert!(waited < millis(200), "the other sender waited {waited:?}");
    net.drive_until(|net| net.active(0) == 0);
}

//= docs/protocol.md#grant-6
#[test]
fn a_packet_may_be_larger_than_the_window() {
    let (mut net, calls) = incast(&[130_903, 200_000], |config| {
        config.unscheduled(3_000);
    });
    net.mtu = 65_507;
    net.endpoint(0).set_receive_capacity(30_000);
    net.drive();
    assert!(calls.iter().enumerate().all(|(n, &call)| net.outcome(n + 1, call).is_some()));
    assert_eq!(net.counters(0).requests, 2);
}

#[test]
fn late_repeated_and_overshooting_grants_do_no_harm() {
    let mut pair = Pair::new();
    pair.hook = Some(Box::new(|passing| match passing.packet {
        Packet::Grant { .. } => Fate::Twice(micros(15)),
        _ => Fate::Pass,
    }));
    let call = pair.call(500_000);
    pair.drive();
    pair.response(call);
    assert!(pair.counters(CLIENT).grants_late > 0);
    pair.assert_clean();
}

/// Returns a packet of a message that a host at `from` claims to send, with no message behind it.
fn forged(id: u64, length: u32, version: u16) -> Vec<u8> {
    let header =
        Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id: RpcId(id << 8 | 2) };
    let data = Data {
        message_length: length,
        incoming: 1_400,
        ack: None,
        cutoff_version: version,
        retransmit: false,
        flags: DataFlags::NONE,
        offset: 0,
    };
    data_packet(header, data, &[0; 1_400])
}

//= docs/protocol.md#grant-7
//= docs/protocol.md#grant-8
#[test]
fn forged_messages_that_only_repeat_themselves_hold_no_place() {
    for every in [millis(1), millis(10), millis(40)] {
        let mut net = Net::new(2, |_, _| {});
        net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
        net.call_from(1, 0, body(100, 1));
        net.call_from(0, 1, body(100, 1));
        net.drive();
        let call = net.call_from(1, 0, body(2_000_000, 1));
        let began = net.now;
        while net.outcome(1, call).is_none() && net.now.saturating_since(began) < secs(3) {
            for n in 0..8 {
                net.inject(native_path(100 + n), 0, &forged(1, 1_000_000, 0));
            }
            net.drive_for(every);
        }
        assert!(net.outcome(1, call).is_some(), "{} bytes", net.counters(0).data_bytes_received);
        let took = net.ended_at(1, call).saturating_since(began);
        assert!(took < millis(10), "{took:?} every {every:?}");
    }
}

//= docs/protocol.md#grant-7
#[test]
fn senders_whose_data_does_not_come_go_behind_the_others() {
    let mut net = Net::new(10, |_, config| {
        config.peer_timeout(secs(10));
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    for from in 1..10 {
        net.call_from(from, 0, body(100, 1));
    }
    net.drive();
    // Eight clients send the first packets of two messages each, again and again, and never the granted bytes.
    net.hook = Some(Box::new(|passing| match passing.data(passing.from) {
        Some(data) if passing.from < 9 && data.offset >= 1_416 => Fate::Drop,
        _ if passing.is(PacketType::Busy, passing.from) => Fate::Drop,
        _ => Fate::Pass,
    }));
    for from in 1..9 {
        net.call_from(from, 0, body(1_000_000, 1));
        net.call_from(from, 0, body(1_100_000, 2));
    }
    net.drive_for(micros(100));
    let call = net.call_from(9, 0, body(2_000_000, 1));
    let began = net.now;
    let first = |sent: &&Sent| matches!(sent.packet(), Packet::Data { data, .. } if data.offset == 0 && data.message_length > 100_000);
    let repeated: Vec<Sent> = net.sent.iter().filter(first).cloned().collect();
    while net.outcome(9, call).is_none() && net.now.saturating_since(began) < secs(3) {
        repeated.iter().filter(|sent| sent.from < 9).for_each(|sent| net.repeat(sent));
        net.drive_for(millis(1));
    }
    assert!(net.outcome(9, call).is_some(), "{} bytes", net.counters(0).data_bytes_received);
    let took = net.ended_at(9, call).saturating_since(began);
    assert!(took < millis(20), "{took:?}");
}

//= docs/protocol.md#grant-6
#[test]
fn one_long_path_does_not_raise_the_limit_of_the_others() {
    let mut net = Net::new(6, |_, config| {
        config.fifo_share(0).confirm_peers(false).link_mbps(100_000);
    });
    net.keep_sent = false;
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    // Node 1 is 2 ms away and sends fast.
    net.hook = Some(Box::new(|passing| {
        if passing.from == 1 || passing.to == 1 { Fate::Late(millis(1)) } else { Fate::Pass }
    }));
    for _ in 0..3 {
        net.call_from(1, 0, body(5_000_000, 1));
        net.drive();
    }
    let held = |net: &mut Net, calls: &[(usize, usize)]| {
        for &(from, length) in calls {
            net.call_from(from, 0, body(length, 1));
        }
        let mut most = 0;
        for _ in 0..500 {
            net.drive_for(micros(20));
            most = most.max(net.endpoint(0).load().expected);
        }
        net.drive();
        most
    };
    let far = held(&mut net, &[(1, 5_000_000)]);
    assert!(far > 800_000, "its own limit is {far}");
    let others: Vec<_> = (2..6).map(|from| (from, 1_000_000)).collect();
    let near = held(&mut net, &others);
    assert!(near <= 400_000, "{near} of the others");
}

//= docs/protocol.md#grant-5
#[test]
fn the_oldest_message_has_its_share_when_those_granted_trickle() {
    let mut net = Net::new(10, |_, config| {
        config.confirm_peers(false);
    });
    net.keep_sent = false;
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    // Eight senders of shorter messages send one packet per 2 ms each, however much they are granted.
    let mut next = [Time::ZERO; 10];
    net.hook = Some(Box::new(move |passing| match passing.data(passing.from) {
        Some(data) if passing.from < 9 && data.offset > 0 => {
            let at = next[passing.from].max(passing.at) + millis(2);
            next[passing.from] = at;
            Fate::Late(at.saturating_since(passing.at))
        }
        _ => Fate::Pass,
    }));
    let old = net.call_from(9, 0, body(4_000_000, 1));
    net.drive_for(micros(20));
    for from in 1..9 {
        net.call_from(from, 0, body(2_000_000, 1));
    }
    net.drive_for(millis(500));
    let took = net.outcome(9, old).map(|_| net.ended_at(9, old));
    assert!(took.is_some(), "{} bytes out of turn", net.counters(0).fifo_granted_bytes);
}

//= docs/protocol.md#grant-9
#[test]
fn requests_that_were_given_up_meanwhile_do_not_delay_a_live_one() {
    let mut pair = Pair::acquainted(|_| {});
    pair.answer_with(1);
    pair.hook =
        Some(Box::new(
            |passing| {
                if passing.is(PacketType::Grant, SERVER) { Fate::Drop } else { Fate::Pass }
            },
        ));
    let dead: Vec<_> = (0..54).map(|_| pair.call(200_000)).collect();
    pair.drive_for(millis(1));
    pair.hook = None;
    assert_eq!(pair.active(SERVER), 54);
    // The server is stopped for 2 s, and its client gives the calls up without a packet to it.
    pair.nodes[SERVER].up = false;
    for &call in &dead {
        pair.endpoint(CLIENT).abort(call);
    }
    pair.now = pair.now + secs(2);
    pair.nodes[SERVER].up = true;
    let (began, live) = (pair.now, pair.call(200_000));
    pair.drive_for(secs(1));
    let took = pair.ended_at(CLIENT, live).saturating_since(began);
    assert!(took < millis(20), "{took:?}");
    pair.drive();
    assert_eq!(pair.active(SERVER), 0);
}
