//! Clients of the crate `grpc`, with servers of tonic, over every transport of Apus.

#![cfg(feature = "grpc")]

mod interop;
mod transports;

use std::sync::Arc;
use std::time::{Duration, Instant};

use apus_tonic::{Channel, GrpcRequests, GrpcResponses, Server};
use bytes::{Buf, Bytes};
use grpc::StatusCodeError;
use grpc::client::{CallOptions, Invoke, RecvStream, ResponseStreamItem, SendOptions, SendStream};
use grpc::core::{RecvMessage, RequestHeaders, ResponseHeaders, SendMessage, Trailers};
use grpc::metadata::{BinaryMetadataValue, MetadataMap};
use interop::proto::test_service_server::TestServiceServer;
use interop::proto::{
    EchoStatus, Empty, SimpleRequest, SimpleResponse, StreamRequest, SumResponse,
};
use interop::{ECHO_INITIAL, ECHO_TRAILING, TestServer};
use prost::Message;
use tokio::sync::Notify;
use tonic::{Request, Response, Status};
use transports::{PORT, Transport, channel_to, nodes};

/// A message of prost that is sent.
struct Sent<M>(M);

impl<M: Message> SendMessage for Sent<M> {
    fn encode(&self) -> Result<Box<dyn Buf + Send + Sync>, String> {
        Ok(Box::new(Bytes::from(self.0.encode_to_vec())))
    }
}

/// A message of prost that is received.
#[derive(Default)]
struct Received<M>(M);

impl<M: Message + Default> RecvMessage for Received<M> {
    fn decode(&mut self, data: &mut dyn Buf) -> Result<(), String> {
        self.0 = M::decode(data).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// All of a response.
#[derive(Debug)]
struct Whole<M> {
    headers: Option<ResponseHeaders>,
    messages: Vec<M>,
    trailers: Trailers,
}

async fn read<M: Message + Default>(responses: &mut impl RecvStream) -> Whole<M> {
    let (mut headers, mut messages) = (None, Vec::new());
    loop {
        let mut message = Received(M::default());
        match responses.recv(&mut message).await {
            ResponseStreamItem::Headers(first) => {
                assert!(headers.is_none() && messages.is_empty(), "headers come first");
                headers = Some(first);
            }
            ResponseStreamItem::Message => messages.push(message.0),
            ResponseStreamItem::Trailers(trailers) => {
                let after = responses.recv(&mut message).await;
                assert!(matches!(after, ResponseStreamItem::StreamClosed));
                return Whole { headers, messages, trailers };
            }
            ResponseStreamItem::StreamClosed => panic!("no trailers"),
        }
    }
}

async fn invoke(channel: &Channel, method: &str) -> (GrpcRequests, GrpcResponses) {
    invoke_with(channel, method, MetadataMap::new(), CallOptions::new()).await
}

async fn invoke_with(
    channel: &Channel,
    method: &str,
    metadata: MetadataMap,
    options: CallOptions,
) -> (GrpcRequests, GrpcResponses) {
    let headers = RequestHeaders::new()
        .with_method_name(format!("/interop.TestService/{method}"))
        .with_metadata(metadata);
    channel.invoke(headers, options).await
}

async fn send(requests: &mut GrpcRequests, message: impl Message, is_last: bool) {
    let options = SendOptions::new().with_final_msg(is_last);
    requests.send(&Sent(message), options).await.expect("the call goes on");
}

/// Runs a case over every transport of Apus.
fn over_apus(case: impl AsyncFn(Channel)) {
    for transport in Transport::APUS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let nodes = nodes(transport);
            let server = Server::builder().node(&nodes.server);
            tokio::spawn(server.add_service(TestServiceServer::new(TestServer)).serve(PORT));
            case(channel_to(&nodes.server, &nodes.client).await).await;
        });
    }
}

#[test]
fn one_request_and_one_response_with_metadata() {
    over_apus(async |channel| {
        let mut metadata = MetadataMap::new();
        metadata.insert(ECHO_INITIAL, "first".parse().expect("a value"));
        metadata.insert_bin(ECHO_TRAILING, BinaryMetadataValue::from_bytes(b"\xAB\x00"));
        let options = CallOptions::new();
        let (mut requests, mut responses) =
            invoke_with(&channel, "UnaryCall", metadata, options).await;
        let request = SimpleRequest {
            payload: vec![0; 271_828],
            response_size: 314_159,
            response_status: None,
        };
        send(&mut requests, request, true).await;
        let again = requests.send(&Sent(Empty {}), SendOptions::new()).await;
        assert!(again.is_err(), "the last message was sent");
        let whole = read::<SimpleResponse>(&mut responses).await;
        assert!(whole.trailers.status().is_ok());
        assert_eq!(whole.messages.len(), 1);
        assert_eq!(whole.messages[0].payload, vec![0; 314_159]);
        let headers = whole.headers.expect("headers");
        let initial = headers.metadata().get(ECHO_INITIAL).expect("the metadata");
        assert_eq!(initial.as_bytes(), b"first");
        let trailing = headers.metadata().get_bin(ECHO_TRAILING).expect("the metadata");
        assert!(*trailing == b"\xAB\x00"[..], "{trailing:?}");
    });
}

#[test]
fn streams_in_each_direction_and_in_both() {
    over_apus(async |channel| {
        let (mut requests, mut responses) = invoke(&channel, "StreamingOutputCall").await;
        let sizes = [31_415, 9, 2_653, 58_979];
        let request = StreamRequest { response_sizes: sizes.to_vec(), ..StreamRequest::default() };
        send(&mut requests, request, true).await;
        let whole = read::<SimpleResponse>(&mut responses).await;
        let lengths: Vec<_> = whole.messages.iter().map(|it| it.payload.len() as u32).collect();
        assert_eq!((lengths, whole.trailers.status().is_ok()), (sizes.to_vec(), true));

        for is_dropped in [false, true] {
            let (mut requests, mut responses) = invoke(&channel, "StreamingInputCall").await;
            let lengths = [27_182, 8, 1_828, 45_904];
            for (number, length) in (1..).zip(lengths) {
                let request = SimpleRequest { payload: vec![0; length], ..Default::default() };
                send(&mut requests, request, number == lengths.len() && !is_dropped).await;
            }
            drop(requests);
            let whole = read::<SumResponse>(&mut responses).await;
            assert_eq!(whole.messages, [SumResponse { length: 74_922 }]);
        }

        let (mut requests, mut responses) = invoke(&channel, "FullDuplexCall").await;
        for (number, length) in [1_000, 100_000, 10].into_iter().enumerate() {
            let request = StreamRequest { response_sizes: vec![length], ..Default::default() };
            send(&mut requests, request, false).await;
            let mut response = Received(SimpleResponse::default());
            let mut item = responses.recv(&mut response).await;
            if number == 0 {
                assert!(matches!(item, ResponseStreamItem::Headers(_)), "{item:?}");
                item = responses.recv(&mut response).await;
            }
            assert!(matches!(item, ResponseStreamItem::Message), "{item:?}");
            assert_eq!(response.0.payload.len() as u32, length);
        }
        drop(requests);
        let whole = read::<SimpleResponse>(&mut responses).await;
        assert!(whole.messages.is_empty() && whole.trailers.status().is_ok());
    });
}

#[test]
fn no_request_at_all_and_a_reader_that_is_first() {
    over_apus(async |channel| {
        let (requests, mut responses) = invoke(&channel, "FullDuplexCall").await;
        drop(requests);
        let whole = read::<SimpleResponse>(&mut responses).await;
        assert!(whole.messages.is_empty() && whole.trailers.status().is_ok());

        let (mut requests, mut responses) = invoke(&channel, "StreamingInputCall").await;
        let reading = tokio::spawn(async move { read::<SumResponse>(&mut responses).await });
        tokio::task::yield_now().await;
        send(&mut requests, SimpleRequest { payload: vec![0; 7], ..Default::default() }, false)
            .await;
        send(&mut requests, SimpleRequest { payload: vec![0; 5], ..Default::default() }, true)
            .await;
        let whole = reading.await.expect("no panic");
        assert_eq!(whole.messages, [SumResponse { length: 12 }]);
    });
}

#[test]
fn a_status_has_its_code_its_text_and_comes_after_the_messages() {
    over_apus(async |channel| {
        let text = "\t\nÜber \u{1F608}";
        let status = EchoStatus { code: 15, message: text.to_owned() };
        let request = StreamRequest {
            response_sizes: vec![10, 100_000],
            response_status: Some(status),
            ..StreamRequest::default()
        };
        let (mut requests, mut responses) = invoke(&channel, "StreamingOutputCall").await;
        send(&mut requests, request, true).await;
        let whole = read::<SimpleResponse>(&mut responses).await;
        assert_eq!(whole.messages.len(), 2);
        let error = whole.trailers.status().as_ref().expect_err("a status");
        assert_eq!((error.code(), error.message()), (StatusCodeError::DataLoss, text));

        let (mut requests, mut responses) = invoke(&channel, "UnimplementedCall").await;
        send(&mut requests, Empty {}, true).await;
        let whole = read::<Empty>(&mut responses).await;
        let error = whole.trailers.status().as_ref().expect_err("a status");
        assert_eq!(error.code(), StatusCodeError::Unimplemented);
        assert!(whole.headers.is_none() && whole.messages.is_empty());
    });
}

#[test]
fn a_deadline_ends_the_call() {
    over_apus(async |channel| {
        for left in [Duration::from_millis(20), Duration::ZERO] {
            let mut metadata = MetadataMap::new();
            metadata.insert("x-sleep", "1".parse().expect("a value"));
            let mut options = CallOptions::new();
            options.set_deadline(Instant::now() + left);
            let (mut requests, mut responses) =
                invoke_with(&channel, "EmptyCall", metadata, options).await;
            send(&mut requests, Empty {}, true).await;
            let whole = read::<Empty>(&mut responses).await;
            let error = whole.trailers.status().as_ref().expect_err("no time");
            assert_eq!(error.code(), StatusCodeError::DeadlineExceeded);
        }
    });
}

/// Says when its handler begins and when it is dropped, and answers with a status that has details.
#[derive(Clone, Default)]
struct Waiting {
    begun: Arc<Notify>,
    dropped: Arc<Notify>,
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

#[tonic::async_trait]
impl hello_world::greeter_server::Greeter for Waiting {
    async fn say_hello(
        &self,
        request: Request<hello_world::HelloRequest>,
    ) -> Result<Response<hello_world::HelloReply>, Status> {
        if request.get_ref().name == "details" {
            let details = Bytes::from_static(b"\x00\xFF");
            return Err(Status::with_details(tonic::Code::NotFound, "nobody", details));
        }
        let _dropped = NotifyOnDrop(Arc::clone(&self.dropped));
        self.begun.notify_one();
        std::future::pending().await
    }
}

#[test]
fn a_status_has_details_and_a_call_that_is_dropped_drops_its_handler() {
    for transport in Transport::APUS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (nodes, waiting) = (nodes(transport), Waiting::default());
            let service = hello_world::greeter_server::GreeterServer::new(waiting.clone());
            let server = Server::builder().node(&nodes.server);
            tokio::spawn(server.add_service(service).serve(PORT));
            let channel = channel_to(&nodes.server, &nodes.client).await;
            let invoke = async |name: &str| {
                let headers =
                    RequestHeaders::new().with_method_name("/helloworld.Greeter/SayHello");
                let (mut requests, responses) = channel.invoke(headers, CallOptions::new()).await;
                let request = hello_world::HelloRequest { name: name.to_owned() };
                send(&mut requests, request, true).await;
                (requests, responses)
            };
            let (_requests, mut responses) = invoke("details").await;
            let whole = read::<hello_world::HelloReply>(&mut responses).await;
            let error = whole.trailers.status().as_ref().expect_err("a status");
            assert_eq!((error.code(), error.message()), (StatusCodeError::NotFound, "nobody"));
            let details = whole.trailers.metadata().get_bin("grpc-status-details-bin");
            assert!(details.is_some_and(|it| *it == b"\x00\xFF"[..]), "{details:?}");

            let (requests, responses) = invoke("waits").await;
            waiting.begun.notified().await;
            drop(responses);
            waiting.dropped.notified().await;
            drop(requests);

            // A call that was never sent is none.
            let headers = RequestHeaders::new().with_method_name("/helloworld.Greeter/SayHello");
            let (mut requests, responses) = channel.invoke(headers, CallOptions::new()).await;
            drop(responses);
            let request = hello_world::HelloRequest::default();
            let sent = requests.send(&Sent(request), SendOptions::new()).await;
            assert!(sent.is_err(), "nobody reads the response");
        });
    }
}
