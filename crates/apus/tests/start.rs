//! Calls that are started first, and waited for, taken, cancelled or dropped later.

use std::thread;
use std::time::Duration;

use crate::pair;
use crate::pair::{acquaint, pair, pattern, serve_echo};
use apus::{Address, CallError, Delivery, Flush, Response, StartError};

#[test]
fn many_calls_of_one_thread_end_in_any_order() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        let calls: Vec<_> = (0..200)
            .map(|seed| (seed, client.call(pair.address, pattern(seed, 100)).start().unwrap()))
            .collect();
        for (seed, call) in calls.into_iter().rev() {
            assert_eq!(call.wait().unwrap(), pattern(seed, 100));
        }
    }
}

#[test]
fn a_call_can_be_asked_whether_it_has_ended() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    let call = client.call(pair.address, "ask").start().unwrap();
    let call = call.try_take().expect_err("nobody has answered");
    pair.service.recv().unwrap().reply("answer").unwrap();
    let mut asked = Err(call);
    let result = loop {
        match asked {
            Ok(result) => break result,
            Err(call) => asked = call.try_take(),
        }
    };
    assert_eq!(result.unwrap(), "answer");
}

#[test]
fn a_wait_with_a_timeout_leaves_the_call_as_it_is() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        acquaint(&pair);
        let mut call = client.call(pair.address, "ask").start().unwrap();
        for timeout in [Duration::ZERO, Duration::from_millis(2), Duration::ZERO] {
            call = call.wait_timeout(timeout).expect_err("nobody has answered");
        }
        pair.service.recv().unwrap().reply("answer").unwrap();
        // One that has come is returned without a wait; before, each turns the node.
        let result = loop {
            match call.wait_timeout(Duration::ZERO) {
                Ok(result) => break result,
                Err(unfinished) => call = unfinished,
            }
        };
        assert_eq!(result.unwrap(), "answer", "{delivery}");
        let call = client.call(pair.address, "ask").start().unwrap();
        pair.service.recv().unwrap().reply("again").unwrap();
        let result = call.wait_timeout(Duration::MAX).expect("a wait without end has a result");
        assert_eq!(result.unwrap(), "again", "{delivery}");
    }
}

#[test]
fn a_call_is_cancelled_while_a_thread_waits_with_a_timeout() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        let call = client.call(pair.address, "x").start().unwrap();
        let canceller = call.canceller();
        let waiting = thread::spawn(move || call.wait_timeout(Duration::from_secs(3600)));
        canceller.cancel();
        let result = waiting.join().unwrap().expect("the call has ended");
        assert_eq!(result, Err(CallError::Cancelled), "{delivery}");
    }
}

#[test]
fn a_deadline_ends_a_call() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        let deadline = Duration::from_millis(3);
        let result = client.call(pair.address, "x").deadline(deadline).wait();
        match result {
            Err(CallError::Deadline { after, .. }) => assert!(after >= deadline),
            other => panic!("{delivery}: {other:?}"),
        }
    }
}

#[test]
fn a_cancelled_call_says_so_to_its_waiter() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        let call = client.call(pair.address, "x").start().unwrap();
        let canceller = call.canceller();
        let waiting = thread::spawn(move || call.wait());
        canceller.cancel();
        assert_eq!(waiting.join().unwrap(), Err(CallError::Cancelled), "{delivery}");
        canceller.cancel();
        let call = client.call(pair.address, "x").start().unwrap();
        call.cancel();
        assert_eq!(call.wait(), Err(CallError::Cancelled));
    }
}

#[test]
fn a_dropped_call_is_given_up() {
    let pair = pair(Delivery::suspend());
    let client = pair.client_node.client().unwrap();
    drop(client.call(pair.address, "dropped").start().unwrap());
    let kept = client.call(pair.address, "kept").start().unwrap();
    let service = pair.service.clone();
    let server = thread::spawn(move || {
        // The first request may have arrived before it was given up; its answer is dropped.
        loop {
            let request = service.recv().unwrap();
            let last = request.body() == "kept";
            let body = request.body().clone();
            let _ = request.reply(body);
            if last {
                return;
            }
        }
    });
    assert_eq!(kept.wait().unwrap(), "kept");
    server.join().unwrap();
    assert_eq!(pair.client_node.stats().protocol.calls_aborted, 1);
}

#[test]
fn cookies_come_back_with_responses() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        const CALLS: u64 = 500;
        for cookie in 0..CALLS {
            let flush = if cookie % 10 == 9 { Flush::Now } else { Flush::Later };
            client.send(pair.address, pattern(cookie, 100), u64::MAX - cookie, flush).unwrap();
        }
        let mut seen = vec![false; CALLS as usize];
        let mut batch = Vec::new();
        let mut left = CALLS as usize;
        while left > 0 {
            left -= client.recv_many(&mut batch, 64, None).unwrap();
            for Response { cookie, result, .. } in batch.drain(..) {
                let cookie = u64::MAX - cookie;
                assert_eq!(result.unwrap(), pattern(cookie, 100));
                assert!(!std::mem::replace(&mut seen[cookie as usize], true));
            }
        }
    }
}

#[test]
fn what_is_held_back_goes_out_with_the_next_wait() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        client.send(pair.address, "held back", 7, Flush::Later).unwrap();
        let response = client.recv().unwrap();
        assert_eq!((response.cookie, response.result.unwrap()), (7, "held back".into()));
    }
}

#[test]
fn misuse_is_refused_before_anything_is_sent() {
    let pair = pair::pair_with(|config| {
        config.message_max(1_000);
    });
    let sent = || pair.client_node.stats().protocol.packets_sent;
    let before = sent();
    let client = pair.client_node.client().unwrap();
    let too_large = CallError::MessageTooLarge { length: 1_001, limit: 1_000 };
    assert!(!too_large.may_have_executed());
    assert_eq!(client.call(pair.address, vec![0; 1_001]).wait(), Err(too_large.clone()));
    assert_eq!(client.send(pair.address, vec![0; 1_001], 1, Flush::Now), Err(too_large));
    for all in ["0.0.0.0:20146", "[::]:20146", "[::ffff:0.0.0.0]:20146", "0.0.0.0:0"] {
        let all = Address::new(all.parse().unwrap(), 4000);
        let refused = CallError::UnspecifiedAddress(all);
        assert_eq!(client.call(all, "x").wait(), Err(refused.clone()));
        assert_eq!(client.connect(all).wait(), Err(refused.clone()));
        assert_eq!(client.send(all, "x", 1, Flush::Now), Err(refused));
        let probed = apus::probe(all, Duration::MAX);
        assert!(matches!(probed, Err(StartError::UnspecifiedAddress(_))), "{probed:?}");
    }
    let refused = CallError::UnspecifiedAddress("0.0.0.0:4000@7000".parse().unwrap());
    let text = "cannot call 0.0.0.0:4000@7000: 0.0.0.0 is an address to listen on, \
                not the address of a node";
    assert_eq!(refused.to_string(), text);
    assert_eq!(sent(), before);
}
