//! Requests are not executed once no caller waits for their responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::pair;
use crate::pair::{Pair, acquaint, pair, pair_with, serve, wait_until};
use apus::{CallError, CallOptions, Client, Config, Delivery, Flush, Port, RecvError, Request};

/// Number of calls of each test that no caller waits for.
const CALLS: u64 = 20;

/// The number of requests that the server knows to be unwanted.
fn unwanted(pair: &Pair) -> u64 {
    let stats = pair.server_node.stats().protocol;
    stats.requests_cancelled + stats.requests_expired
}

/// Makes calls that end before a thread serves, each in one of the ways in which a caller gives up.
fn call_and_go(pair: &Pair, client: Client, way: usize) {
    let expected = unwanted(pair) + CALLS;
    let requests = pair.server_node.stats().protocol.requests + CALLS;
    // A time limit that passes before the server looks, and one that does not.
    let time = Duration::from_millis(if way == 0 { 20 } else { 3_600_000 });
    let options = CallOptions::new().deadline(time);
    let calls: Vec<_> = match way {
        2 => {
            for cookie in 0..CALLS {
                client.send_with(pair.address, "?", cookie, Flush::Now, options).unwrap();
            }
            Vec::new()
        }
        _ => (0..CALLS)
            .map(|_| client.call(pair.address, "?").options(options).start().unwrap())
            .collect(),
    };
    wait_until("the server has the requests", || {
        pair.server_node.stats().protocol.requests >= requests
    });
    match way {
        0 => calls.into_iter().for_each(|call| {
            let error = call.wait().unwrap_err();
            assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        }),
        1 => drop(calls),
        _ => client.shutdown(),
    }
    wait_until("the server knows that nobody waits", || unwanted(pair) >= expected);
}

/// Counts the executed requests.
fn count(service: &Port) -> Arc<AtomicU32> {
    let executed = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&executed);
    drop(serve(service, move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        pair::echo(request);
    }));
    executed
}

//= docs/protocol.md#life-11
#[test]
fn requests_whose_callers_have_gone_are_skipped() {
    for way in 0..3 {
        let pair = pair(Delivery::suspend());
        acquaint(&pair);
        call_and_go(&pair, pair.client_node.client().unwrap(), way);
        let executed = count(&pair.service);
        assert_eq!(
            pair.client_node.client().unwrap().call(pair.address, "last").wait().unwrap(),
            "last"
        );
        assert_eq!(executed.load(Ordering::Relaxed), 1, "way {way}");
        assert_eq!(pair.server_node.stats().protocol.requests_skipped, CALLS, "way {way}");
        wait_until("nothing is left", || pair.server_node.stats().protocol.requests_abandoned == 0);
    }
}

#[test]
fn every_way_to_receive_skips_them() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    let skipped = || pair.server_node.stats().protocol.requests_skipped;
    call_and_go(&pair, pair.client_node.client().unwrap(), 1);
    assert!(matches!(pair.service.try_recv(), Err(RecvError::Empty)));
    assert_eq!(skipped(), CALLS);
    call_and_go(&pair, pair.client_node.client().unwrap(), 1);
    let received = pair.service.recv_timeout(Duration::ZERO);
    assert!(matches!(received, Err(RecvError::Timeout)), "{received:?}");
    assert_eq!(skipped(), 2 * CALLS);
    call_and_go(&pair, pair.client_node.client().unwrap(), 1);
    let mut batch = Vec::new();
    let received = pair.service.recv_many(&mut batch, 100, Some(Duration::ZERO));
    assert!(matches!(received, Err(RecvError::Timeout)) && batch.is_empty(), "{received:?}");
    assert_eq!(skipped(), 3 * CALLS);
}

#[test]
fn the_setting_has_them_executed() {
    let pair = pair_with(|config: &mut Config| {
        config.delivery(Delivery::suspend()).skip_unwanted(false);
    });
    acquaint(&pair);
    call_and_go(&pair, pair.client_node.client().unwrap(), 1);
    let executed = count(&pair.service);
    assert_eq!(
        pair.client_node.client().unwrap().call(pair.address, "last").wait().unwrap(),
        "last"
    );
    assert_eq!(u64::from(executed.load(Ordering::Relaxed)), CALLS + 1);
    assert_eq!(pair.server_node.stats().protocol.requests_skipped, 0);
}

/// Gives the request up when its deadline has passed.
fn work_until_the_deadline(request: Request) {
    while !request.is_cancelled() && request.remaining().is_none_or(|rest| !rest.is_zero()) {}
}

//= docs/protocol.md#life-3
#[test]
fn a_handler_that_stops_at_the_deadline_ends_its_call_by_the_deadline() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    for _ in 0..2 {
        drop(serve(&pair.service, work_until_the_deadline));
    }
    let client = pair.client_node.client().unwrap();
    for round in 0..40 {
        let options = CallOptions::new().deadline(Duration::from_micros(2_000 + 37 * round));
        let calls =
            [(); 2].map(|()| client.call(pair.address, "?").options(options).start().unwrap());
        for call in calls {
            let error = call.wait().unwrap_err();
            assert!(matches!(error, CallError::Deadline { .. }), "round {round}: {error}");
        }
    }
}
