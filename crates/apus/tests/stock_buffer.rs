//! Two nodes with the receive buffers that an unprivileged process has on a stock machine.

mod pair;

use std::sync::{Mutex, PoisonError};

use apus::{Flush, Response};
use pair::{Pair, pair_with, pattern, serve};

/// `net.core.rmem_max` by default.
const STOCK: usize = 212_992;

/// Two nodes at a time, since there may be no more processors.
static MACHINE: Mutex<()> = Mutex::new(());

/// Where a machine takes a node's processor away for longer than its peer's RTO, the node is asked for data that it has sent, and
/// that comes twice. So one run of these must be without a drop; what may be under way is tested to the byte in apus-proto.
const RUNS: usize = 3;

fn exchanges(lengths: &[usize], answer: usize, outstanding: u64, calls: u64) {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut drops = (0..RUNS).map(|_| exchange(lengths, answer, outstanding, calls));
    assert!(drops.any(|drops| drops == 0), "{lengths:?} {answer} {outstanding}");
}

/// Calls with requests of these lengths, so many outstanding, and answers of others. How many datagrams found no room.
fn exchange(lengths: &[usize], answer: usize, outstanding: u64, calls: u64) -> u64 {
    let Pair { client_node, server_node, service, address } = pair_with(|config| {
        config.receive_buffer(STOCK);
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
    [client_node, server_node].map(|node| node.stats().link.receive_buffer_drops).iter().sum()
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
