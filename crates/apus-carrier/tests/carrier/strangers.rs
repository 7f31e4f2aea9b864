//! Nodes that are not carriers, on the hosts of carried connections.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use apus::{Address, Config, Node, Stream};
use nix::unistd::geteuid;
use rustix::thread::set_thread_uid;

use crate::program::{Program, carrier};

/// UID of the attacker, if the test may change to another user.
const OTHER: u32 = 40_147;

/// The answer to another user's node, at any port, that names a program's connection.
fn said_to_a_node_at_any_port(program: &Program, port: u16) -> std::io::Result<[u8; 1]> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().expect("it is an address"));
    let node = Node::start(&config).expect("a user may have a node");
    let address = Address::new(([127, 0, 0, 1], port).into(), port);
    let mut stream = Stream::connect(&node, address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(&program.tuple.to_bytes())?;
    let mut said = [0];
    stream.read_exact(&mut said).map(|()| said)
}

#[test]
fn a_node_at_another_port_does_not_speak_for_its_host() {
    let (carrier, port) = carrier(|_| {});
    let program = Program::server(port);
    let refused = thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            if geteuid().is_root() {
                set_thread_uid(rustix::process::Uid::from_raw(OTHER)).expect("root may");
            }
            said_to_a_node_at_any_port(&program, port)
        });
        attacker.join().expect("it does not panic")
    });
    refused.expect_err("a node at another port is not a carrier");
    assert_eq!(carrier.status().refused.foreign_port, 1);
}
