//! Two nodes with the receive buffers that an unprivileged process has on a stock machine.

mod pair;

use apus::{Incoming, More};
use pair::{Pair, pair_with, pattern, serve};

/// `net.core.rmem_max` by default.
const STOCK: usize = 212_992;

/// Calls with requests of these lengths, so many outstanding, and answers of others.
fn exchange(lengths: &[usize], answer: usize, outstanding: u64, calls: u64) {
    let Pair { client, server, service, address } = pair_with(|config| {
        config.udp().receive_buffer(STOCK);
    });
    serve(&service, move |mut request| {
        let mut body = request.take_body().to_vec();
        body.resize(answer, 1);
        let _ = request.reply(body);
    });
    let socket = client.socket().unwrap();
    let length = |call: u64| lengths[call as usize % lengths.len()];
    let (mut next, mut ended) = (0, 0);
    while ended < calls {
        while next < calls && next - ended < outstanding {
            socket.send(address, pattern(next, length(next)), next, More::No).unwrap();
            next += 1;
        }
        let Incoming::Response { cookie, result } = socket.recv().unwrap() else {
            panic!("nobody sends us requests");
        };
        let mut expected = pattern(cookie, length(cookie));
        expected.resize(answer, 1);
        assert!(result.unwrap() == expected, "call {cookie}");
        ended += 1;
    }
    for node in [client, server] {
        let link = node.stats().link;
        assert_eq!(link.receive_buffer_drops, 0, "{lengths:?} {answer} {outstanding}: {link:?}");
    }
}

#[test]
fn long_requests_overflow_nothing() {
    exchange(&[500_000], 100, 1, 50);
    exchange(&[500_000], 100, 8, 200);
    exchange(&[2_000_000, 70_000], 100, 16, 60);
}

#[test]
fn long_messages_both_ways_overflow_nothing() {
    exchange(&[500_000], 500_000, 8, 200);
}

#[test]
fn messages_of_all_lengths_overflow_nothing() {
    exchange(&[100, 1_000, 1_500, 4_200, 9_000, 20_000, 66_000, 300_000], 9_000, 64, 3_000);
}
