//! Typed services over a simulated network: virtual time, and loss by a seed.

#![cfg(feature = "services")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apus_rpc::{CallError, Code, Context, Server, Status, Stream, Streaming, TraceContext};
use apus_sim::services::Network;

#[apus_rpc::service(name = "shop.Calc")]
trait Calc {
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
    async fn double(&self, cx: &Context, numbers: Streaming<u64>) -> Result<u64, Status>;
    async fn up_to(
        &self,
        cx: &Context,
        end: u64,
    ) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    async fn hang(&self, cx: &Context) -> Result<(), Status>;
    /// The time that the handler has left, in microseconds.
    async fn time_left(&self, cx: &Context) -> Result<Option<u64>, Status>;
    /// The first byte of the trace's number.
    async fn trace(&self, cx: &Context) -> Result<Option<u8>, Status>;
}

#[derive(Default)]
struct MyCalc {
    executed: Arc<AtomicU64>,
}

/// Numbers from 0.
struct Numbers(std::ops::Range<u64>);

impl Stream for Numbers {
    type Item = Result<u64, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next().map(Ok))
    }
}

impl Calc for MyCalc {
    async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
        self.executed.fetch_add(1, Ordering::SeqCst);
        Ok(a + b)
    }

    async fn double(&self, _: &Context, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let mut sum = 0;
        while let Some(number) = numbers.next().await {
            sum += 2 * number?;
        }
        Ok(sum)
    }

    async fn up_to(
        &self,
        _: &Context,
        end: u64,
    ) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        Ok(Numbers(0..end))
    }

    async fn hang(&self, _: &Context) -> Result<(), Status> {
        std::future::pending().await
    }

    async fn time_left(&self, cx: &Context) -> Result<Option<u64>, Status> {
        Ok(cx.remaining().map(|remaining| remaining.as_micros() as u64))
    }

    async fn trace(&self, cx: &Context) -> Result<Option<u8>, Status> {
        Ok(cx.trace().map(|trace| trace.trace_id()[0]))
    }
}

fn calc(network: &mut Network) -> (CalcClient, Arc<AtomicU64>) {
    let mine = MyCalc::default();
    let executed = Arc::clone(&mine.executed);
    let channel = network.channel(Server::in_memory().add(CalcServer::new(mine)));
    (CalcClient::new(channel), executed)
}

/// The packets, the lost ones, and the virtual time of 50 calls.
fn calls(seed: u64) -> (u64, u64, Duration) {
    let mut network = Network::new(seed).loss(0.2);
    let (calc, executed) = calc(&mut network);
    for number in 0..50 {
        assert_eq!(network.run(async { calc.add(number, 1).await }), Ok(number + 1));
    }
    assert_eq!(executed.load(Ordering::SeqCst), 50, "each call is executed once");
    (network.packets(), network.lost(), network.now())
}

#[test]
fn calls_succeed_in_spite_of_loss_and_a_seed_repeats_them() {
    let first = calls(1);
    assert!(first.1 > 10, "{first:?}");
    assert_eq!(calls(1), first);
    assert_ne!(calls(2), first);
}

#[test]
fn time_is_that_of_the_network() {
    let mut network = Network::new(1).delay(Duration::from_millis(100));
    let (calc, _) = calc(&mut network);
    assert_eq!(network.run(async { calc.add(1, 2).await }), Ok(3));
    let time = network.now();
    assert!((Duration::from_millis(200)..Duration::from_millis(400)).contains(&time), "{time:?}");
}

#[test]
fn a_deadline_passes_in_virtual_time() {
    let mut network = Network::new(1);
    let (calc, _) = calc(&mut network);
    let call = async { calc.hang().deadline(Duration::from_secs(600)).await };
    let status = network.run(call).expect_err("no answer");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(network.now() >= Duration::from_secs(599), "{:?}", network.now());
}

#[test]
fn a_handler_has_the_deadline_and_the_trace_of_its_call() {
    let mut network = Network::new(1);
    let (calc, _) = calc(&mut network);
    assert_eq!(network.run(async { calc.time_left().await }), Ok(None));
    assert_eq!(network.run(async { calc.trace().await }), Ok(None));
    let call = async { calc.time_left().deadline(Duration::from_secs(600)).await };
    let left = network.run(call).expect("an answer").expect("a deadline");
    assert!((1..=600_000_000).contains(&left), "{left}");
    let context = TraceContext::new([7; 16], [1; 8], 0).expect("a context");
    assert_eq!(network.run(async { calc.trace().trace(context).await }), Ok(Some(7)));
}

#[test]
fn a_call_fails_with_the_error_of_the_transport() {
    let mut network = Network::new(1).loss(1.0);
    let (calc, executed) = calc(&mut network);
    let status = network.run(async { calc.add(1, 2).await }).expect_err("no answer");
    assert_eq!(status.code(), Code::Unavailable);
    let error = status.call_error();
    assert!(matches!(error, Some(CallError::PeerTimeout { .. })), "{error:?}");
    assert!(status.may_have_executed() && executed.load(Ordering::SeqCst) == 0);
}

#[test]
fn streams_survive_loss_as_well() {
    let mut network = Network::new(3).loss(0.1);
    let (calc, _) = calc(&mut network);
    let sum = network.run(async {
        let (mut numbers, sum) = calc.double().start()?;
        for number in 0..1000 {
            numbers.send(number).await?;
        }
        numbers.close();
        sum.await
    });
    assert_eq!(sum, Ok(999_000));
    let count = network.run(async {
        let mut numbers = calc.up_to(20_000).await?;
        let mut count = 0;
        while let Some(number) = numbers.next().await {
            assert_eq!(number?, count);
            count += 1;
        }
        Ok::<_, Status>(count)
    });
    assert_eq!(count, Ok(20_000));
    assert!(network.lost() > 0);
}
