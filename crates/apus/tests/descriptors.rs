//! Processes of the host take only a share of a node's descriptors.

mod pair;
mod program;

use std::time::{Duration, Instant};

use apus::{Address, Node};
use pair::{FAULT_AFTER, PORT};
use program::{Program, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

/// Limit of descriptors of the server.
const LIMIT: u64 = 48;
/// Lower bound on the descriptors that are left to the program.
const LEFT: u64 = 8;

fn node() -> Node {
    Node::start(&patient("127.0.0.1:0".parse().unwrap())).unwrap()
}

/// The present number of pairs of the server.
fn pairs(server: &mut Program) -> u64 {
    let report = server.report();
    assert!(report.descriptors <= LIMIT - LEFT, "{report:?}");
    report.pairs_met - report.pairs_ended
}

#[test]
fn neighbours_leave_the_program_its_descriptors() {
    let mut server =
        Program::start_after(&format!("ulimit -n {LIMIT}"), "server 127.0.0.1:0").unwrap();
    let address = Address::new(server.line().parse().unwrap(), PORT);
    let mut nodes = Vec::new();
    for _ in 0..40 {
        let node = node();
        let client = node.client().unwrap();
        client.connect(address).wait().unwrap();
        for _ in 0..3 {
            assert_eq!(client.call(address, "goes on").wait().unwrap(), "goes on");
        }
        assert!(pairs(&mut server) <= LIMIT / 6);
        nodes.push(node);
    }
    assert_eq!(pairs(&mut server), LIMIT / 6);
    // A process that calls replaces one that does not.
    let (node, since) = (node(), Instant::now());
    let client = node.client().unwrap();
    while node.stats().memory.pairs_met == 0 {
        assert!(since.elapsed() < FAULT_AFTER, "no place is given up");
        assert_eq!(client.call(address, "goes on").wait().unwrap(), "goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(pairs(&mut server) <= LIMIT / 6);
    for node in &nodes {
        assert_eq!(node.client().unwrap().call(address, "goes on").wait().unwrap(), "goes on");
    }
}

#[test]
fn another_user_gets_half_of_the_share() {
    let mut server =
        Program::start_after(&format!("ulimit -n {LIMIT}"), "server 127.0.0.1:0").unwrap();
    let address = server.line();
    let mut strangers = Vec::new();
    for _ in 0..LIMIT / 6 {
        let role = format!("udp-client {address}");
        let Some(stranger) = Program::start_as(65_534, &role) else { return };
        strangers.push(stranger);
    }
    for stranger in &mut strangers {
        assert_eq!(stranger.line(), "connected");
        stranger.send("goes-on 3");
    }
    let of_strangers = pairs(&mut server);
    assert!(of_strangers <= LIMIT / 12);
    // There is room for this user.
    let node = node();
    let address = Address::new(address.parse().unwrap(), PORT);
    node.client().unwrap().connect(address).wait().unwrap();
    pair::wait_until("memory is shared", || {
        node.client().unwrap().call(address, "goes on").wait().unwrap();
        node.stats().memory.pairs_met == 1
    });
    // On a busy machine, some strangers have met nobody in the time of a meeting.
    assert!(pairs(&mut server) > of_strangers.min(LIMIT / 12));
}
