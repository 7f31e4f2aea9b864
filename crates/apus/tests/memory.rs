//! Nodes of one host share memory.

use crate::pair;
use crate::pair::skipped::skipped;
use crate::pair::{Pair, pair, pair_with, pattern, serve_echo};
use apus::{Delivery, Links, MemoryCounters, Route};

#[test]
fn nodes_of_one_host_share_memory_by_themselves() {
    if pair::skips("messages go by the engine") {
        return;
    }
    for delivery in [Delivery::default(), "base".parse().unwrap(), "napibusy".parse().unwrap()] {
        let pair = pair(delivery);
        let Pair { client_node, server_node, service, address } = &pair;
        if server_node.stats().memory.pairs_met == 0 {
            return skipped("APUS_LINK says how the nodes reach each other");
        }
        let serving = serve_echo(service);
        let client = client_node.client().unwrap();
        assert_eq!(client_node.route(*address), Route::Memory);
        let before = client_node.stats();
        for length in [1, 100, 4_072, 4_073, 100_000, 1 << 20, 5_000_000] {
            let body = pattern(length as u64, length);
            assert_eq!(client.call(*address, body.clone()).wait().unwrap(), body);
        }
        let after = client_node.stats();
        assert_eq!(after.memory.messages_sent - before.memory.messages_sent, 7);
        assert_eq!(after.memory.messages_received - before.memory.messages_received, 7);
        assert_eq!(after.link.packets_sent, before.link.packets_sent, "nothing goes by UDP");
        service.shutdown();
        serving.join().unwrap();
    }
}

#[test]
fn a_node_with_link_udp_uses_udp_only() {
    if pair::skips("messages go by the engine") {
        return;
    }
    let pair = pair_with(|config| {
        config.link(Links::Udp);
    });
    let serving = serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    client.connect(pair.address).wait().unwrap();
    assert_eq!(client.call(pair.address, "by UDP").wait().unwrap(), "by UDP");
    assert_eq!(pair.client_node.route(pair.address), Route::Udp);
    assert_eq!(pair.client_node.stats().memory, MemoryCounters::default());
    pair.service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_message_of_the_greatest_length_is_carried() {
    let Pair { client_node, service, address, .. } = &pair(Delivery::default());
    let length = 64 << 20;
    let call = client_node.client().unwrap().call(*address, vec![7; length]).start().unwrap();
    let request = service.recv().unwrap();
    assert_eq!(request.body().len(), length);
    request.reply("all of it").unwrap();
    assert_eq!(call.wait().unwrap(), "all of it");
}
