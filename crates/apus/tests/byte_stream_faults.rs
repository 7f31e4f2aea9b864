//! Byte streams over a network that loses, duplicates and reorders packets.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use crate::pair::pattern;
use apus::net::{FaultLink, Faults, UdpConfig, UdpLink};
use apus::{Address, Config, Delivery, Node, Port, Stream, StreamListener};

const LENGTH: usize = 3 << 20;

fn bad_node(delivery: Delivery, seed: u64) -> Node {
    let link = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    let faults = Faults { loss: 0.1, duplicate: 0.05, reorder: 0.05, seed, ..Faults::default() };
    let link = FaultLink::new(link, faults).unwrap();
    let mut config = Config::new();
    // One probe in five is lost together with its answer: this time allows enough probes for a call.
    config.delivery(delivery).peer_timeout(Duration::from_secs(10));
    Node::with_link(Box::new(link), &config).unwrap()
}

#[test]
fn every_byte_survives_a_bad_network() {
    for (seed, delivery) in (1..).zip(Delivery::ALL) {
        let (client_node, server_node) = (bad_node(delivery, seed), bad_node(delivery, seed + 100));
        // In `fullbusy` a node makes no turns while no thread waits, and the peer may have missed its last answer.
        let idle = [&client_node, &server_node].map(|node| node.bind(5_000).unwrap());
        thread::scope(|scope| {
            for service in &idle {
                scope.spawn(|| assert!(service.recv().is_err(), "nobody calls"));
            }
            let exchange = scope.spawn(|| exchange(&client_node, &server_node, delivery)).join();
            idle.iter().for_each(Port::shutdown);
            assert!(exchange.is_ok(), "{delivery}");
        });
        let lost = client_node.stats().link.fault_lost + server_node.stats().link.fault_lost;
        assert!(lost > 20, "the network was not bad: {lost} lost");
    }
}

/// Both ends send at the same time, and read the bytes of the other one.
fn exchange(client_node: &Node, server_node: &Node, delivery: Delivery) {
    let listener = StreamListener::bind(server_node, 4_001).unwrap();
    let address = Address::new(server_node.local_addr(), 4_001);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap().0);
        let client = Stream::connect(client_node, address).unwrap();
        let server = accepting.join().unwrap();
        for (seed, stream) in [(1, client.clone()), (2, server.clone())] {
            scope.spawn(move || {
                let sent = pattern(seed, LENGTH);
                for part in sent.chunks(30_011) {
                    (&stream).write_all(part).unwrap();
                }
                stream.close().unwrap();
            });
        }
        for (seed, stream) in [(2, client), (1, server)] {
            scope.spawn(move || {
                let mut bytes = Vec::new();
                (&stream).read_to_end(&mut bytes).unwrap();
                assert!(bytes == pattern(seed, LENGTH), "{delivery}");
            });
        }
    });
}
