//! Processes that end, stop or fork while others share memory with them.

mod pair;
mod program;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apus::net::conformance::in_child;
use apus::{Address, Bytes, CallError, Delivery, Node, Route};
use nix::sys::signal::Signal;
use pair::skipped::skipped;
use pair::{FAULT_AFTER, PORT, Pair, pair, pattern, wait_until};
use program::{HOLD, Program, patient, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn deliveries() -> [Delivery; 3] {
    [Delivery::default(), "base".parse().unwrap(), "napibusy".parse().unwrap()]
}

/// Starts a server process, and a node here that shares memory with it.
fn server_process(delivery: Delivery) -> (Program, Node, Address) {
    let server = Program::start("server 127.0.0.1:0");
    let address = Address::new(server.line().parse().unwrap(), PORT);
    let node = Node::start(patient(anywhere()).delivery(delivery)).unwrap();
    node.client().unwrap().connect(address).wait().unwrap();
    wait_until("memory is shared", || node.stats().memory.pairs_met == 1);
    (server, node, address)
}

#[test]
fn calls_to_a_process_that_is_killed_end_at_once() {
    for delivery in deliveries() {
        let (mut server, node, address) = server_process(delivery);
        let client = node.client().unwrap();
        let mut calls = Vec::new();
        for length in [4, 4_000, 100_000, 1 << 20, 2_000_000] {
            for _ in 0..8 {
                let mut body = HOLD.as_bytes().to_vec();
                body.resize(length, b'x');
                calls.push(client.call(address, body).start().unwrap());
            }
        }
        server.kill();
        for call in calls {
            let error = call.wait().unwrap_err();
            // A request that was not sent through memory went over UDP, where no process receives it any more.
            let is_unsent = matches!(error, CallError::PeerUnreachable { sent: false, .. });
            assert!(error.may_have_executed() != is_unsent, "{delivery}: {error}");
        }
        wait_until("the pair has ended", || node.stats().memory.pairs_ended == 1);
        // The client reaches the server's successor as well.
        let server = Program::start(&format!("server {}", address.host));
        assert_eq!(server.line(), address.host.to_string());
        wait_until("memory is shared again", || {
            assert_eq!(client.call(address, "again").wait().unwrap(), "again");
            node.stats().memory.pairs_met == 2
        });
        // The last call over UDP may still have to be acknowledged.
        let before = node.stats().protocol.data_packets_sent;
        assert_eq!(client.call(address, "again").wait().unwrap(), "again");
        assert_eq!(node.stats().protocol.data_packets_sent, before, "{delivery}: by memory");
    }
}

#[test]
fn calls_that_a_killed_process_has_not_got_go_to_its_successor() {
    // Only this thread turns the node.
    let server = Program::start("server 127.0.0.1:0");
    let address = Address::new(server.line().parse().unwrap(), PORT);
    let node = Node::start(patient(anywhere()).delivery(Delivery::fullbusy())).unwrap();
    let client = node.client().unwrap();
    client.connect(address).wait().unwrap();
    assert_eq!(client.call(address, "one").wait().unwrap(), "one");
    assert_eq!(node.route(address), Route::Memory);
    let mut server = server;
    server.signal(Signal::SIGSTOP);
    let bodies: Vec<_> = (0..24).map(|seed| pattern(seed, 1 << 20)).collect();
    let calls: Vec<_> =
        bodies.iter().map(|body| client.call(address, body.clone()).start().unwrap()).collect();
    server.kill();
    let server = Program::start(&format!("server {}", address.host));
    assert_eq!(server.line(), address.host.to_string());
    let (mut answered, mut lost) = (0, 0);
    for (call, body) in calls.into_iter().zip(bodies) {
        match call.wait() {
            Ok(answer) => {
                assert_eq!(answer, body);
                answered += 1;
            }
            Err(error) => {
                assert_eq!(error, CallError::MayHaveExecuted);
                lost += 1;
            }
        }
    }
    // The memory of a pair has room for eight of these messages.
    assert!(answered >= 16 && answered + lost == 24, "{answered} answered, {lost} lost");
    assert_eq!(node.stats().protocol.calls_begun_anew, answered);
}

#[test]
fn a_child_that_keeps_everything_open_does_not_hide_the_end_of_its_parent() {
    for delivery in deliveries() {
        let (mut server, node, address) = server_process(delivery);
        let client = node.client().unwrap();
        assert_eq!(server.ask("fork"), "forked");
        let call = client.call(address, HOLD).start().unwrap();
        wait_until("the call is held", || server.report().held == 1);
        server.kill();
        let error = call.wait().unwrap_err();
        assert!(error.may_have_executed(), "{delivery}: {error}");
        wait_until("the pair has ended", || node.stats().memory.pairs_ended == 1);
    }
}

#[test]
fn nothing_is_left_of_a_client_process_that_is_killed() {
    let mut server = Program::start("server 127.0.0.1:0");
    let address = server.line();
    let mut before = None;
    for round in 1..=3 {
        let mut client = Program::start(&format!("client {address}"));
        assert_eq!(client.line(), "connected");
        let long = HOLD.repeat(100_000);
        assert_eq!(client.ask("hold 50"), "started");
        assert_eq!(client.ask(&format!("{long} 10")), "started");
        wait_until("some requests have come", || server.report().held > 50);
        client.kill();
        wait_until("the pair has ended", || server.report().pairs_ended == round);
        wait_until("the requests are given up", || server.report().held == 0);
        // The last body that was read in place releases the memory, when any thread drops it.
        wait_until("the client's memory is gone", || server.report().mappings == 0);
        // Descriptors of a pair are closed by a thread of their own.
        let most = *before.get_or_insert_with(|| server.report().descriptors);
        wait_until("its descriptors are closed", || server.report().descriptors <= most);
    }
}

#[test]
fn a_forked_child_reads_and_drops_bodies_of_its_parent() {
    let Pair { client_node, server_node, service, address } = &pair(Delivery::default());
    if server_node.stats().memory.pairs_met == 0 {
        return skipped("APUS_LINK says how the nodes reach each other");
    }
    let serving = pair::serve_echo(service);
    let client = client_node.client().unwrap();
    let bodies: Vec<Bytes> =
        (1..=4).map(|seed| client.call(*address, pattern(seed, 300_000)).wait().unwrap()).collect();
    assert!(bodies.iter().any(program::is_in_place), "bodies are read in place");
    let are_intact = |bodies: &[Bytes]| {
        bodies.iter().zip(1..).all(|(body, seed)| *body == pattern(seed, 300_000))
    };
    assert!(in_child(|| {
        let clones = bodies.clone();
        let intact = are_intact(&clones);
        drop(clones);
        intact
    }));
    assert!(are_intact(&bodies));
    // The child's copies of the bodies are the last owners of the memory.
    service.shutdown();
    serving.join().unwrap();
    let Pair { client_node, server_node, .. } = pair(Delivery::default());
    let client = client_node.client().unwrap();
    drop((client, client_node, server_node));
    let mut bodies = Some(bodies);
    assert!(in_child(|| are_intact(bodies.as_ref().unwrap())));
    drop(bodies.take());
}

#[test]
fn what_a_child_has_at_an_address_that_its_parent_unmapped_for_it_stays() {
    let pair = pair(Delivery::default());
    let serving = pair::serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    if pair.server_node.stats().memory.pairs_met == 0 {
        return skipped("APUS_LINK says how the nodes reach each other");
    }
    let body = client.call(pair.address, pattern(1, 300_000)).wait().unwrap();
    assert!(program::is_in_place(&body), "bodies are read in place");
    pair.client_node.close(FAULT_AFTER).unwrap();
    let mut body = Some(body);
    let child = in_child(|| {
        // The memory that the parent writes is not mapped here, so the memory of these nodes takes its addresses.
        let own: Vec<_> = (0..20).map(|_| pair::pair(Delivery::default())).collect();
        own.iter().for_each(|own| drop(pair::serve_echo(&own.service)));
        let call = |own: &Pair| {
            own.client_node.client().unwrap().call(own.address, "child").wait().unwrap()
        };
        let all_work = || own.iter().all(|own| call(own) == "child");
        let before = all_work() && body.as_deref() == Some(&pattern(1, 300_000)[..]);
        drop(body.take());
        before && all_work()
    });
    assert!(child);
    assert_eq!(body.unwrap(), pattern(1, 300_000));
    pair.service.shutdown();
    serving.join().unwrap();
}

#[test]
fn calls_to_a_process_that_has_stopped_end_with_their_deadlines() {
    let (mut server, node, address) = server_process(Delivery::default());
    let client = node.client().unwrap();
    assert_eq!(client.call(address, "before").wait().unwrap(), "before");
    server.signal(Signal::SIGSTOP);
    for _ in 0..3 {
        let calls: Vec<_> = (0..10_000)
            .map(|_| {
                client
                    .call(address, vec![b'x'; 4_000])
                    .deadline(Duration::from_millis(50))
                    .start()
                    .unwrap()
            })
            .collect();
        for call in calls {
            let error = call.wait().unwrap_err();
            assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        }
    }
    server.signal(Signal::SIGCONT);
    assert_eq!(client.call(address, "after").wait().unwrap(), "after");
    let report = server.report();
    assert_eq!((report.pairs_ended, report.held), (0, 0));
    assert_eq!(node.stats().memory.pairs_ended, 0);
}

/// Counts the bodies in existence.
struct Counted(Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &[b'x'; 4_000]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_process_that_has_stopped_keeps_no_bodies_of_calls_that_have_ended() {
    let (server, node, address) = server_process(Delivery::default());
    let client = node.client().unwrap();
    server.signal(Signal::SIGSTOP);
    let kept = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..1_000)
        .map(|_| {
            kept.fetch_add(1, Ordering::Relaxed);
            let body = Bytes::from_owner(Counted(Arc::clone(&kept)));
            client.call(address, body).deadline(Duration::from_millis(50)).start().unwrap()
        })
        .collect();
    calls.into_iter().for_each(|call| assert!(call.wait().is_err()));
    // Some bodies of ended calls stay in the node until its next turn.
    wait_until("no body is kept", || {
        node.stats().memory.pairs_ended == 0 && kept.load(Ordering::Relaxed) == 0
    });
    server.signal(Signal::SIGCONT);
}

#[test]
fn responses_that_were_not_read_when_their_node_closed_arrive() {
    let node = Node::start(&patient(anywhere())).unwrap();
    let service = node.bind(PORT).unwrap();
    let mut client = Program::start(&format!("client {}", node.local_addr()));
    assert_eq!(client.line(), "connected");
    client.send(&format!("{} 20", "x".repeat(100_000)));
    client.send("x 100");
    assert_eq!([client.line(), client.line()], ["started", "started"]);
    let requests: Vec<_> = (0..120).map(|_| service.recv().unwrap()).collect();
    client.signal(Signal::SIGSTOP);
    for mut request in requests {
        let body = request.take_body().to_vec();
        request.reply(body).unwrap();
    }
    node.close(FAULT_AFTER).unwrap();
    client.signal(Signal::SIGCONT);
    assert_eq!(client.ask("wait"), "120");
}
