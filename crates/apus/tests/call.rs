//! A call gets its response, whatever the size, the delivery mode, the thread.

use std::thread;

use crate::pair;
use crate::pair::{acquaint, pair, pattern, serve_echo};
use apus::Delivery;

#[test]
fn messages_of_any_size_come_back_as_they_went() {
    let pair = pair(Delivery::suspend());
    serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    for length in [0, 1, 2, 99, 1_400, 1_500, 40_000, 65_000, 70_000, 1_000_000, 5_000_000] {
        let body = pattern(length as u64, length);
        let response = client.call(pair.address, body.clone()).wait().unwrap();
        assert!(response == body, "{length} bytes");
    }
}

#[test]
fn every_delivery_mode_delivers() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        for length in [0, 1, 100, 10_000, 300_000] {
            for seed in 0..20 {
                let body = pattern(seed, length);
                let response = client.call(pair.address, body.clone()).wait().unwrap();
                assert!(response == body, "{delivery}: {length} bytes");
            }
        }
    }
}

#[test]
fn both_sides_may_differ_in_delivery() {
    for (client_node, server_node) in [
        (Delivery::fullbusy(), Delivery::base()),
        (Delivery::suspend(), Delivery::fullbusy()),
        (Delivery::base(), Delivery::suspend()),
    ] {
        let (client_node, server_node) =
            (pair(client_node).client_node, pair(server_node).server_node);
        let pair = pair::around(client_node, server_node);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        for seed in 0..50 {
            let body = pattern(seed, 200);
            assert_eq!(client.call(pair.address, body.clone()).wait().unwrap(), body);
        }
    }
}

#[test]
fn many_threads_share_one_socket_on_both_sides() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        for _ in 0..3 {
            serve_echo(&pair.service);
        }
        let client = pair.client_node.client().unwrap();
        thread::scope(|scope| {
            for thread in 0..6 {
                let (client, address) = (&client, pair.address);
                scope.spawn(move || {
                    for round in 0..150 {
                        let body = pattern(thread * 1_000 + round, 50 + 37 * (round as usize % 40));
                        assert_eq!(client.call(address, body.clone()).wait().unwrap(), body);
                    }
                });
            }
        });
    }
}

#[test]
fn a_node_can_call_itself() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.server_node.client().unwrap();
        for seed in 0..50 {
            let body = pattern(seed, 500);
            assert_eq!(client.call(pair.address, body.clone()).wait().unwrap(), body);
        }
    }
}

#[test]
fn a_server_may_call_on_while_it_serves() {
    let back = pair(Delivery::suspend());
    serve_echo(&back.service);
    let front = pair(Delivery::suspend());
    let (onward, next) = (front.server_node.client().unwrap(), back.address);
    pair::serve(&front.service, move |mut request| {
        let response = onward.call(next, request.take_body()).wait().unwrap();
        request.reply(response).unwrap();
    });
    let client = front.client_node.client().unwrap();
    for seed in 0..50 {
        let body = pattern(seed, 300);
        assert_eq!(client.call(front.address, body.clone()).wait().unwrap(), body);
    }
}

#[test]
fn a_node_that_is_known_is_connected_at_once() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        acquaint(&pair);
        let client = pair.client_node.client().unwrap();
        for _ in 0..3 {
            client.connect(pair.address).wait().unwrap();
        }
    }
}
