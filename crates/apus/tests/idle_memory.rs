//! Memory that nodes share and do not need any more. The test is a separate program because it counts the mappings of its process.

mod pair;

use std::fs;

use apus::Delivery;
use pair::{Pair, pair, serve_echo, wait_until};

/// The number of mappings of neighbours' memory.
fn mappings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:apus")).count()
}

#[test]
fn nodes_that_are_idle_keep_no_memory_for_long_messages() {
    for delivery in [Delivery::default(), "base".parse().unwrap()] {
        let Pair { client_node, server_node, service, address } = pair(delivery);
        let before = mappings();
        let serving = serve_echo(&service);
        let client = client_node.client().unwrap();
        for _ in 0..2 {
            assert_eq!(client.call(address, vec![7; 3_000_000]).wait().unwrap().len(), 3_000_000);
            assert!(before == 0 || mappings() > before, "by UDP there is none");
            wait_until("the memory is given up", || mappings() == before);
        }
        drop((client, client_node));
        service.shutdown();
        serving.join().unwrap();
        drop((service, server_node));
        wait_until("all is gone", || mappings() == 0);
    }
}
