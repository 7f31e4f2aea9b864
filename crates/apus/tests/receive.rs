//! Taking requests: one by one, with a timeout, without waiting, in batches.

use std::time::Duration;

use crate::pair;
use crate::pair::{acquaint, pair};
use apus::{Address, CallError, Delivery, Flush, RecvError, ReplyError};

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
    let client = pair.client_node.client().unwrap();
    let calls: Vec<_> =
        (0..30).map(|_| client.call(pair.address, "ask").start().unwrap()).collect();
    let mut batch = Vec::new();
    while batch.len() < 30 {
        let count = pair.service.recv_many(&mut batch, 7, None).unwrap();
        assert!((1..=7).contains(&count));
    }
    let sends = pair.server_node.stats().link.send_calls;
    for request in batch {
        request.reply_with("held back", Flush::Later).unwrap();
    }
    assert_eq!(pair.server_node.stats().link.send_calls, sends);
    assert_eq!(pair.service.try_recv().map(drop), Err(RecvError::Empty));
    for call in calls {
        assert_eq!(call.wait().unwrap(), "held back");
    }
}

#[test]
fn a_request_has_the_address_of_its_client() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "who").start().unwrap();
    let mut request = pair.service.recv().unwrap();
    assert_eq!(request.from().host, pair.client_node.local_addr());
    assert_eq!(request.from().port, client.port());
    assert_eq!(request.take_body(), "who");
    assert!(request.body().is_empty());
    request.reply("you").unwrap();
    assert_eq!(call.wait().unwrap(), "you");
}

#[test]
fn a_request_may_be_answered_by_another_thread() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let (send, receive) = std::sync::mpsc::channel::<apus::Request>();
    pair::serve(&pair.service, move |request| send.send(request).unwrap());
    let worker = std::thread::spawn(move || {
        for request in receive {
            request.reply("from the worker").unwrap();
        }
    });
    for _ in 0..50 {
        assert_eq!(client.call(pair.address, "x").wait().unwrap(), "from the worker");
    }
    pair.service.shutdown();
    worker.join().unwrap();
}

#[test]
fn a_request_that_is_given_up_ends_the_call() {
    let pair = pair_quick();
    let client = pair.client_node.client().unwrap();
    for aloud in [true, false] {
        let call = client.call(pair.address, "x").start().unwrap();
        let request = pair.service.recv().unwrap();
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
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "x").start().unwrap();
    let request = pair.service.recv().unwrap();
    pair.service.shutdown();
    assert_eq!(request.reply("too late").unwrap_err().error(), ReplyError::Gone);
    drop(call);
}

#[test]
fn a_failed_reply_gives_the_request_back() {
    let pair = pair::pair_with(|config| {
        config.message_max(1_000);
    });
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "how long?").start().unwrap();
    let mut request = pair.service.recv().unwrap();
    let error = ReplyError::MessageTooLarge { length: 2_000, limit: 1_000 };
    let failed = request.reply(vec![0; 2_000]).unwrap_err();
    assert_eq!(failed.error(), error);
    assert_eq!(failed.to_string(), error.to_string());
    request = failed.into_request();
    assert_eq!(request.take_body(), "how long?");
    request.reply("shorter").unwrap();
    assert_eq!(call.wait().unwrap(), "shorter");
}

#[test]
fn a_loop_over_requests_survives_whatever_a_client_does() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        acquaint(&pair);
        let service = pair.service.clone();
        let server = std::thread::spawn(move || {
            let mut replies = [0, 0];
            while let Ok(mut request) = service.recv() {
                let body = request.take_body();
                replies[usize::from(request.reply(body).is_err())] += 1;
            }
            replies
        });
        for round in 0..20u8 {
            let client = pair.client_node.client().unwrap();
            assert_eq!(client.call(pair.address, "").wait().unwrap(), "");
            client.call(pair.address, "cancelled").start().unwrap().cancel();
            drop(client.call(pair.address, vec![round; 200_000]).start().unwrap());
            // The response may come before the deadline is checked.
            client.call(pair.address, "late").deadline(Duration::ZERO).wait().ok();
            client.send(pair.address, "closed", 1, Flush::Later).unwrap();
            client.shutdown();
            let client = pair.client_node.client().unwrap();
            assert_eq!(client.call(pair.address, vec![round]).wait().unwrap(), vec![round]);
        }
        pair.client_node.close(Duration::ZERO).ok();
        pair.service.shutdown();
        let [answered, _] = server.join().unwrap();
        assert!(answered >= 20, "{delivery}: {answered}");
    }
}

#[test]
fn nobody_can_call_the_port_of_a_client() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let own = Address::new(pair.client_node.local_addr(), client.port());
    let call = pair.server_node.client().unwrap().call(own, "x").wait();
    assert_eq!(call, Err(CallError::NoSuchPort));
    assert_eq!(client.try_recv(), Err(RecvError::Empty));
}

#[test]
fn an_empty_reply_is_a_response() {
    let pair = pair_quick();
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "").start().unwrap();
    let request = pair.service.recv().unwrap();
    assert!(request.body().is_empty());
    let _ = request.reply("");
    assert_eq!(call.wait().unwrap(), "");
    client.send(pair.address, "", 7, Flush::Now).unwrap();
    pair.service.recv().unwrap().reply("").unwrap();
    assert_eq!(client.recv().unwrap().result.unwrap(), "");
}

/// A pair with a short RTO.
fn pair_quick() -> pair::Pair {
    pair::pair_with(|config| {
        config.peer_timeout(Duration::from_millis(200));
    })
}
