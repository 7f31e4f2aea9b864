//! A handler that panics.

use std::thread;

use crate::pair::{pair, serve};
use apus::{CallError, Delivery, Request};

#[test]
fn a_panic_ends_a_request_and_not_the_service() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let serving = serve(&pair.service, |request| {
            assert!(request.body() != "panic", "as the request says");
            let body = request.body().clone();
            request.reply(body).unwrap();
        });
        let client = pair.client_node.client().unwrap();
        for _ in 0..3 {
            let failed = client.call(pair.address, "panic").wait();
            assert_eq!(failed, Err(CallError::HandlerPanicked), "{delivery}");
            assert_eq!(client.call(pair.address, "on").wait().unwrap(), "on");
        }
        assert_eq!(pair.server_node.stats().delivery.handler_panics, 3);
        pair.service.shutdown();
        serving.join().unwrap();
    }
}

#[test]
fn a_panic_after_the_answer_is_the_servers_affair() {
    let pair = pair(Delivery::suspend());
    serve(&pair.service, |request| {
        let body = request.body().clone();
        request.reply(body).unwrap();
        panic!("too late to matter");
    });
    let client = pair.client_node.client().unwrap();
    for _ in 0..3 {
        assert_eq!(client.call(pair.address, "answered").wait().unwrap(), "answered");
    }
}

#[test]
fn a_panic_notifies_the_callers_of_every_request_the_thread_held() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let call = || client.call(pair.address, "x").start().unwrap();
    let calls = [call(), call()];
    let held: Vec<Request> = calls.iter().map(|_| pair.service.recv().unwrap()).collect();
    let worker = thread::spawn(move || panic!("with {} requests in hand", held.len()));
    assert!(worker.join().is_err());
    for call in calls {
        assert_eq!(call.wait(), Err(CallError::HandlerPanicked));
    }
}

#[test]
fn a_handler_that_fails_without_a_panic_notifies_its_caller() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "x").start().unwrap();
    pair.service.recv().unwrap().fail();
    assert_eq!(call.wait(), Err(CallError::HandlerPanicked));
    assert_eq!(pair.server_node.stats().delivery.handler_panics, 0);
}
