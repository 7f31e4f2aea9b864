//! Two nodes with the receive buffers that an unprivileged process has on a stock machine.

mod pair;

use std::sync::{Mutex, PoisonError};

use apus::{Flush, Links, Response};
use pair::{Pair, pair_with, pattern, serve, skips};

/// The default of `net.core.rmem_max`.
const STOCK: usize = 212_992;

/// Lets one pair of nodes run at a time, since the machine may have only two processors.
static MACHINE: Mutex<()> = Mutex::new(());

/// Number of runs, of which one must drop nothing. If a node loses its processor for longer than its peer's RTO, the peer requests
/// data that the node has sent already, and receives it twice. Such copies may overflow the buffer, so a run with drops and copies
/// proves nothing. apus-proto tests the bytes in flight exactly.
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

/// The result of a run.
struct Outcome {
    /// Number of datagrams that were dropped without room in the buffer.
    drops: u64,
    /// Number of packets that were received again.
    copies: u64,
}

/// Makes calls with requests of these lengths and answers of length `answer`, `outstanding` at a time.
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
