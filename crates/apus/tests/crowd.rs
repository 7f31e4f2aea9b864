//! A process of another user with very many outstanding calls delays the calls of others only by its share.

mod pair;
mod program;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use apus::{Address, Call, Client, Delivery, Node, Port};
use std::time::Instant;

use pair::{PORT, wait_until};
use program::{Program, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

/// Time without a turn after which a thread that takes a request turns the engine first (docs/delivery.md, *Whose request is
/// next*).
const LONG: Duration = Duration::from_micros(20);

/// Upper bound on the messages that a turn of the engine takes from a neighbour.
const FRAMES: usize = 64;

/// Runs `look` with a server that shares memory with this process and with a process of another user, which keeps 10,000 calls
/// outstanding. Only the calling thread turns the server's engine.
fn beside_a_crowd(look: impl FnOnce(&Node, &Port, &Caller)) {
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
        let connecting = scope.spawn(|| client.connect(address).wait().unwrap());
        wait_until("this process is met", || has_met(1) && connecting.is_finished());
    });
    let Some(mut other) = Program::start_as(65_534, &format!("crowd {} 10000", address.host))
    else {
        return;
    };
    thread::scope(|scope| {
        let other = &mut other;
        let connecting = scope.spawn(move || other.line());
        wait_until("the other process is met", || has_met(2) && connecting.is_finished());
    });
    assert_eq!(other.ask("call"), "begun", "its memory is full");
    look(&server, &service, &Caller { node, client, address });
}

/// This process as a caller.
struct Caller {
    node: Node,
    client: Client,
    address: Address,
}

impl Caller {
    /// Begins a call. Its request is in memory when this returns.
    fn start(&self) -> Call {
        let sent = || self.node.stats().memory.messages_sent;
        let before = sent();
        let call = self.client.call(self.address, "ours").start().unwrap();
        wait_until("the request is in memory", || sent() > before);
        call
    }
}

/// Answers the next request of a service. Returns whether it came from this process.
fn answer_next(service: &Port) -> bool {
    let request = service.recv().unwrap();
    let is_ours = request.body() == "ours";
    request.reply("answer").unwrap();
    is_ours
}

#[test]
fn a_call_waits_for_few_of_the_calls_of_another_user() {
    beside_a_crowd(|_, service, caller| {
        for _ in 0..100 {
            let call = caller.start();
            let others = (0..10_000).take_while(|_| !answer_next(service)).count();
            // The rest of the last turn, and one request of the next turn.
            assert!(others <= FRAMES + 1, "{others} of 10,000 calls were answered first");
            assert_eq!(call.wait().unwrap(), "answer");
        }
    });
}

#[test]
fn a_call_is_second_behind_those_of_another_user_that_wait_for_the_service() {
    beside_a_crowd(|server, service, caller| {
        // A receive at another port turns the engine, and takes nothing.
        let elsewhere = server.bind(PORT + 1).unwrap();
        let turn = || assert!(elsewhere.try_recv().is_err(), "nobody calls that port");
        wait_until("1,000 calls of the other user wait", || {
            turn();
            service.stats().messages >= 1_000
        });
        let call = caller.start();
        (0..1_000).for_each(|_| turn());
        let others = (0..10_000).take_while(|_| !answer_next(service)).count();
        assert!(others <= 1, "{others} calls were answered first");
        assert_eq!(call.wait().unwrap(), "answer");
    });
}

#[test]
fn a_call_that_comes_while_a_handler_works_is_second_behind_those_that_wait() {
    beside_a_crowd(|_, service, caller| {
        assert!(!answer_next(service), "this process has not called");
        let worked = Instant::now();
        let call = caller.start();
        wait_until("the handler has worked for long", || worked.elapsed() > LONG);
        let others = (0..10_000).take_while(|_| !answer_next(service)).count();
        assert!(others <= 1, "{others} calls were answered first");
        assert_eq!(call.wait().unwrap(), "answer");
    });
}
