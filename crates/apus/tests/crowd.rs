//! A process of another user that has very many calls outstanding delays those of others by its share only.

mod pair;
mod program;

use std::net::SocketAddr;
use std::thread;

use apus::{Address, CallOptions, Delivery, Node};
use pair::{PORT, wait_until};
use program::{Program, patient, play_role};

#[test]
fn role() {
    play_role();
}

/// Messages that a turn of the engine takes from a neighbour.
const FRAMES: usize = 64;

#[test]
fn a_call_waits_for_few_of_the_calls_of_another_user() {
    let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
    // Nobody turns the server's engine but this thread.
    let server = Node::start(patient(anywhere).delivery(Delivery::fullbusy())).unwrap();
    let service = server.bind(PORT).unwrap();
    let address = Address::new(server.local_addr(), PORT);
    let node = Node::start(&patient(anywhere)).unwrap();
    let client = node.client().unwrap();
    let has_met = |neighbours| {
        assert!(service.try_recv().is_err(), "nobody has called yet");
        server.stats().memory.pairs_met == neighbours
    };
    thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect(address, &CallOptions::new()).unwrap());
        wait_until("this process is met", || has_met(1) && connecting.is_finished());
    });
    let mut other = match Program::start_as(65_534, &format!("crowd {} 10000", address.host)) {
        Ok(other) => other,
        Err(error) => return eprintln!("skipped: no process of another user: {error}"),
    };
    thread::scope(|scope| {
        let other = &mut other;
        let connecting = scope.spawn(move || other.line());
        wait_until("the other process is met", || has_met(2) && connecting.is_finished());
    });
    assert_eq!(other.ask("call"), "begun", "its memory is full");
    for _ in 0..100 {
        let call = client.start(address, "ours").unwrap();
        let mut others = 0;
        loop {
            let request = service.recv().unwrap();
            let is_ours = request.body() == "ours";
            request.reply("answer").unwrap();
            if is_ours {
                break;
            }
            others += 1;
        }
        // What the last turn has left, and what the next one takes before our call.
        assert!(others <= 2 * FRAMES, "{others} of 10,000 calls were answered first");
        assert_eq!(call.wait().unwrap(), "answer");
    }
}
