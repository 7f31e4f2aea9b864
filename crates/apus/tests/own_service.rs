//! A handler that calls its own service.

use std::thread;
use std::time::Duration;

use crate::pair;
use crate::pair::{pair, serve_echo, wait_until};
use apus::{Address, CallError, Client, Config, Delivery, Node, Request};
use futures_util::StreamExt;

/// Answers with the result of a call to `at`, or its error; a second nested request is echoed.
fn nest(client: &Client, at: Address, mut request: Request) {
    let body = request.take_body();
    let answer = match &body[..] {
        b"nest" => client.call(at, "inner").wait().unwrap_or_else(|error| error.to_string().into()),
        _ => body,
    };
    let _ = request.reply(answer);
}

#[test]
fn the_only_thread_of_a_service_gets_an_error() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let server = Node::start(Config::new().listen(listen.parse().unwrap())).unwrap();
        let client = Node::start(Config::new().listen("127.0.0.1:0".parse().unwrap())).unwrap();
        let service = server.bind(4000).unwrap();
        let at = Address::new(([127, 0, 0, 1], server.local_addr().port()).into(), 4000);
        let own = server.client().unwrap();
        let serving = service.clone();
        thread::spawn(move || serving.serve(|request| nest(&own, at, request)));
        let answer = client.client().unwrap().call(at, "nest").wait().unwrap();
        let error = CallError::OwnService { after: Duration::from_secs(1) };
        assert_eq!(answer, error.to_string());
        // The request of the nested call waits, and delays no other.
        assert_eq!(client.client().unwrap().call(at, "on").wait().unwrap(), "on");
        service.shutdown();
    }
}

#[test]
fn a_thread_that_receives_by_other_means_may_come_at_any_time() {
    if pair::needs_plain(pair::COUNTS) {
        return;
    }
    let pair = pair(Delivery::suspend());
    let (own, at) = (pair.server_node.client().unwrap(), pair.address);
    assert!(pair.service.try_recv().is_err());
    let serving = pair.service.clone();
    thread::spawn(move || serving.serve(|request| nest(&own, at, request)));
    let client = pair.client_node.client().unwrap();
    let outer = client.call(at, "nest").start().unwrap();
    wait_until("the inner request is there", || pair.server_node.stats().protocol.requests >= 2);
    serve_echo(&pair.service);
    assert_eq!(outer.wait().unwrap(), "inner");
}

#[tokio::test]
async fn a_blocking_call_in_the_only_thread_of_a_runtime_fails() {
    for streamed in [false, true] {
        let pair = pair(Delivery::suspend());
        let (service, own) = (pair.service.clone(), pair.server_node.client().unwrap());
        let serving = tokio::spawn(async move {
            if streamed {
                service.requests().for_each(async |request| pair::echo(request)).await;
            } else {
                while let Ok(request) = service.recv_async().await {
                    pair::echo(request);
                }
            }
        });
        tokio::task::yield_now().await; // The other task begins to wait for requests.
        let error = CallError::OwnService { after: Duration::from_secs(1) };
        assert_eq!(own.call(pair.address, "blocks").wait(), Err(error));
        assert_eq!(own.call(pair.address, "waits").await.unwrap(), "waits");
        pair.service.shutdown();
        serving.await.unwrap();
    }
}

#[test]
fn a_call_that_another_thread_will_receive_waits() {
    let pair = pair(Delivery::suspend());
    let (service, own) = (pair.service.clone(), pair.server_node.client().unwrap());
    assert!(pair.service.try_recv().is_err());
    let other = thread::spawn(move || {
        assert!(service.try_recv().is_err());
        service
    });
    let service = other.join().unwrap();
    let (node, address) = (pair.server_node, pair.address);
    let answering = thread::spawn(move || {
        wait_until("the request is there", || node.stats().protocol.requests >= 1);
        pair::echo(service.recv().unwrap());
    });
    assert_eq!(own.call(address, "answered").wait().unwrap(), "answered");
    answering.join().unwrap();
}
