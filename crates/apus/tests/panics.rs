//! A handler that panics.

mod pair;

use std::thread;

use apus::{CallError, Delivery, Incoming};
use pair::{pair, serve};

#[test]
fn a_panic_ends_a_request_and_not_the_service() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let serving = serve(&pair.service, |request| {
            assert!(request.body() != "panic", "as the request says");
            let body = request.body().clone();
            request.reply(body).unwrap();
        });
        let socket = pair.client.socket().unwrap();
        for _ in 0..3 {
            let failed = socket.call(pair.address, "panic");
            assert_eq!(failed, Err(CallError::HandlerPanicked), "{delivery}");
            assert_eq!(socket.call(pair.address, "on").unwrap(), "on");
        }
        assert_eq!(pair.server.stats().delivery.handler_panics, 3);
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
    let socket = pair.client.socket().unwrap();
    for _ in 0..3 {
        assert_eq!(socket.call(pair.address, "answered").unwrap(), "answered");
    }
}

#[test]
fn a_panic_tells_the_callers_of_every_request_the_thread_held() {
    let pair = pair(Delivery::suspend());
    let socket = pair.client.socket().unwrap();
    let call = || socket.start(pair.address, "x", apus::CallOptions::new()).unwrap();
    let calls = [call(), call()];
    let held: Vec<Incoming> = calls.iter().map(|_| pair.service.recv().unwrap()).collect();
    let worker = thread::spawn(move || panic!("with {} requests in hand", held.len()));
    assert!(worker.join().is_err());
    for call in calls {
        assert_eq!(call.wait(), Err(CallError::HandlerPanicked));
    }
}
