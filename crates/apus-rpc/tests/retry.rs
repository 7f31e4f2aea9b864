//! Calls that are repeated by a policy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apus_rpc::{Bytes, Channel, Code, Context, Retry, RetryPolicy, Status};
use futures_lite::future::block_on;

use crate::pair::{Served, address, node, served};

const PAUSE: Duration = Duration::from_micros(10);

/// A server whose method fails as many times as the request says, and what it has seen.
struct Failing {
    served: Served,
    calls: Arc<AtomicU64>,
    /// The values of `grpc-previous-rpc-attempts`.
    previous: Arc<Mutex<Vec<Option<String>>>>,
}

/// `pushback` goes with each failure.
fn failing(code: Code, pushback: Option<&'static str>) -> Failing {
    let (calls, previous) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<_>>>::default());
    let (counted, seen) = (Arc::clone(&calls), Arc::clone(&previous));
    let handler = move |cx: Context, body: Bytes| {
        let before = counted.fetch_add(1, Ordering::SeqCst);
        let attempts = cx.metadata().get("grpc-previous-rpc-attempts").map(str::to_owned);
        seen.lock().expect("no panic").push(attempts);
        let failures: u64 = str::from_utf8(&body).expect("a text").parse().expect("a number");
        async move {
            if before >= failures {
                return Ok(body);
            }
            if let Some(text) = pushback {
                cx.set_trailer("grpc-retry-pushback-ms", text).expect("a pair");
            }
            Err(Status::new(code, "planted"))
        }
    };
    let served = served(|server| server.route("/a.B/Fail", handler));
    Failing { served, calls, previous }
}

impl Failing {
    fn channel(&self, retry: Retry) -> Channel {
        let channel = Channel::builder(&address(&self.served.node)).node(&node()).retry(retry);
        channel.seed(7).build().expect("a channel")
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

fn policy() -> RetryPolicy {
    RetryPolicy::new().attempts(4).backoff(PAUSE, 1.0, PAUSE)
}

#[test]
fn an_idempotent_call_is_repeated_and_the_server_sees_it() {
    let failing = failing(Code::Unavailable, None);
    let channel = failing.channel(Retry::safe().idempotent(policy()));
    channel.unary("/a.B/Fail", "3").idempotent().wait().expect("the fourth attempt");
    let expected = [None, Some("1".to_owned()), Some("2".to_owned()), Some("3".to_owned())];
    assert_eq!(*failing.previous.lock().expect("no panic"), expected);
    let call = channel.unary("/a.B/Fail", "6").idempotent();
    block_on(call.into_future()).expect("the third attempt");
    assert_eq!((failing.calls(), channel.counters().repeated()), (7, 5));
}

#[test]
fn a_call_that_may_be_executed_once_is_not_repeated() {
    let failing = failing(Code::Unavailable, None);
    let channel = failing.channel(Retry::safe().idempotent(policy()));
    let status = channel.unary("/a.B/Fail", "9").wait().expect_err("a failure");
    assert!(status.may_have_executed() && status.message() == "planted");
    assert_eq!((failing.calls(), channel.counters().repeated()), (1, 0));
}

#[test]
fn a_policy_of_a_method_has_codes_and_a_number_of_attempts() {
    let failing = failing(Code::Aborted, None);
    let channel = failing.channel(Retry::new().method("/a.B/Fail", policy()));
    channel.unary("/a.B/Fail", "9").wait().expect_err("another code");
    assert_eq!(failing.calls(), 1);
    let policy = policy().codes([Code::Aborted]).attempts(2);
    let channel = failing.channel(Retry::new().service("a.B", policy));
    channel.unary("/a.B/Fail", "9").wait().expect_err("two attempts");
    assert_eq!(failing.calls(), 3);
}

#[test]
fn a_server_that_wants_no_repetition_gets_none() {
    let failing = failing(Code::Unavailable, Some("-1"));
    let channel = failing.channel(Retry::new().method("/a.B/Fail", policy()));
    channel.unary("/a.B/Fail", "9").wait().expect_err("no repetition");
    assert_eq!(failing.calls(), 1);
    let later = self::failing(Code::Unavailable, Some("0"));
    let minute = Duration::from_secs(60);
    let policy = policy().backoff(minute, 1.0, minute);
    let channel = later.channel(Retry::new().method("/a.B/Fail", policy));
    channel.unary("/a.B/Fail", "1").wait().expect("at once");
    assert_eq!(later.calls(), 2);
}

#[test]
fn a_pause_beyond_the_deadline_is_not_begun() {
    let failing = failing(Code::Unavailable, None);
    let hour = Duration::from_secs(3_600);
    let retry = Retry::new().method("/a.B/Fail", policy().backoff(hour, 1.0, hour));
    let channel = failing.channel(retry);
    let call = channel.unary("/a.B/Fail", "1").deadline(Duration::from_secs(60));
    assert_eq!(call.wait().expect_err("the failure").code(), Code::Unavailable);
    assert_eq!(failing.calls(), 1);
}

#[test]
fn many_failures_end_repetition() {
    let failing = failing(Code::Unavailable, None);
    let channel = failing.channel(Retry::new().method("/a.B/Fail", policy()));
    for _ in 0..10 {
        channel.unary("/a.B/Fail", "1000").wait().expect_err("a failure");
    }
    // The first four failures leave more than half of ten tokens, and the fourth one is that of the last attempt.
    assert_eq!((failing.calls(), channel.counters().repeated()), (13, 3));
}

#[test]
fn a_request_that_was_not_executed_is_repeated_at_the_only_server_if_the_channel_may() {
    let tried = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&tried);
    let served = served(|server| {
        let server = server.route("/a.B/Echo", |_: Context, body: Bytes| async move { Ok(body) });
        server.interceptor(move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Status::new(Code::Unavailable, "not yet")),
            _ => Ok(()),
        })
    });
    let channel = Channel::builder(&address(&served.node)).node(&node()).retry(Retry::safe());
    channel.build().expect("a channel").unary("/a.B/Echo", "x").wait().expect("a response");
    assert_eq!(tried.load(Ordering::SeqCst), 2);
}

#[test]
fn a_call_may_have_executed_if_one_of_its_attempts_may() {
    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    let served = served(|server| {
        let server = server.route("/a.B/Fail", |_: Context, _: Bytes| async move {
            Err::<Bytes, _>(Status::new(Code::Unavailable, "executed"))
        });
        server.interceptor(move |_| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Status::new(Code::Unavailable, "not executed")),
        })
    });
    let retry = Retry::new().method("/a.B/Fail", policy());
    let channel = Channel::builder(&address(&served.node)).node(&node()).retry(retry);
    let status = channel.build().expect("a channel").unary("/a.B/Fail", "").wait();
    let status = status.expect_err("a failure");
    assert_eq!((status.message(), calls.load(Ordering::SeqCst)), ("not executed", 4));
    assert!(status.may_have_executed());
}
