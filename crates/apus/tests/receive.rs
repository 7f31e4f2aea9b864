//! Taking requests: one by one, with a timeout, without waiting, in batches.

mod pair;

use std::time::Duration;

use apus::{CallError, CallOptions, Delivery, Flush, RecvError, ReplyError};
use pair::{pair, request};

const OPTIONS: CallOptions = CallOptions::new();

#[test]
fn nothing_comes_in_time() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let result = pair.service.recv_timeout(Duration::from_micros(500));
        assert_eq!(result.map(drop), Err(RecvError::Timeout), "{delivery}");
        assert_eq!(pair.service.try_recv().map(drop), Err(RecvError::Empty));
        let mut batch = Vec::new();
        let result = pair.service.recv_many(&mut batch, 10, Some(Duration::ZERO));
        assert_eq!(result, Err(RecvError::Timeout));
    }
}

#[test]
fn requests_that_are_there_come_in_one_batch_and_are_answered_in_one() {
    let pair = pair(Delivery::suspend());
    let socket = pair.client.socket().unwrap();
    let calls: Vec<_> =
        (0..30).map(|_| socket.start(pair.address, "ask", OPTIONS).unwrap()).collect();
    let mut batch = Vec::new();
    while batch.len() < 30 {
        let count = pair.service.recv_many(&mut batch, 7, None).unwrap();
        assert!((1..=7).contains(&count));
    }
    let sends = pair.server.stats().link.send_calls;
    for incoming in batch {
        request(incoming).reply_with("held back", Flush::Later).unwrap();
    }
    assert_eq!(pair.server.stats().link.send_calls, sends);
    assert_eq!(pair.service.try_recv().map(drop), Err(RecvError::Empty));
    for call in calls {
        assert_eq!(call.wait().unwrap(), "held back");
    }
}

#[test]
fn a_request_tells_where_it_is_from() {
    let pair = pair(Delivery::suspend());
    let socket = pair.client.socket().unwrap();
    let call = socket.start(pair.address, "who", OPTIONS).unwrap();
    let mut request = request(pair.service.recv().unwrap());
    assert_eq!(request.from().host, pair.client.local_addr());
    assert_eq!(request.from().port, socket.port());
    assert_eq!(request.take_body(), "who");
    assert!(request.body().is_empty());
    request.reply("you").unwrap();
    assert_eq!(call.wait().unwrap(), "you");
}

#[test]
fn a_request_may_be_answered_by_another_thread() {
    let pair = pair(Delivery::suspend());
    let socket = pair.client.socket().unwrap();
    let (send, receive) = std::sync::mpsc::channel::<apus::Request>();
    pair::serve(&pair.service, move |request| send.send(request).unwrap());
    let worker = std::thread::spawn(move || {
        for request in receive {
            request.reply("from the worker").unwrap();
        }
    });
    for _ in 0..50 {
        assert_eq!(socket.call(pair.address, "x").unwrap(), "from the worker");
    }
    pair.service.shutdown();
    worker.join().unwrap();
}

#[test]
fn a_request_that_is_given_up_ends_the_call() {
    let pair = pair_quick();
    let socket = pair.client.socket().unwrap();
    for aloud in [true, false] {
        let call = socket.start(pair.address, "x", OPTIONS).unwrap();
        let request = request(pair.service.recv().unwrap());
        if aloud {
            request.abandon();
        } else {
            drop(request);
        }
        let error = call.wait().unwrap_err();
        assert!(
            matches!(error, CallError::ResponseLost | CallError::PeerTimeout { .. }),
            "{error:?}"
        );
    }
}

#[test]
fn a_reply_nobody_waits_for_is_refused() {
    let pair = pair(Delivery::suspend());
    let socket = pair.client.socket().unwrap();
    let call = socket.start(pair.address, "x", OPTIONS).unwrap();
    let request = request(pair.service.recv().unwrap());
    pair.service.shutdown();
    assert_eq!(request.reply("too late"), Err(ReplyError::Gone));
    drop(call);
}

#[test]
fn a_misused_reply_is_refused() {
    let pair = pair_quick();
    let socket = pair.client.socket().unwrap();
    let call = socket.start(pair.address, "x", OPTIONS).unwrap();
    let request = request(pair.service.recv().unwrap());
    assert_eq!(request.reply(""), Err(ReplyError::EmptyMessage));
    call.wait().unwrap_err();
}

/// A pair with a short RTO.
fn pair_quick() -> pair::Pair {
    pair::pair_with(|config| {
        config.peer_timeout(Duration::from_millis(200));
    })
}
