//! Requests and responses as streams (feature `stream`).

use std::pin::Pin;
use std::task::{Context, Waker};

use crate::pair::{echo, pair, pattern};
use apus::{Delivery, Flush};
use futures_util::StreamExt;
use futures_util::stream::FusedStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_a_stream_of_requests_until_it_is_closed() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let mut requests = pair.service.requests();
        let server = tokio::spawn(async move {
            let mut served = 0;
            while let Some(request) = requests.next().await {
                echo(request);
                served += 1;
            }
            assert!(requests.is_terminated() && requests.next().await.is_none());
            served
        });
        let client = pair.client_node.client().unwrap();
        for seed in 0..50 {
            let body = pattern(seed, 300);
            let call = client.call(pair.address, body.clone()).start().unwrap();
            assert_eq!(call.await.unwrap(), body, "{delivery}");
        }
        pair.service.shutdown();
        assert_eq!(server.await.unwrap(), 50);
    }
}

#[test]
fn a_dropped_stream_takes_no_request_with_it() {
    let pair = pair(Delivery::base());
    let mut requests = pair.service.requests();
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut requests).poll_next_unpin(&mut context).is_pending());
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "x").start().unwrap();
    let service = pair.service.clone();
    let other = std::thread::spawn(move || service.recv().unwrap().reply("y").unwrap());
    drop(requests);
    assert_eq!(call.wait().unwrap(), "y");
    other.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_a_stream_of_responses_until_it_is_closed() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let mut requests = pair.service.requests();
        tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                echo(request);
            }
        });
        let client = pair.client_node.client().unwrap();
        let mut responses = client.responses();
        for cookie in 0..50 {
            client.send(pair.address, pattern(cookie, 300), cookie, Flush::Now).unwrap();
            let response = responses.next().await.unwrap();
            assert_eq!(response.cookie, cookie, "{delivery}");
            assert_eq!(response.result.unwrap(), pattern(cookie, 300), "{delivery}");
        }
        client.shutdown();
        assert!(responses.next().await.is_none() && responses.is_terminated(), "{delivery}");
    }
}

#[test]
fn a_dropped_stream_takes_no_response_with_it() {
    let pair = pair(Delivery::base());
    let client = pair.client_node.client().unwrap();
    let mut responses = client.responses();
    let mut context = Context::from_waker(Waker::noop());
    client.send(pair.address, "x", 7, Flush::Now).unwrap();
    assert!(Pin::new(&mut responses).poll_next_unpin(&mut context).is_pending());
    let other = std::thread::spawn(move || client.recv().unwrap());
    drop(responses);
    pair.service.recv().unwrap().reply("y").unwrap();
    assert_eq!(other.join().unwrap().result.unwrap(), "y");
}
