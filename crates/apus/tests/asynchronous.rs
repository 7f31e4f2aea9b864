//! The futures, with tokio as an example of an executor.

use std::future::{Future, IntoFuture as _};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::pair::{Pair, pair, pattern, serve_echo, wait_until};
use apus::{CallError, Delivery, Flush, RecvError};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_requests_are_futures() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let service = pair.service.clone();
        let server = tokio::spawn(async move {
            while let Ok(mut request) = service.recv_async().await {
                let body = request.take_body();
                request.reply(body).unwrap();
            }
        });
        let client = pair.client_node.client().unwrap();
        let tasks: Vec<_> = (0..20)
            .map(|task| {
                let (client, address) = (client.clone(), pair.address);
                tokio::spawn(async move {
                    for round in 0..20 {
                        let body = pattern(task * 100 + round, 400);
                        let call = client.call(address, body.clone()).start().unwrap();
                        assert_eq!(call.await.unwrap(), body);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        pair.service.shutdown();
        server.await.unwrap();
    }
}

#[tokio::test]
async fn threads_and_tasks_share_a_socket() {
    let pair = pair(Delivery::suspend());
    serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    let (thread_client, address) = (client.clone(), pair.address);
    let thread = std::thread::spawn(move || {
        for seed in 0..200 {
            let body = pattern(seed, 64);
            assert_eq!(thread_client.call(address, body.clone()).wait().unwrap(), body);
        }
    });
    for seed in 0..200 {
        let body = pattern(seed, 64);
        let call = client.call(pair.address, body.clone()).start().unwrap();
        assert_eq!(call.await.unwrap(), body);
    }
    thread.join().unwrap();
}

#[test]
fn a_result_that_is_there_is_ready_at_the_first_poll() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "first").start().unwrap();
    pair.service.recv().unwrap().reply("done").unwrap();
    // A second call on the same socket receives the first call's response.
    let second = client.call(pair.address, "second").start().unwrap();
    pair.service.recv().unwrap().reply("done").unwrap();
    second.wait().unwrap();
    let mut call = pin!(call);
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(call.as_mut().poll(&mut context), Poll::Ready(Ok("done".into())));
}

#[test]
fn a_call_is_sent_when_it_is_first_polled() {
    let pair = pair(Delivery::base());
    let client = pair.client_node.client().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    drop(client.call(pair.address, "never sent"));
    drop(client.call(pair.address, "never polled").into_future());
    let mut call = pin!(client.call(pair.address, "polled").into_future());
    assert!(call.as_mut().poll(&mut context).is_pending());
    let request = pair.service.recv().unwrap();
    assert_eq!(request.body(), "polled");
    request.reply("done").unwrap();
    wait_until("the response is there", || call.as_mut().poll(&mut context).is_ready());
}

#[tokio::test]
async fn a_handler_learns_that_its_call_is_given_up() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        // A task polls the client meanwhile, because nothing else does in a mode without a background thread.
        let call = |body: &'static str, deadline: Option<Duration>| {
            let (client, address) = (client.clone(), pair.address);
            tokio::spawn(async move {
                let call = client.call(address, body);
                let call =
                    if let Some(deadline) = deadline { call.deadline(deadline) } else { call };
                call.await
            })
        };
        for deadline in [None, Some(Duration::from_millis(50))] {
            let call = call("long work", deadline);
            let request = pair.service.recv_async().await.unwrap();
            // A task that is replaced does not wait any more.
            let context = Context::from_waker(Waker::noop());
            assert!(deadline.is_some() || request.poll_cancelled(&context).is_pending());
            if deadline.is_none() {
                call.abort();
            }
            request.cancelled().await;
            assert!(request.is_cancelled());
            request.cancelled().await;
        }
        let answered = call("short work", None);
        let request = pair.service.recv_async().await.unwrap();
        let context = Context::from_waker(Waker::noop());
        assert!(request.poll_cancelled(&context).is_pending());
        request.reply("done").unwrap();
        assert_eq!(answered.await.unwrap().unwrap(), "done");
        let held = call("held", None);
        let request = pair.service.recv_async().await.unwrap();
        let waits = tokio::spawn(async move { request.cancelled().await });
        tokio::task::yield_now().await;
        pair.service.shutdown();
        waits.await.unwrap();
        held.abort();
    }
}

#[tokio::test]
async fn a_first_contact_is_awaited() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    client.connect(pair.address).await.unwrap();
    client.connect(pair.address).deadline(Duration::from_secs(5)).await.unwrap();
}

#[test]
fn calls_of_a_queue_are_cancelled_by_their_cookie() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let other = pair.client_node.client().unwrap();
    for cookie in [1, 2, 2] {
        client.send(pair.address, "held", cookie, Flush::Now).unwrap();
    }
    other.send(pair.address, "held", 2, Flush::Now).unwrap();
    let held: Vec<_> = (0..4).map(|_| pair.service.recv().unwrap()).collect();
    assert!(client.cancel(2) && !client.cancel(2) && !client.cancel(3));
    for _ in 0..2 {
        let response = client.recv().unwrap();
        assert_eq!((response.cookie, response.result), (2, Err(CallError::Cancelled)));
    }
    wait_until("the server knows", || held.iter().filter(|it| it.is_cancelled()).count() == 2);
    for request in held {
        let _ = request.reply("done");
    }
    assert_eq!(client.recv().unwrap().result.unwrap(), "done");
    assert_eq!(other.recv().unwrap().result.unwrap(), "done");
}

#[test]
fn a_dropped_receive_takes_no_message_with_it() {
    let pair = pair(Delivery::base());
    let mut context = Context::from_waker(Waker::noop());
    let client = pair.client_node.client().unwrap();
    {
        let mut receive = pin!(pair.service.recv_async());
        assert!(receive.as_mut().poll(&mut context).is_pending());
    }
    let mut first = Box::pin(pair.service.recv_async());
    assert!(first.as_mut().poll(&mut context).is_pending());
    let call = client.call(pair.address, "x").start().unwrap();
    let second = pair.service.clone();
    let second = std::thread::spawn(move || second.recv().unwrap().reply("y"));
    drop(first);
    assert_eq!(call.wait().unwrap(), "y");
    second.join().unwrap().unwrap();
}

#[tokio::test]
async fn shutdown_ends_a_receive() {
    let pair = pair(Delivery::suspend());
    let service = pair.service.clone();
    let receive = tokio::spawn(async move { service.recv_async().await.map(drop) });
    tokio::task::yield_now().await;
    pair.service.shutdown();
    assert_eq!(receive.await.unwrap(), Err(RecvError::Closed));
}

#[tokio::test]
async fn a_node_is_closed_while_other_tasks_of_its_thread_go_on() {
    let Pair { client_node, service, address, .. } = pair(Delivery::suspend());
    let call = client_node.client().unwrap().call(address, "outstanding").start().unwrap();
    let request = service.recv_async().await.unwrap();
    let closing = tokio::spawn(client_node.close_async(Duration::from_secs(60)));
    tokio::task::yield_now().await;
    assert!(!closing.is_finished(), "a call is outstanding");
    request.reply("answer").unwrap();
    assert_eq!(call.await.unwrap(), "answer");
    assert_eq!(closing.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn names_are_looked_up_without_blocking_the_task() {
    let all = apus::resolve_all_async("localhost:4000@7000").await.unwrap();
    assert_eq!(all, apus::resolve_all("localhost:4000@7000").unwrap());
    assert_eq!(apus::resolve_async("10.0.0.1:4000").await.unwrap().to_string(), "10.0.0.1:4000");
    apus::resolve_async("no colon").await.unwrap_err();
}
