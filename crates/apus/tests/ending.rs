//! Closing, shutting down, dropping; peers that are not there.

mod pair;

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use apus::{
    Address, CallError, CallOptions, CloseError, Config, Delivery, Node, OpenError, RecvError,
    Socket,
};
use pair::{Pair, acquaint, pair, pattern, request, serve_echo};

const OPTIONS: CallOptions = CallOptions::new();

#[test]
fn close_waits_until_everything_has_ended() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        acquaint(&pair);
        let Pair { client, server, service, address } = pair;
        let socket = client.socket().unwrap();
        // In `fullbusy` nobody takes grants for a request while its thread waits for another node.
        let length = if delivery == Delivery::fullbusy() { 1_000 } else { 100_000 };
        let calls: Vec<_> = (0..8)
            .map(|seed| socket.start(address, pattern(seed, length), OPTIONS).unwrap())
            .collect();
        let requests: Vec<_> = (0..8).map(|_| request(service.recv().unwrap())).collect();
        let closing = thread::spawn(move || server.close(Duration::from_secs(20)));
        for mut request in requests {
            let body = request.take_body();
            request.reply(body).unwrap();
        }
        for (seed, call) in (0..).zip(calls) {
            assert!(call.wait().unwrap() == pattern(seed, length));
        }
        client.close(Duration::from_secs(20)).unwrap();
        closing.join().unwrap().unwrap();
        assert_eq!(service.recv().map(drop), Err(RecvError::Closed));
        assert_eq!(socket.call(address, "x"), Err(CallError::Closed));
    }
}

#[test]
fn close_gives_up_at_its_deadline() {
    let Pair { client, server, service, address } = pair(Delivery::suspend());
    let socket = client.socket().unwrap();
    let call = socket.start(address, "never answered", OPTIONS).unwrap();
    let error = client.close(Duration::from_millis(5)).unwrap_err();
    assert_eq!(error, CloseError::Unfinished { active: 1, after: Duration::from_millis(5) });
    assert_eq!(call.wait(), Err(CallError::Closed));
    drop((server, service));
}

#[test]
fn shutdown_wakes_every_waiting_thread() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let socket = pair.client.socket().unwrap();
        let call = socket.start(pair.address, "x", OPTIONS).unwrap();
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let socket = socket.clone();
                thread::spawn(move || socket.recv().map(drop))
            })
            .collect();
        let caller = thread::spawn(move || call.wait());
        socket.shutdown();
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), Err(RecvError::Closed), "{delivery}");
        }
        assert_eq!(caller.join().unwrap(), Err(CallError::Closed));
        assert_eq!(socket.start(pair.address, "x", OPTIONS).map(drop), Err(CallError::Closed));
    }
}

#[test]
fn closing_the_node_at_once_wakes_every_waiting_thread() {
    for delivery in Delivery::ALL {
        let Pair { client, server, service, address } = pair(delivery);
        let socket = client.socket().unwrap();
        let receivers: Vec<_> = (0..3)
            .map(|_| {
                let socket = socket.clone();
                thread::spawn(move || socket.recv().map(drop))
            })
            .collect();
        let call = socket.start(address, "x", OPTIONS).unwrap();
        let error = client.close(Duration::ZERO).unwrap_err();
        assert_eq!(error, CloseError::Unfinished { active: 1, after: Duration::ZERO });
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), Err(RecvError::Closed), "{delivery}");
        }
        assert_eq!(call.wait(), Err(CallError::Closed));
        drop((server, service));
    }
}

#[test]
fn serve_returns_when_the_socket_closes() {
    let pair = pair(Delivery::suspend());
    let threads: Vec<_> = (0..3).map(|_| serve_echo(&pair.service)).collect();
    let socket = pair.client.socket().unwrap();
    socket.call(pair.address, "x").unwrap();
    pair.service.shutdown();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_port_is_free_again_when_its_last_handle_is_dropped() {
    let pair = pair(Delivery::suspend());
    assert_eq!(pair.server.bind(pair::PORT).map(drop), Err(OpenError::PortInUse(pair::PORT)));
    assert_eq!(pair.server.bind(0).map(drop), Err(OpenError::PortOutOfRange(0)));
    let clone = pair.service.clone();
    drop(pair.service);
    assert_eq!(pair.server.bind(pair::PORT).map(drop), Err(OpenError::PortInUse(pair::PORT)));
    drop(clone);
    pair.server.bind(pair::PORT).unwrap();
}

#[test]
fn a_host_without_a_node_fails_calls_at_once() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = pair.client.socket().unwrap();
        let error = socket.call(Address::new(nobody, 1), "x").unwrap_err();
        assert!(matches!(error, CallError::PeerUnreachable(_)), "{delivery}: {error:?}");
    }
}

#[test]
fn a_port_nobody_serves_fails_calls() {
    let pair = pair(Delivery::suspend());
    let socket = pair.client.socket().unwrap();
    let nobody = Address::new(pair.address.host, pair.address.port + 1);
    // The other node does nothing while nobody waits on it, until its background thread does.
    assert_eq!(socket.call(nobody, "x"), Err(CallError::NoSuchPort));
}

#[test]
fn a_silent_peer_fails_calls_in_bounded_time() {
    let pair = pair::pair_with(|config| {
        config.peer_timeout(Duration::from_millis(50));
    });
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = pair.client.socket().unwrap();
    let error = socket.call(Address::new(silent.local_addr().unwrap(), 1), "x").unwrap_err();
    match error {
        CallError::PeerTimeout { silent_for, .. } => {
            assert!(silent_for >= Duration::from_millis(50));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_udp_port_is_free_when_the_node_has_stopped() {
    for delivery in Delivery::ALL {
        let Pair { client, server, service, .. } = pair(delivery);
        let address = server.local_addr();
        server.close(Duration::ZERO).unwrap();
        UdpSocket::bind(address).unwrap();
        assert_eq!(service.recv().map(drop), Err(RecvError::Closed));
        let address = client.local_addr();
        drop(client);
        UdpSocket::bind(address).unwrap();
    }
}

#[test]
fn a_socket_keeps_its_node_running() {
    /// All that a caller of these functions has is a socket.
    fn bound(delivery: Delivery) -> (Address, Socket) {
        let node =
            Node::start(Config::new().listen("127.0.0.1:0".parse().unwrap()).delivery(delivery));
        let node = node.unwrap();
        let service = node.bind(pair::PORT).unwrap();
        (Address::new(node.local_addr(), pair::PORT), service)
    }
    for delivery in Delivery::ALL {
        let (address, service) = bound(delivery);
        let serving = serve_echo(&service);
        let (_, socket) = bound(delivery);
        let call = socket.start(address, "outlives its node and its socket", OPTIONS).unwrap();
        assert_eq!(socket.call(address, "x").unwrap(), "x");
        drop(socket);
        assert_eq!(call.wait().unwrap(), "outlives its node and its socket", "{delivery}");
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
    let server = pair(Delivery::suspend());
    serve_echo(&server.service);
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap());
    for round in 0..20u8 {
        let client = Node::start(&config).unwrap();
        // The same port from here on.
        config.listen(client.local_addr());
        let response = client.socket().unwrap().call(server.address, vec![round; 9]);
        assert_eq!(&response.unwrap()[..], &[round; 9]);
    }
}
