//! Many responses for one client at once.

use crate::pair::*;
use apus_wire::{Data, DataFlags, Packet, PacketType};

/// Makes `calls` calls from node 0 to five servers that answer with `response` bytes.
fn gather(calls: usize, response: usize) -> Net {
    let mut net = Net::new(6, |_, config| {
        config.incast_threshold(20).incast_unscheduled(400);
    });
    for n in 0..5 {
        net.call_from(0, n + 1, body(100, 0));
        net.nodes[n + 1].app = App::Answer(Box::new(move |_| body(response, 1)));
        net.drive();
    }
    net.sent.clear();
    for n in 0..calls {
        net.call_from(0, 1 + n % 5, body(100, n as u64));
    }
    net.drive();
    assert_eq!(net.counters(0).calls_completed as usize, calls + 5);
    net
}

fn data(net: &Net, node: usize) -> impl Iterator<Item = (Data, usize)> {
    net.sent_by(node, PacketType::Data).into_iter().map(|sent| match sent.packet() {
        Packet::Data { data, payload, .. } => (data, payload.len()),
        _ => unreachable!("asked for DATA"),
    })
}

//= docs/protocol.md#incast-1
#[test]
fn calls_beyond_the_threshold_are_marked() {
    let net = gather(50, 10);
    let marked = data(&net, 0).filter(|(data, _)| data.flags.contains(DataFlags::INCAST)).count();
    assert_eq!(marked, 30);
    assert_eq!(net.counters(0).calls_in_incast, 30);
    assert_eq!(
        data(&gather(20, 10), 0).filter(|(data, _)| data.flags != DataFlags::NONE).count(),
        0
    );
}

//= docs/protocol.md#incast-2
#[test]
fn marked_calls_are_answered_with_few_unscheduled_bytes() {
    let net = gather(100, 10_000);
    let (mut small, mut whole) = (0, 0);
    for server in 1..6 {
        for (data, length) in data(&net, server).filter(|(data, _)| data.offset == 0) {
            match (data.incoming, length) {
                (10_000, 1_416) => whole += 1,
                (400, 400) => small += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((whole, small), (20, 80));
}

//= docs/protocol.md#incast-2
#[test]
fn a_response_without_any_unscheduled_byte_would_never_come() {
    let mut pair = Pair::acquainted(|config| {
        config.incast_threshold(1).incast_unscheduled(0).unscheduled(0);
    });
    pair.answer_with(20_000);
    let calls = [pair.call(5_000), pair.call(5_000), pair.call(5_000)];
    pair.drive();
    calls.iter().for_each(|&call| assert_eq!(pair.response(call).len(), 20_000));
}
