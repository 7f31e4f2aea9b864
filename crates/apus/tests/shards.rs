//! A node with several shards looks like one node to its users.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use apus::net::shard_of;
use apus::{Address, CallError, Client, Config, Delivery, Flush, Node, RecvError, Response};

const PORT: u16 = 4000;
const SHARDS: usize = 3;
const FAULT_AFTER: Duration = Duration::from_secs(20);

fn node(delivery: Delivery, shards: usize) -> Node {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap()).delivery(delivery).shards(shards);
    Node::start(&config).unwrap()
}

/// A client for each shard of a server.
fn clients(delivery: Delivery) -> Vec<(Node, Client)> {
    let mut clients: Vec<(Node, Client)> = Vec::new();
    while clients.len() < SHARDS {
        let node = node(delivery, 1);
        if shard_of(node.local_addr(), SHARDS) == clients.len() {
            let client = node.client().unwrap();
            clients.push((node, client));
        }
    }
    clients
}

fn modes() -> impl Iterator<Item = Delivery> {
    Delivery::ALL.into_iter()
}

#[test]
fn one_thread_serves_all_shards() {
    for mode in modes() {
        let server = node(mode, SHARDS);
        let service = server.bind(PORT).unwrap();
        let to = Address::new(server.local_addr(), PORT);
        let served = thread::spawn(move || {
            for _ in 0..SHARDS * 40 {
                let request = match service.recv_timeout(FAULT_AFTER) {
                    Ok(request) => request,
                    other => panic!("{mode}: {other:?}"),
                };
                let body = request.body().clone();
                request.reply(body).unwrap();
            }
            service
        });
        let clients = clients(mode);
        for round in 0..40u8 {
            for (_, client) in &clients {
                let response = client.call(to, vec![round; 40_000]).wait();
                assert_eq!(response.unwrap(), vec![round; 40_000], "{mode}");
            }
        }
        let service = served.join().unwrap();
        assert_eq!(service.stats().messages, SHARDS as u64 * 40, "{mode}");
        assert_eq!(server.stats().protocol.requests, SHARDS as u64 * 40);
    }
}

#[test]
fn many_threads_serve_many_shards_and_no_message_stays_behind() {
    for mode in modes().filter(|&mode| mode != Delivery::fullbusy()) {
        let server = node(mode, SHARDS);
        let service = server.bind(PORT).unwrap();
        let to = Address::new(server.local_addr(), PORT);
        let clients = clients(mode);
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    service.serve(|request| {
                        let body = request.body().clone();
                        // The clients end the test only when they have all responses.
                        request.reply(body).unwrap();
                    });
                });
            }
            thread::scope(|callers| {
                for (_, client) in &clients {
                    for _ in 0..2 {
                        callers.spawn(move || {
                            for n in 0..300u32 {
                                let body = n.to_le_bytes().repeat(1 + n as usize % 2000);
                                assert!(client.call(to, body.clone()).wait().unwrap() == body);
                            }
                        });
                    }
                }
            });
            service.shutdown();
        });
        assert_eq!(server.stats().protocol.requests, SHARDS as u64 * 600, "{mode}");
    }
}

#[test]
fn a_sharded_client_gets_its_responses_in_either_way() {
    let client_node = node(Delivery::suspend(), SHARDS);
    let client = client_node.client().unwrap();
    let servers: Vec<_> = (0..5).map(|_| node(Delivery::suspend(), 1)).collect();
    for server in &servers {
        let service = server.bind(PORT).unwrap();
        thread::spawn(move || {
            service.serve(|request| {
                let body = request.body().clone();
                request.reply(body).unwrap();
            });
        });
    }
    let mut cookies = BTreeSet::new();
    for (n, server) in servers.iter().enumerate() {
        let to = Address::new(server.local_addr(), PORT);
        assert_eq!(&client.call(to, "by call").wait().unwrap()[..], b"by call");
        client.send(to, "by cookie", n as u64, Flush::Later).unwrap();
        cookies.insert(n as u64);
    }
    while !cookies.is_empty() {
        let Response { cookie, result, .. } = client.recv_timeout(FAULT_AFTER).unwrap();
        assert_eq!(&result.unwrap()[..], b"by cookie");
        assert!(cookies.remove(&cookie));
    }
    assert_eq!(client.recv_timeout(Duration::ZERO).unwrap_err(), RecvError::Timeout);
    client_node.close(FAULT_AFTER).unwrap();
}

#[test]
fn a_task_receives_from_every_shard() {
    let server = node(Delivery::suspend(), SHARDS);
    let service = server.bind(PORT).unwrap();
    let to = Address::new(server.local_addr(), PORT);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let served = thread::spawn(move || {
        runtime.block_on(async {
            for _ in 0..SHARDS {
                service.recv_async().await.unwrap().reply("served").unwrap();
            }
        });
        service // Closing it would withdraw responses that are not acknowledged.
    });
    for (_, client) in &clients(Delivery::suspend()) {
        assert_eq!(&client.call(to, "x").wait().unwrap()[..], b"served");
    }
    served.join().unwrap();
}

#[test]
fn a_closed_port_is_noticed_in_every_shard() {
    let closed: Vec<SocketAddr> =
        (0..8).map(|_| node(Delivery::suspend(), 1).local_addr()).collect();
    let client_node = node(Delivery::suspend(), SHARDS);
    let client = client_node.client().unwrap();
    for to in closed {
        let error =
            client.call(Address::new(to, PORT), "anybody there?").deadline(FAULT_AFTER).wait();
        assert!(matches!(error, Err(CallError::PeerUnreachable { sent: false, .. })), "{error:?}");
    }
    let errors = client_node.stats().link.port_unreachable;
    assert!(errors >= 8, "{errors}");
}

#[test]
fn shutting_down_wakes_waiters_anywhere() {
    let server = node(Delivery::suspend(), SHARDS);
    let service = server.bind(PORT).unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 * SHARDS {
            scope.spawn(|| {
                assert_eq!(service.recv().unwrap_err(), RecvError::Closed);
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        service.shutdown();
    });
    assert_eq!(ended.load(Ordering::Relaxed), 2 * SHARDS);
}
