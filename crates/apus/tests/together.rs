//! Calls that begin together, and requests that are answered together.

use std::sync::mpsc::channel;
use std::thread;

use crate::pair;
use crate::pair::{acquaint, pair, pair_with, serve, wait_until};
use apus::{Address, Bytes, CallError, Config, Delivery, Flush, ReplyError, Request};

/// Bodies and cookies of calls. Each body says its cookie.
fn calls(count: u64) -> Vec<(Bytes, u64)> {
    (0..count).map(|cookie| (cookie.to_string().into(), cookie)).collect()
}

#[test]
fn calls_that_begin_together_are_answered_each() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    drop(serve(&pair.service, pair::echo));
    let client = pair.client_node.client().unwrap();
    for count in [0, 1, 64, 1_000] {
        let (mut together, mut responses) = (calls(count), Vec::new());
        client.send_many(pair.address, &mut together, Flush::Now).unwrap();
        assert!(together.is_empty(), "all were sent");
        while responses.len() < count as usize {
            client.recv_many(&mut responses, 256, None).unwrap();
        }
        responses.sort_by_key(|response| response.cookie);
        for (cookie, response) in (0..count).zip(responses) {
            assert_eq!(
                (response.cookie, response.result.unwrap()),
                (cookie, cookie.to_string().into())
            );
        }
    }
}

#[test]
fn a_call_that_is_refused_and_those_behind_it_stay_with_the_caller() {
    let pair = pair_with(|config: &mut Config| {
        config.delivery(Delivery::suspend()).message_max(1_000);
    });
    acquaint(&pair);
    drop(serve(&pair.service, pair::echo));
    let client = pair.client_node.client().unwrap();
    let mut together = calls(9);
    together[4].0 = vec![7; 1_001].into();
    let error = client.send_many(pair.address, &mut together, Flush::Later).unwrap_err();
    assert!(matches!(error, CallError::MessageTooLarge { length: 1_001, .. }), "{error}");
    assert_eq!(together.len(), 5);
    assert_eq!(together[0], (vec![7; 1_001].into(), 4));
    assert_eq!(together[1..], calls(9)[5..]);
    let answered: u64 = (0..4).map(|_| client.recv().unwrap().cookie).sum();
    assert_eq!(answered, 6, "those before it were sent");
    let nowhere = Address::new("0.0.0.0:9".parse().unwrap(), 7);
    client.send_many(nowhere, &mut together, Flush::Now).unwrap_err();
    assert_eq!(together.len(), 5);
}

#[test]
fn requests_without_a_response_and_those_whose_client_has_gone_stay() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    let client = pair.client_node.client().unwrap();
    let mut started: Vec<_> =
        (0..4).map(|n| client.call(pair.address, n.to_string()).start().unwrap()).collect();
    let mut requests = Vec::new();
    while requests.len() < 4 {
        pair.service.recv_many(&mut requests, 4, None).unwrap();
    }
    requests.sort_by_key(|request| request.body().clone());
    drop(started.remove(1));
    wait_until("the server knows that nobody waits", || requests[1].is_cancelled());
    for request in &mut requests[..3] {
        let body = request.take_body();
        request.set_reply([&b"response to "[..], &body].concat());
    }
    assert_eq!(Request::reply_all(&mut requests, Flush::Now), 2);
    let [gone, open] = <[Request; 2]>::try_from(requests).unwrap();
    assert_eq!((&gone.body()[..], &open.body()[..]), (&b"response to 1"[..], &b"3"[..]));
    let body = gone.body().clone();
    let failed = gone.reply(body).unwrap_err();
    assert!(matches!(failed.error(), ReplyError::Gone), "{failed}");
    open.reply("response to 3").unwrap();
    for (call, number) in started.into_iter().zip([0, 2, 3]) {
        assert_eq!(call.wait().unwrap(), format!("response to {number}"));
    }
}

/// A response of a quick handler leaves with the others of its batch. It does not wait for a handler of the batch that waits for the
/// caller.
#[test]
fn a_response_leaves_although_the_next_handler_waits_for_its_caller() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    let (release, released) = channel();
    drop(serve(&pair.service, move |request| {
        if request.body() == "waits" {
            released.recv().unwrap();
        }
        pair::echo(request);
    }));
    let client = pair.client_node.client().unwrap();
    for round in 0..20 {
        // Quick requests first, so that the service takes several at a time.
        let mut together = calls(64);
        together.push(("waits".into(), 64));
        client.send_many(pair.address, &mut together, Flush::Now).unwrap();
        let mut responses: Vec<u64> = (0..64).map(|_| client.recv().unwrap().cookie).collect();
        responses.sort_unstable();
        assert!(responses.into_iter().eq(0..64), "round {round}");
        release.send(()).unwrap();
        assert_eq!(client.recv().unwrap().cookie, 64);
    }
}

#[test]
fn responses_of_quick_handlers_arrive_when_many_threads_call() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    for _ in 0..2 {
        drop(serve(&pair.service, pair::echo));
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = pair.client_node.client().unwrap();
                for _ in 0..50 {
                    client.send_many(pair.address, &mut calls(40), Flush::Now).unwrap();
                    let sum: u64 = (0..40).map(|_| client.recv().unwrap().cookie).sum();
                    assert_eq!(sum, 39 * 40 / 2);
                }
            });
        }
    });
}
