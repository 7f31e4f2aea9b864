//! Two nodes with the receive buffers that an unprivileged process has on a stock machine.

mod pair;

use std::sync::{Mutex, PoisonError};

use apus::{Flush, Links, Response};
use pair::{Pair, pair_with, pattern, serve, skips};

/// `net.core.rmem_max` by default.
const STOCK: usize = 212_992;

/// Two nodes at a time, since there may be no more processors.
static MACHINE: Mutex<()> = Mutex::new(());

/// Where a machine takes a node's processor away for longer than its peer's RTO, the node is asked for data that it has sent, and
/// that comes twice. Such copies may overflow the buffer: a run with them counts only if nothing was dropped. What may be under way is
/// tested to the byte in apus-proto.
const RUNS: usize = 3;

fn exchanges(lengths: &[usize], answer: usize, outstanding: u64, calls: u64) {
    if skips("the engine has the link") {
        return;
    }
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..RUNS {
        let Outcome { drops, copies } = exchange(lengths, answer, outstanding, calls);
        if drops == 0 {
            return;
        }
        assert!(copies > 0, "{lengths:?} {answer} {outstanding}: {drops} drops, and no copy came");
    }
    panic!("{lengths:?} {answer} {outstanding}: no run of {RUNS} without a drop");
}

/// What came of a run.
struct Outcome {
    /// Datagrams that found no room.
    drops: u64,
    /// Packets that came once more.
    copies: u64,
}

/// Calls with requests of these lengths, some of them outstanding at a time, and answers of another length.
fn exchange(lengths: &[usize], answer: usize, outstanding: u64, calls: u64) -> Outcome {
    let Pair { client_node, server_node, service, address } = pair_with(|config| {
        // Shared memory has no receive buffer.
        config.receive_buffer(STOCK).link(Links::Udp);
    });
    serve(&service, move |mut request| {
        let mut body = request.take_body().to_vec();
        body.resize(answer, 1);
        let _ = request.reply(body);
    });
    let client = client_node.client().unwrap();
    let length = |call: u64| lengths[call as usize % lengths.len()];
    let (mut next, mut ended) = (0, 0);
    while ended < calls {
        while next < calls && next - ended < outstanding {
            client.send(address, pattern(next, length(next)), next, Flush::Now).unwrap();
            next += 1;
        }
        let Response { cookie, result, .. } = client.recv().unwrap();
        let mut expected = pattern(cookie, length(cookie));
        expected.resize(answer, 1);
        assert!(result.unwrap() == expected, "call {cookie}");
        ended += 1;
    }
    let stats = [client_node, server_node].map(|node| node.stats());
    assert!(stats.iter().all(|it| it.link.datagrams_received > calls), "they go by UDP");
    Outcome {
        drops: stats.iter().map(|it| it.link.receive_buffer_drops).sum(),
        copies: stats.iter().map(|it| it.protocol.duplicate_packets).sum(),
    }
}

#[test]
fn long_requests_overflow_nothing() {
    exchanges(&[500_000], 100, 1, 50);
    exchanges(&[500_000], 100, 8, 200);
    exchanges(&[2_000_000, 70_000], 100, 16, 60);
}

#[test]
fn long_messages_both_ways_overflow_nothing() {
    exchanges(&[500_000], 500_000, 8, 200);
}

#[test]
fn messages_of_all_lengths_overflow_nothing() {
    exchanges(&[100, 1_000, 1_500, 4_200, 9_000, 20_000, 66_000, 300_000], 9_000, 64, 3_000);
}
