//! Calls that exceed the free room of the budgets.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use crate::pair::{Pair, acquaint, pair_with, serve};
use apus::{Bytes, Call, CallError, CallOptions, Client, Config, Delivery, Flush, Request};
use tower::{Service, ServiceExt};

/// Length of a request; two of them fit.
const LENGTH: usize = 100_000;

fn narrow_pair() -> Pair {
    let pair = pair_with(|config: &mut Config| {
        config.delivery(Delivery::suspend()).peer_budget(512 << 10).socket_budget(512 << 10);
    });
    acquaint(&pair);
    pair
}

fn body(number: u8) -> Vec<u8> {
    vec![number; LENGTH]
}

/// Makes calls until one is refused. Within the host, more of them fit than over UDP.
fn fill(pair: &Pair, client: &Client) -> Vec<Call> {
    let mut calls = Vec::new();
    loop {
        let number = calls.len() as u8;
        match client.call(pair.address, body(number)).wait_for_room(false).start() {
            Ok(call) => calls.push(call),
            Err(CallError::OverBudget { length: LENGTH, .. }) => return calls,
            Err(error) => panic!("{error}"),
        }
        assert!(calls.len() < 10, "the budgets are small");
    }
}

/// Answers a request with its first byte.
fn answer(request: Request) {
    let first = request.body().slice(..1);
    request.reply(first).unwrap();
}

#[test]
fn a_call_waits_until_another_one_has_ended() {
    let pair = narrow_pair();
    let client = pair.client_node.client().unwrap();
    let mut calls = fill(&pair, &client);
    let sent = client.send(pair.address, body(99), 3, Flush::Now);
    assert!(matches!(sent, Err(CallError::OverBudget { .. })), "{sent:?}");
    calls.push(client.call(pair.address, body(calls.len() as u8)).start().unwrap());
    drop(client.call(pair.address, body(99)).start().unwrap());
    assert_eq!(pair.client_node.stats().delivery.calls_waited, 2);
    for _ in 0..calls.len() {
        answer(pair.service.recv().unwrap());
    }
    for (call, number) in calls.into_iter().zip(0..) {
        assert_eq!(call.wait().unwrap(), vec![number]);
    }
    assert!(pair.service.try_recv().is_err(), "the call that was given up has not begun");
}

#[test]
fn all_calls_of_many_threads_succeed() {
    let pair = narrow_pair();
    for _ in 0..2 {
        serve(&pair.service, |request| drop(request.reply("done")));
    }
    let client = pair.client_node.client().unwrap();
    thread::scope(|scope| {
        for number in 0..10 {
            let (client, address) = (&client, pair.address);
            scope.spawn(move || {
                for _ in 0..5 {
                    assert_eq!(client.call(address, body(number)).wait().unwrap(), "done");
                }
            });
        }
    });
}

#[test]
fn a_call_waits_no_longer_than_its_deadline_and_for_no_room_that_nobody_makes() {
    let pair = narrow_pair();
    let client = pair.client_node.client().unwrap();
    let calls = fill(&pair, &client);
    for _ in 0..3 {
        let error = client
            .call(pair.address, body(3))
            .deadline(Duration::from_millis(5))
            .wait()
            .unwrap_err();
        assert!(matches!(error, CallError::OverBudget { .. }), "{error}");
        assert!(!error.may_have_executed());
    }
    let waiting = client.call(pair.address, body(3)).start().unwrap();
    client.shutdown();
    assert_eq!(waiting.wait(), Err(CallError::Closed));
    drop(calls);
    // Responses that were not taken occupy the room, and no call is under way.
    let client = pair.client_node.client().unwrap();
    serve(&pair.service, |mut request| {
        let body = request.take_body();
        drop(request.reply(body));
    });
    let begin = |_| match client.call(pair.address, body(5)).start() {
        // All responses have arrived.
        Err(CallError::OverBudget { .. }) => None,
        call => Some(call.unwrap()),
    };
    let undelivered: Vec<_> = (0..20).filter_map(begin).collect();
    let error = client.call(pair.address, body(5)).wait().unwrap_err();
    assert!(matches!(error, CallError::OverBudget { .. }), "{error}");
    // Some calls get their response, and others end with an error. No call waits for ever.
    for call in undelivered {
        match call.wait() {
            Ok(response) => assert_eq!(response, body(5)),
            Err(error) => assert!(matches!(error, CallError::OverBudget { .. }), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_tower_service_is_ready_when_no_call_waits() {
    let pair = narrow_pair();
    let mut client = pair.client_node.client().unwrap();
    let request = |number| (pair.address, Bytes::from(body(number)), CallOptions::new());
    let calls = fill(&pair, &client);
    let ready = client.ready().await.unwrap();
    let waiting = ready.call(request(calls.len() as u8));
    let mut other = pair.client_node.client().unwrap();
    {
        let mut ready = std::pin::pin!(ServiceExt::ready(&mut other));
        let waits = poll_fn(|context| Poll::Ready(ready.as_mut().poll(context).is_pending()));
        assert!(waits.await, "a call waits for room");
        answer(pair.service.recv_async().await.unwrap());
        ready.await.unwrap();
    }
    for _ in 0..calls.len() {
        answer(pair.service.recv_async().await.unwrap());
    }
    assert_eq!(waiting.await.unwrap(), vec![calls.len() as u8]);
    for (call, number) in calls.into_iter().zip(0..) {
        assert_eq!(call.await.unwrap(), vec![number]);
    }
}
