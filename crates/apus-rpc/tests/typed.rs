//! Typed services: clients and servers that the attribute `service` makes.

#![cfg(all(feature = "macros", feature = "postcard"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use apus_rpc::schema::Schema;
use apus_rpc::{Bytes, Channel, Code, Context, Retry, Status};
use futures_lite::future::block_on;
use serde::{Deserialize, Serialize};

use crate::pair::{Served, address, node, served};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Price {
    symbol: String,
    cents: u64,
}

/// Arithmetic and prices.
#[apus_rpc::service(name = "shop.Calc")]
trait Calc {
    /// Adds two numbers.
    #[idempotent]
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;

    async fn find_price(&self, cx: &Context, symbol: String) -> Result<Price, Status>;

    #[blocking]
    fn sum(&self, cx: &Context, seed: u64, #[bytes] data: Bytes) -> Result<(u64, bool), Status>;

    #[name = "Nothing"]
    async fn no_arguments(&self, cx: &Context) -> Result<(), Status>;

    #[blocking]
    fn panic(&self, cx: &Context) -> Result<(), Status>;

    async fn slow(&self, cx: &Context) -> Result<(), Status>;

    async fn with_default(&self, _cx: &Context, r#type: u8) -> Result<u8, Status> {
        Ok(r#type + 1)
    }
}

#[derive(Default)]
struct MyCalc {
    calls: AtomicUsize,
}

impl Calc for MyCalc {
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        cx.set_trailer("cost", "1").expect("a pair");
        let overflow = || Status::new(Code::OutOfRange, "the sum is too large");
        a.checked_add(b).ok_or_else(overflow)
    }

    async fn find_price(&self, cx: &Context, symbol: String) -> Result<Price, Status> {
        futures_lite::future::yield_now().await;
        assert_eq!(cx.path().as_str(), "/shop.Calc/FindPrice");
        Ok(Price { symbol, cents: 17 })
    }

    fn sum(&self, cx: &Context, seed: u64, data: Bytes) -> Result<(u64, bool), Status> {
        let is_inside = Context::current().is_some_and(|now| now.path() == cx.path());
        let name = thread::current().name().unwrap_or_default().to_owned();
        assert!(name.starts_with("apus-rpc-"), "{name}");
        Ok((seed + data.iter().map(|&byte| u64::from(byte)).sum::<u64>(), is_inside))
    }

    async fn no_arguments(&self, _: &Context) -> Result<(), Status> {
        Ok(())
    }

    fn panic(&self, _: &Context) -> Result<(), Status> {
        panic!("planted");
    }

    async fn slow(&self, _: &Context) -> Result<(), Status> {
        std::future::pending().await
    }
}

fn calc() -> (Served, CalcClient) {
    let served = served(|server| server.add(CalcServer::new(MyCalc::default())));
    let client = CalcClient::new(served.channel.clone());
    (served, client)
}

#[test]
fn a_call_is_awaited_or_waited_for() {
    let (_served, calc) = calc();
    assert_eq!(calc.add(1, 2).wait(), Ok(3));
    let sum = block_on(async { calc.add(1, 2).deadline(Duration::from_secs(60)).await });
    assert_eq!(sum, Ok(3));
    let price = block_on(async { calc.find_price("ABC").await });
    assert_eq!(price, Ok(Price { symbol: "ABC".to_owned(), cents: 17 }));
    assert_eq!(calc.no_arguments().wait(), Ok(()));
    assert_eq!(calc.with_default(4).wait(), Ok(5));
}

#[test]
fn errors_and_metadata_are_those_of_the_call() {
    let (_served, calc) = calc();
    let status = calc.add(i64::MAX, 1).wait().expect_err("an overflow");
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "the sum is too large"));
    let response = block_on(calc.add(1, 2).metadata("x-tenant-id", "7").response());
    let response = response.expect("a response");
    assert_eq!((response.trailers().get("cost"), *response.body()), (Some("1"), 3));
    let status = calc.add(1, 2).metadata("No", "7").wait().expect_err("a bad name");
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[test]
fn a_deadline_holds() {
    let (_served, calc) = calc();
    let status = calc.slow().deadline(Duration::from_millis(20)).wait().expect_err("no time");
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[test]
fn a_blocking_method_has_a_thread_and_its_context() {
    let (served, calc) = calc();
    assert_eq!(calc.sum(1, vec![1, 2, 3]).wait(), Ok((7, true)));
    let long = vec![1; 100_000];
    assert_eq!(block_on(async { calc.sum(1, long).await }), Ok((100_001, true)));
    assert_eq!(calc.sum(0, Bytes::new()).wait(), Ok((0, true)));
    let status = calc.panic().wait().expect_err("a panic");
    assert_eq!((status.code(), status.message()), (Code::Internal, "the handler panicked"));
    assert_eq!(served.counters.panics(), 1);
}

#[test]
fn an_implementation_may_be_shared() {
    let mine = Arc::new(MyCalc::default());
    let served = served(|server| server.add(CalcServer::from_arc(Arc::clone(&mine))));
    let calc = CalcClient::new(served.channel.clone());
    assert_eq!(calc.add(1, 2).wait(), Ok(3));
    assert_eq!(mine.calls.load(Ordering::Relaxed), 1);
}

#[test]
fn a_running_server_describes_itself() {
    let (served, _) = calc();
    let schema = Schema::of_server(&served.channel, "shop.Calc").wait();
    assert_eq!(schema, Ok(CalcClient::schema()));
    let status = Schema::of_server(&served.channel, "shop.Other").wait().expect_err("no service");
    assert_eq!(status.code(), Code::Unimplemented);
}

#[test]
fn the_rest_of_a_request_lies_behind_the_other_arguments() {
    // The address of the message is not to be had from a typed method: one without types shows the layout.
    let served = served(|server| {
        server.route("/shop.Calc/Sum", |_, body: Bytes| async move {
            assert_eq!(&body[..], b"\x02\xAC\x02xyz");
            Ok(&b"\x05\x01"[..])
        })
    });
    let calc = CalcClient::new(served.channel.clone());
    assert_eq!(calc.sum(300, "xyz").wait(), Ok((5, true)));
}

#[test]
fn a_request_with_a_wrong_length_is_refused() {
    let (served, _) = calc();
    for body in [&b""[..], b"\x05\x01", b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", b"\x80"] {
        let status = served.channel.unary("/shop.Calc/Sum", body).wait().expect_err("bad bytes");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(!status.may_have_executed() && status.message().contains("data"), "{status}");
    }
}

/// Version 2 of a service, whose types differ.
mod other {
    use apus_rpc::{Context, Status};

    #[apus_rpc::service(name = "shop.Calc")]
    pub(crate) trait Calc {
        async fn add(&self, cx: &Context, a: String, b: i64) -> Result<i64, Status>;
        #[name = "Nothing"]
        async fn no_arguments(&self, cx: &Context) -> Result<String, Status>;
        async fn find_price(&self, cx: &Context, symbol: u8) -> Result<u8, Status>;
    }
}

#[test]
fn different_types_give_both_hashes() {
    let (served, calc) = calc();
    let other = other::CalcClient::new(served.channel.clone());
    let (server, client) = (CalcClient::schema().hash(), other::CalcClient::schema().hash());
    assert_ne!(server, client);
    let both = format!("the server's schema is {server:016x}; the client's is {client:016x}");
    // The server refuses the request: a text of three bytes is one number and two numbers too many, but `b` is not there.
    let status = other.find_price(200).wait().expect_err("other types");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(!status.may_have_executed() && status.message().ends_with(&both), "{status}");
    assert!(
        status.message().starts_with("/shop.Calc/FindPrice: the argument symbol: "),
        "{status}"
    );
    // The client refuses the response.
    let waited = other.no_arguments().wait();
    let awaited = block_on(async { other.no_arguments().await });
    for status in [waited, awaited].map(|result| result.expect_err("other types")) {
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.may_have_executed() && status.message().ends_with(&both), "{status}");
    }
    assert_eq!(calc.add(1, 2).wait(), Ok(3), "other calls go on");
}

/// The same service with arguments that were appended later.
mod later {
    use apus_rpc::{Bytes, Context, Status};

    #[apus_rpc::service(name = "shop.Calc")]
    pub(crate) trait Calc {
        async fn add(
            &self,
            cx: &Context,
            a: i64,
            b: i64,
            c: Option<i64>,
            d: Option<String>,
        ) -> Result<i64, Status>;
        async fn sum(
            &self,
            cx: &Context,
            seed: u64,
            factor: Option<u64>,
            #[bytes] data: Bytes,
        ) -> Result<(u64, bool), Status>;
    }

    pub(crate) struct MyCalc;

    impl Calc for MyCalc {
        async fn add(
            &self,
            _: &Context,
            a: i64,
            b: i64,
            c: Option<i64>,
            d: Option<String>,
        ) -> Result<i64, Status> {
            assert_eq!(c.is_none(), d.is_none());
            Ok(a + b + c.unwrap_or(1000))
        }

        async fn sum(
            &self,
            _: &Context,
            seed: u64,
            factor: Option<u64>,
            data: Bytes,
        ) -> Result<(u64, bool), Status> {
            Ok((seed + data.len() as u64 * factor.unwrap_or(10), false))
        }
    }
}

#[test]
fn appended_arguments_are_none_for_earlier_clients_and_ignored_by_earlier_servers() {
    let new = served(|server| server.add(later::CalcServer::new(later::MyCalc)));
    let earlier_client = CalcClient::new(new.channel.clone());
    assert_eq!(earlier_client.add(1, 2).wait(), Ok(1003));
    assert_eq!(earlier_client.sum(1, "xy").wait(), Ok((21, false)));
    let later_client = later::CalcClient::new(new.channel.clone());
    assert_eq!(later_client.add(1, 2, Some(3), Some(String::new())).wait(), Ok(6));
    assert_eq!(later_client.sum(1, Some(2), "xy").wait(), Ok((5, false)));
    let (old, _) = calc();
    let later_client = later::CalcClient::new(old.channel.clone());
    assert_eq!(later_client.add(1, 2, Some(3), None).wait(), Ok(3));
    assert_eq!(later_client.sum(1, Some(2), "\x01\x02").wait(), Ok((4, true)));
}

/// Methods whose first call fails.
#[apus_rpc::service(name = "shop.Late")]
trait Late {
    #[idempotent]
    async fn read(&self, cx: &Context) -> Result<usize, Status>;

    async fn write(&self, cx: &Context) -> Result<usize, Status>;
}

#[derive(Default)]
struct FailsOnce {
    reads: AtomicUsize,
    writes: AtomicUsize,
}

/// The number of the call, or a failure of the first one.
fn fail_first(calls: &AtomicUsize) -> Result<usize, Status> {
    match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Err(Status::new(Code::Unavailable, "planted")),
        before => Ok(before + 1),
    }
}

impl Late for FailsOnce {
    async fn read(&self, _: &Context) -> Result<usize, Status> {
        fail_first(&self.reads)
    }

    async fn write(&self, _: &Context) -> Result<usize, Status> {
        fail_first(&self.writes)
    }
}

#[test]
fn only_methods_that_are_marked_idempotent_are_repeated() {
    let served = served(|server| server.add(LateServer::new(FailsOnce::default())));
    let channel = Channel::builder(&address(&served.node)).node(&node()).retry(Retry::safe());
    let channel = channel.build().expect("a channel");
    let late = LateClient::new(channel.clone());
    assert_eq!(late.read().wait(), Ok(2));
    let status = late.write().wait().expect_err("the first call fails");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "planted"));
    assert_eq!(channel.counters().repeated(), 1);
}
