//! Closing, shutting down, dropping, and absent peers.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use crate::pair;
use crate::pair::{Pair, acquaint, call_with_deadline, pair, pattern, serve_echo, wait_until};
use apus::{
    Address, CallError, Client, CloseError, Config, Delivery, Node, OpenError, Port, RecvError,
};

#[test]
fn close_waits_until_everything_has_ended() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        acquaint(&pair);
        let Pair { client_node, server_node, service, address } = pair;
        let client = client_node.client().unwrap();
        // In `fullbusy` no thread takes grants for a request while its thread waits for another node.
        let length = if delivery == Delivery::fullbusy() { 1_000 } else { 100_000 };
        let calls: Vec<_> = (0..8)
            .map(|seed| client.call(address, pattern(seed, length)).start().unwrap())
            .collect();
        let requests: Vec<_> = (0..8).map(|_| service.recv().unwrap()).collect();
        let closing = thread::spawn(move || server_node.close(Duration::from_secs(20)));
        for mut request in requests {
            let body = request.take_body();
            request.reply(body).unwrap();
        }
        for (seed, call) in (0..).zip(calls) {
            assert!(call.wait().unwrap() == pattern(seed, length));
        }
        client_node.close(Duration::from_secs(20)).unwrap();
        closing.join().unwrap().unwrap();
        assert_eq!(service.recv().map(drop), Err(RecvError::Closed));
        assert_eq!(client.call(address, "x").wait(), Err(CallError::Closed));
    }
}

#[test]
fn a_clone_is_a_handle_to_the_same_node() {
    for delivery in Delivery::ALL {
        let Pair { client_node, server_node, service, .. } = pair(delivery);
        let clone = client_node.clone();
        assert_eq!(clone.local_addr(), client_node.local_addr());
        let client = clone.client().unwrap();
        drop(client_node);
        clone.clone().close(Duration::ZERO).unwrap();
        assert_eq!(clone.client().map(drop), Err(OpenError::Closed));
        assert_eq!(clone.bind(4000).map(drop), Err(OpenError::Closed));
        assert_eq!(client.recv().map(drop), Err(RecvError::Closed));
        assert_eq!(clone.close(Duration::ZERO), Ok(()));
        drop((server_node, service));
    }
}

#[test]
fn close_gives_up_at_its_deadline() {
    let Pair { client_node, server_node, service, address } = pair(Delivery::suspend());
    let client = client_node.client().unwrap();
    let call = client.call(address, "never answered").start().unwrap();
    let error = client_node.close(Duration::from_millis(5)).unwrap_err();
    assert_eq!(error, CloseError::Unfinished { active: 1, after: Duration::from_millis(5) });
    assert_eq!(call.wait(), Err(CallError::Closed));
    drop((server_node, service));
}

#[test]
fn a_handler_sees_that_its_call_was_given_up() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        acquaint(&pair);
        let client = pair.client_node.client().unwrap();
        for by_deadline in [false, true] {
            let (call, request) = if by_deadline {
                let time = Duration::from_millis(50);
                call_with_deadline(&client, &pair.service, pair.address, time)
            } else {
                let call = client.call(pair.address, "never answered").start().unwrap();
                (call, pair.service.recv().unwrap())
            };
            assert_eq!(request.remaining().is_some(), by_deadline, "{delivery}");
            assert!(request.remaining().is_none_or(|time| time <= Duration::from_millis(50)));
            assert!(by_deadline || !request.is_cancelled(), "{delivery}: the client waits");
            // With a deadline, a call ends while its client is turned; without one, dropping it gives it up at once.
            let waiting = by_deadline.then_some(call);
            wait_until("the request is cancelled", || {
                let _ = client.try_recv();
                request.is_cancelled()
            });
            assert!(request.reply("too late").is_err(), "{delivery}");
            assert!(waiting.is_none_or(|call| call.wait().is_err()), "{delivery}");
        }
    }
}

#[test]
fn shutdown_wakes_every_waiting_thread() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        let call = client.call(pair.address, "x").start().unwrap();
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let client = client.clone();
                thread::spawn(move || client.recv().map(drop))
            })
            .collect();
        let caller = thread::spawn(move || call.wait());
        client.shutdown();
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), Err(RecvError::Closed), "{delivery}");
        }
        assert_eq!(caller.join().unwrap(), Err(CallError::Closed));
        assert_eq!(client.call(pair.address, "x").start().map(drop), Err(CallError::Closed));
    }
}

#[test]
fn closing_the_node_at_once_wakes_every_waiting_thread() {
    if pair::needs_plain(pair::COUNTS) {
        return;
    }
    for delivery in Delivery::ALL {
        let Pair { client_node, server_node, service, address } = pair(delivery);
        let client = client_node.client().unwrap();
        let receivers: Vec<_> = (0..3)
            .map(|_| {
                let client = client.clone();
                thread::spawn(move || client.recv().map(drop))
            })
            .collect();
        let call = client.call(address, "x").start().unwrap();
        let error = client_node.close(Duration::ZERO).unwrap_err();
        assert_eq!(error, CloseError::Unfinished { active: 1, after: Duration::ZERO });
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), Err(RecvError::Closed), "{delivery}");
        }
        assert_eq!(call.wait(), Err(CallError::Closed));
        drop((server_node, service));
    }
}

#[test]
fn serve_returns_when_the_service_closes() {
    let pair = pair(Delivery::suspend());
    let threads: Vec<_> = (0..3).map(|_| serve_echo(&pair.service)).collect();
    let client = pair.client_node.client().unwrap();
    client.call(pair.address, "x").wait().unwrap();
    pair.service.shutdown();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_port_is_free_again_when_its_last_handle_is_dropped() {
    let pair = pair(Delivery::suspend());
    assert_eq!(pair.server_node.bind(pair::PORT).map(drop), Err(OpenError::PortInUse(pair::PORT)));
    assert_eq!(pair.server_node.bind(0).map(drop), Err(OpenError::PortOutOfRange(0)));
    let clone = pair.service.clone();
    drop(pair.service);
    assert_eq!(pair.server_node.bind(pair::PORT).map(drop), Err(OpenError::PortInUse(pair::PORT)));
    drop(clone);
    pair.server_node.bind(pair::PORT).unwrap();
}

#[test]
fn a_host_without_a_node_fails_calls_at_once() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = pair.client_node.client().unwrap();
        let error = client.call(Address::new(nobody, 1), "x").wait().unwrap_err();
        assert!(matches!(error, CallError::PeerUnreachable { .. }), "{delivery}: {error:?}");
        assert!(!error.may_have_executed(), "{delivery}: {error:?}");
    }
}

#[test]
fn after_the_first_call_to_a_server_that_has_ended_no_call_may_have_been_executed() {
    let Pair { client_node, server_node, service, address } = pair(Delivery::suspend());
    let serving = serve_echo(&service);
    let client = client_node.client().unwrap();
    client.call(address, "known").wait().unwrap();
    server_node.close(Duration::from_secs(5)).unwrap();
    drop(service);
    serving.join().unwrap();
    let first = client.call(address, "x").wait().unwrap_err();
    for _ in 0..3 {
        let error = client.call(address, "x").wait().unwrap_err();
        assert!(!error.may_have_executed(), "{error:?} after {first:?}");
    }
}

#[test]
fn a_port_nobody_serves_fails_calls() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let nobody = Address::new(pair.address.host, pair.address.port + 1);
    // The other node makes no turns while no thread waits on it, until its background thread does.
    assert_eq!(client.call(nobody, "x").wait(), Err(CallError::NoSuchPort));
}

#[test]
fn a_silent_peer_fails_calls_in_bounded_time() {
    let pair = pair::pair_with(|config| {
        config.peer_timeout(Duration::from_millis(50));
    });
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = pair.client_node.client().unwrap();
    let error = client.call(Address::new(silent.local_addr().unwrap(), 1), "x").wait().unwrap_err();
    match error {
        CallError::PeerTimeout { silent_for, .. } => {
            assert!(silent_for >= Duration::from_millis(50));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_udp_port_is_free_when_the_node_has_stopped() {
    if pair::needs_plain(pair::COUNTS) {
        return;
    }
    if pair::skips("the UDP port is the engine's") {
        return;
    }
    for delivery in Delivery::ALL {
        let Pair { client_node, server_node, service, .. } = pair(delivery);
        let address = server_node.local_addr();
        server_node.close(Duration::ZERO).unwrap();
        UdpSocket::bind(address).unwrap();
        assert_eq!(service.recv().map(drop), Err(RecvError::Closed));
        let address = client_node.local_addr();
        drop(client_node);
        UdpSocket::bind(address).unwrap();
    }
}

#[test]
fn clients_and_services_keep_their_node_running() {
    /// Returns only a service and a client, each of a node of its own.
    fn open(delivery: Delivery) -> (Address, Port, Client) {
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().unwrap()).delivery(delivery);
        let [serving, calling] = [(); 2].map(|()| Node::start(&config).unwrap());
        let address = Address::new(serving.local_addr(), pair::PORT);
        (address, serving.bind(pair::PORT).unwrap(), calling.client().unwrap())
    }
    for delivery in Delivery::ALL {
        let (address, service, client) = open(delivery);
        let serving = serve_echo(&service);
        let call = client.call(address, "outlives its node and its client").start().unwrap();
        assert_eq!(client.call(address, "x").wait().unwrap(), "x");
        drop(client);
        assert_eq!(call.wait().unwrap(), "outlives its node and its client", "{delivery}");
        service.shutdown();
        serving.join().unwrap();
        drop(service);
        UdpSocket::bind(address.host).unwrap();
    }
}

#[test]
fn a_busy_udp_port_is_an_error_that_names_it() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = Node::start(Config::new().listen(address)).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn a_node_at_the_address_of_one_that_has_just_gone_is_another_client() {
    if pair::needs_plain("a node without a certificate takes part") {
        return;
    }
    let server = pair(Delivery::suspend());
    serve_echo(&server.service);
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap());
    for round in 0..20u8 {
        let client_node = Node::start(&config).unwrap();
        // The same port is used from here on.
        config.listen(client_node.local_addr());
        let response = client_node.client().unwrap().call(server.address, vec![round; 9]).wait();
        assert_eq!(&response.unwrap()[..], &[round; 9]);
    }
}
