//! Loss, duplication and reordering on both sides: every call ends, every byte is right, and no request is executed twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pair::{Pair, around, pattern, serve};
use apus::net::{FaultLink, Faults, UdpConfig, UdpLink};
use apus::{Config, Delivery, Flush, Node, Response};

const CALLS: u64 = 3_000;
const OUTSTANDING: u64 = 64;

#[test]
fn mixed_calls_survive_a_bad_network() {
    for (seed, delivery) in (1..).zip(Delivery::ALL) {
        let Pair { client_node, server_node, service, address } =
            around(bad_node(delivery, seed), bad_node(delivery, seed + 100));
        let executed = Arc::new(Mutex::new(HashMap::new()));
        let record = Arc::clone(&executed);
        serve(&service, move |request| {
            let (call, answer) = answer_to(request.body());
            *record.lock().unwrap().entry(call).or_insert(0) += 1;
            let _ = request.reply(answer);
        });
        let client = client_node.client().unwrap();
        let mut next = 0;
        let mut ended = 0;
        while ended < CALLS {
            while next < CALLS && next - ended < OUTSTANDING {
                client.send(address, numbered(next), next, Flush::Now).unwrap();
                next += 1;
            }
            let Response { cookie, result, .. } = client.recv().unwrap();
            let body = result.unwrap();
            assert!(body == answer_to(&numbered(cookie)).1, "{delivery}: call {cookie}");
            ended += 1;
        }
        let executed = executed.lock().unwrap();
        assert_eq!(executed.len() as u64, CALLS);
        assert!(executed.values().all(|times| *times == 1), "{delivery}: executed twice");
        let lost = client_node.stats().link.fault_lost + server_node.stats().link.fault_lost;
        assert!(lost > CALLS / 20, "the network was not bad: {lost} lost");
    }
}

fn bad_node(delivery: Delivery, seed: u64) -> Node {
    let link = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    let faults = Faults { loss: 0.1, duplicate: 0.05, reorder: 0.05, seed, ..Faults::default() };
    let link = FaultLink::new(link, faults).unwrap();
    let mut config = Config::new();
    // One probe in five is lost together with its answer: this time allows enough probes for a call.
    config.delivery(delivery).peer_timeout(Duration::from_secs(10));
    Node::with_link(Box::new(link), &config).unwrap()
}

/// A request that begins with the call's number; most are short, some long.
fn numbered(call: u64) -> Vec<u8> {
    let length = match call % 100 {
        0 => 300_000,
        1..10 => 10_000 + call as usize % 5_000,
        _ => 16 + call as usize % 300,
    };
    let mut body = pattern(call, length);
    body[..8].copy_from_slice(&call.to_le_bytes());
    body
}

/// The call's number and the answer: as long as the request, with every byte changed.
fn answer_to(request: &[u8]) -> (u64, Vec<u8>) {
    let call = u64::from_le_bytes(request[..8].try_into().unwrap());
    (call, request.iter().map(|byte| byte ^ 0x5a).collect())
}
