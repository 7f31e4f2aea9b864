//! A process of another user that has very many calls outstanding delays those of others by its share only.

mod pair;
mod program;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use apus::{Address, CallOptions, Client, Delivery, Node, Service};
use pair::{PORT, wait_until};
use program::{Program, patient, play_role};

#[test]
fn role() {
    play_role();
}

/// Messages that a turn of the engine takes from a neighbour.
const FRAMES: usize = 64;

/// A server that this process and one of another user share memory with, which calls it 10,000 times at once, and what `look` sees
/// then. Nobody turns the server's engine but the calling thread.
fn beside_a_crowd(look: impl FnOnce(&Node, &Service, &Client, Address)) {
    let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
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
    look(&server, &service, &client, address);
}

/// Answers the next request of a service. True if it is of this process.
fn answer_next(service: &Service) -> bool {
    let request = service.recv().unwrap();
    let is_ours = request.body() == "ours";
    request.reply("answer").unwrap();
    is_ours
}

#[test]
fn a_call_waits_for_few_of_the_calls_of_another_user() {
    beside_a_crowd(|_, service, client, address| {
        for _ in 0..100 {
            let call = client.start(address, "ours").unwrap();
            let others = (0..10_000).take_while(|_| !answer_next(service)).count();
            // What the last turn has left, and one of what the next one takes.
            assert!(others <= FRAMES + 1, "{others} of 10,000 calls were answered first");
            assert_eq!(call.wait().unwrap(), "answer");
        }
    });
}

#[test]
fn a_call_is_second_behind_those_of_another_user_that_wait_for_the_service() {
    beside_a_crowd(|server, service, client, address| {
        // Looking at another port turns the engine, and takes nothing.
        let elsewhere = server.bind(PORT + 1).unwrap();
        let turn = || assert!(elsewhere.try_recv().is_err(), "nobody calls that port");
        wait_until("1,000 calls of the other user wait", || {
            turn();
            service.stats().messages >= 1_000
        });
        let call = client.start(address, "ours").unwrap();
        (0..1_000).for_each(|_| turn());
        let others = (0..10_000).take_while(|_| !answer_next(service)).count();
        assert!(others <= 1, "{others} calls were answered first");
        assert_eq!(call.wait().unwrap(), "answer");
    });
}

#[test]
fn a_call_that_comes_while_a_handler_works_is_second_behind_those_that_wait() {
    beside_a_crowd(|_, service, client, address| {
        assert!(!answer_next(service), "this process has not called");
        let call = client.start(address, "ours").unwrap();
        thread::sleep(Duration::from_millis(1));
        let others = (0..10_000).take_while(|_| !answer_next(service)).count();
        assert!(others <= 1, "{others} calls were answered first");
        assert_eq!(call.wait().unwrap(), "answer");
    });
}
