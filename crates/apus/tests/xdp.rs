//! Nodes with `link = xdp` on a veth pair between two network namespaces, which end with the test. Needs root.

mod pair;

use std::fs::File;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use apus::{Config, LinkCounters, Links, Node};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gettid;
use pair::skipped::skipped;
use pair::{around, pattern, serve_echo, skips};

const CLIENT: &str = "10.76.0.1:0";

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

/// Moves this thread into a new namespace. Returns its number and the namespace; `None` if this process may not.
fn new_namespace() -> Option<(i32, File)> {
    unshare(CloneFlags::CLONE_NEWNET).ok()?;
    let thread = gettid().as_raw();
    Some((thread, File::open(format!("/proc/self/task/{thread}/ns/net")).ok()?))
}

/// Joins two new namespaces by a veth pair, with the addresses 10.76.0.1 and 10.76.0.2. This thread is in the first one.
fn network() -> Option<[File; 2]> {
    let (there, second) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let other = thread::spawn(move || {
        there.send(new_namespace()).expect("the test waits");
        _ = ended.recv();
    });
    let (second, (_, first)) = (second.recv().expect("the thread answers"), new_namespace()?);
    let (thread, second) = second?;
    let mut made = ip(&format!("link add wire type veth peer name wire netns {thread}"));
    drop(end);
    other.join().expect("the thread does not panic");
    for (namespace, number) in [(&second, 2), (&first, 1)] {
        setns(namespace, CloneFlags::CLONE_NEWNET).ok()?;
        made &= ip("link set lo up")
            && ip(&format!("addr add 10.76.0.{number}/24 dev wire"))
            && ip("link set wire up");
    }
    made.then_some([first, second])
}

/// Starts a node in a namespace, which its threads stay in.
fn start(namespace: &File, at: &str, shards: usize, receives: bool) -> Node {
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("who made it may enter it");
    let mut config = Config::new();
    config.listen(at.parse().unwrap()).link(Links::Xdp).insecure(true).shards(shards);
    config.xdp_receive(receives);
    // A busy machine may stop the other node for seconds.
    config.peer_timeout(Duration::from_secs(60));
    Node::start(&config).expect("the address is ours")
}

/// Calls between two nodes, and returns the client's counters; `None` if it can have no XSK.
fn calls(shards: usize, receives: bool, at: &str) -> Option<LinkCounters> {
    let Some([first, second]) = network() else {
        skipped("no network namespaces here");
        return None;
    };
    let server_node = start(&second, "10.76.0.2:0", shards, receives);
    let client_node = start(&first, at, 1, receives);
    let is_possible = client_node.capabilities().kind == "xdp";
    let pair = around(client_node, server_node);
    // The thread turns the server's engine, which compares senders with the addresses of its host.
    setns(&second, CloneFlags::CLONE_NEWNET).expect("who made it may enter it");
    serve_echo(&pair.service);
    setns(&first, CloneFlags::CLONE_NEWNET).expect("as above");
    let client = pair.client_node.client().unwrap();
    for number in 0..500 {
        let body = pattern(number, if number % 50 == 0 { 300_000 } else { 100 });
        assert_eq!(client.call(pair.address, body.clone()).wait().unwrap(), body);
    }
    let counters = pair.client_node.stats().link;
    if !is_possible {
        skipped("no XSKs here");
    }
    is_possible.then_some(counters)
}

#[test]
fn short_messages_leave_past_the_network_stack_and_long_ones_by_udp() {
    if skips("the nodes have links of their own") {
        return;
    }
    if let Some(link) = calls(1, false, CLIENT) {
        assert!(link.xsk_sent >= 100, "{link:?}");
        assert_eq!(link.xsk_received, 0);
    }
}

#[test]
fn each_shard_has_its_own_sockets() {
    if skips("the nodes have links of their own") {
        return;
    }
    calls(2, false, CLIENT);
}

#[test]
fn short_messages_arrive_past_the_network_stack_on_request() {
    if skips("the nodes have links of their own") {
        return;
    }
    if let Some(link) = calls(1, true, CLIENT) {
        assert!(link.xsk_received >= 100, "{link:?}");
    }
    // A host forwards datagrams to the same port of others, which such a node must not take.
    if let Some(link) = calls(1, true, "0.0.0.0:0") {
        assert_eq!(link.xsk_received, 0);
    }
}
