//! A server and a channel to it, each on a node of its own.

use std::future;
use std::sync::Arc;
use std::thread;

use apus_rpc::{Address, Channel, Node, Server, ServerBuilder, ServerCounters};

/// Homa port of all servers; each node has its own.
pub(crate) const PORT: u16 = 4000;

pub(crate) fn node() -> Node {
    let mut config = apus::Config::new();
    // `APUS_LINK=udp` runs the tests without shared memory.
    config.apply_environment().expect("settings of the environment");
    config.listen("127.0.0.1:0".parse().expect("an address"));
    Node::start(&config).expect("a node")
}

pub(crate) fn address(node: &Node) -> String {
    Address::new(node.local_addr(), PORT).to_string()
}

#[allow(dead_code, reason = "not every test looks at all parts")]
/// A server that a thread serves until its node is dropped.
pub(crate) struct Served {
    pub(crate) node: Node,
    pub(crate) channel: Channel,
    pub(crate) counters: Arc<ServerCounters>,
}

#[allow(dead_code, reason = "some tests serve otherwise")]
/// Serves on a thread, and gives a channel of another node.
pub(crate) fn served(build: impl FnOnce(ServerBuilder<'_>) -> ServerBuilder<'_>) -> Served {
    let server_node = node();
    let serving = build(Server::builder(&server_node)).serve(PORT, future::pending());
    let counters = serving.counters();
    thread::spawn(move || serving.wait());
    let node = node();
    let channel = Channel::builder(&address(&server_node)).node(&node).build().expect("a channel");
    Served { node: server_node, channel, counters }
}
