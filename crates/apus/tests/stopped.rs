//! Stopped processes of the host hold no memory of a node.

mod pair;
mod program;

use apus::{Address, Node};
use nix::sys::signal::Signal;
use pair::{PORT, wait_until};
use program::{Program, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

#[test]
fn a_process_that_does_not_read_loses_its_memory_and_goes_on_later() {
    let mut config = patient("127.0.0.1:0".parse().unwrap());
    config.peer_timeout(std::time::Duration::from_millis(300));
    let server = Node::start(&config).unwrap();
    let service = server.bind(PORT).unwrap();
    let address = Address::new(server.local_addr(), PORT);
    let mut client = Program::start(&format!("client {}", address.host));
    assert_eq!(client.line(), "connected");
    assert_eq!(client.ask("request 40"), "started");
    let requests: Vec<_> = (0..40).map(|_| service.recv().unwrap()).collect();
    client.signal(Signal::SIGSTOP);
    let body = pair::pattern(1, 900_000);
    for request in requests {
        request.reply(body.clone()).unwrap();
    }
    wait_until("its memory is given up", || server.stats().memory.pairs_ended == 1);
    client.signal(Signal::SIGCONT);
    let serving = pair::serve_echo(&service);
    client.send("end");
    client.line();
    // Its further calls are answered, by UDP or by memory that is shared anew.
    assert_eq!(client.ask("again 3"), "started");
    assert_eq!(client.ask("end"), "3");
    service.shutdown();
    serving.join().unwrap();
}
