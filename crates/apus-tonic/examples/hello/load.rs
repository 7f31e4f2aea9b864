//! The service, and the calls that are measured.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_stream::{Stream, iter};
use tonic::{Request, Response, Status, Streaming};

use crate::Result;
use crate::clock::Time;
use crate::interop::test_service_client::TestServiceClient;
use crate::interop::test_service_server::{TestService, TestServiceServer};
use crate::interop::{Empty, SimpleRequest, SimpleResponse, StreamRequest, SumResponse};
use crate::transports::AnyChannel;

/// Calls at a time.
const OUTSTANDING: usize = 64;

/// Length of the payload of a short message: 97 bytes with the heads of protobuf and gRPC.
const SHORT: usize = 90;

/// The same of a long message.
const LONG: usize = 1_000_000;

/// Loops of long messages.
const LOOPS: usize = 2;

/// Bytes of a stream of long messages.
const STREAM_BYTES: usize = 4 << 20;

/// Messages of a stream of short ones.
const STREAM_MESSAGES: usize = 2_000;

/// A stream answers its request with messages of a length.
struct Echo;

type Responses = Pin<Box<dyn Stream<Item = Answer<SimpleResponse>> + Send>>;

type Answer<T> = std::result::Result<T, Status>;

#[tonic::async_trait]
impl TestService for Echo {
    type StreamingOutputCallStream = Responses;
    type FullDuplexCallStream = Responses;

    async fn empty_call(&self, _: Request<Empty>) -> Answer<Response<Empty>> {
        Ok(Response::new(Empty {}))
    }

    async fn unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Answer<Response<SimpleResponse>> {
        Ok(Response::new(SimpleResponse { payload: request.into_inner().payload }))
    }

    /// The sizes are the length of each message and their number.
    async fn streaming_output_call(
        &self,
        request: Request<StreamRequest>,
    ) -> Answer<Response<Responses>> {
        let &[length, messages] = &request.get_ref().response_sizes[..] else {
            return Err(Status::invalid_argument("a length and a number"));
        };
        let response = move |_| Ok(SimpleResponse { payload: vec![7; length as usize] });
        Ok(Response::new(Box::pin(iter((0..messages).map(response)))))
    }

    async fn streaming_input_call(
        &self,
        _: Request<Streaming<SimpleRequest>>,
    ) -> Answer<Response<SumResponse>> {
        Err(Status::unimplemented("not measured"))
    }

    async fn full_duplex_call(
        &self,
        _: Request<Streaming<StreamRequest>>,
    ) -> Answer<Response<Responses>> {
        Err(Status::unimplemented("not measured"))
    }

    async fn unimplemented_call(&self, _: Request<Empty>) -> Answer<Response<Empty>> {
        Err(Status::unimplemented("not measured"))
    }
}

pub(crate) fn service() -> TestServiceServer<impl TestService> {
    TestServiceServer::new(Echo)
}

/// Calls beside long ones.
pub(crate) struct Mixed {
    /// µs.
    pub(crate) p50: f64,
    /// µs.
    pub(crate) p99: f64,
    /// Long messages per second.
    pub(crate) echoes: f64,
}

fn request(length: usize) -> SimpleRequest {
    SimpleRequest { payload: vec![7; length], ..SimpleRequest::default() }
}

/// The median and the 99th percentile of calls one after the other, in µs.
pub(crate) async fn one_by_one(
    channel: &AnyChannel,
    clock: Time,
    time: Duration,
) -> Result<(f64, f64)> {
    let mut client = TestServiceClient::new(channel.clone());
    let mut times = Vec::new();
    let begin = clock.now();
    while clock.now() - begin < time || times.is_empty() {
        let before = clock.now();
        client.unary_call(request(SHORT)).await?;
        times.push(clock.now() - before);
    }
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e6;
    Ok((at(50), at(99)))
}

/// Calls in a loop until the time is over or the flag is set. Returns their number.
async fn calls(channel: AnyChannel, length: usize, goes_on: impl Fn() -> bool) -> Answer<u32> {
    let mut client = TestServiceClient::new(channel);
    let mut calls = 0;
    while goes_on() {
        client.unary_call(request(length)).await?;
        calls += 1;
    }
    Ok(calls)
}

/// Thousands of calls a second with many outstanding.
pub(crate) async fn outstanding(channel: &AnyChannel, clock: Time, time: Duration) -> Result<f64> {
    let begin = clock.now();
    let tasks: Vec<_> = (0..OUTSTANDING)
        .map(|_| tokio::spawn(calls(channel.clone(), SHORT, move || clock.now() - begin < time)))
        .collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await??;
    }
    Ok(f64::from(sum) / (clock.now() - begin).as_secs_f64() / 1e3)
}

/// Short calls one after the other beside loops of long ones on the same channel.
pub(crate) async fn mixed(channel: &AnyChannel, clock: Time, time: Duration) -> Result<Mixed> {
    let is_over = Arc::new(AtomicBool::new(false));
    let goes_on = {
        let is_over = Arc::clone(&is_over);
        move || !is_over.load(Ordering::Relaxed)
    };
    let begin = clock.now();
    let loops = [(); LOOPS].map(|()| tokio::spawn(calls(channel.clone(), LONG, goes_on.clone())));
    let (p50, p99) = one_by_one(channel, clock, time).await?;
    is_over.store(true, Ordering::Relaxed);
    let mut echoes = 0;
    for task in loops {
        echoes += task.await??;
    }
    Ok(Mixed { p50, p99, echoes: f64::from(echoes) / (clock.now() - begin).as_secs_f64() })
}

/// The time of a message in a stream of responses, in µs.
pub(crate) async fn stream(
    channel: &AnyChannel,
    length: usize,
    clock: Time,
    time: Duration,
) -> Result<f64> {
    let mut client = TestServiceClient::new(channel.clone());
    let in_a_stream = (STREAM_BYTES / length).min(STREAM_MESSAGES);
    let sizes = vec![u32::try_from(length)?, u32::try_from(in_a_stream)?];
    let (begin, mut messages) = (clock.now(), 0_u32);
    while clock.now() - begin < time || messages == 0 {
        let request = StreamRequest { response_sizes: sizes.clone(), ..StreamRequest::default() };
        let mut responses = client.streaming_output_call(request).await?.into_inner();
        while let Some(response) = responses.message().await? {
            assert_eq!(response.payload.len(), length);
            messages += 1;
        }
    }
    Ok((clock.now() - begin).as_secs_f64() * 1e6 / f64::from(messages))
}
