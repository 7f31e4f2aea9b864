//! Cases of gRPC's interoperability tests, each over every transport, with the same services.
//!
//! The names are those of grpc/doc/interop-test-descriptions.md.

mod interop;
mod transports;

use std::time::Duration;

use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataValue;
use tonic::service::Routes;
use tonic::{Code, Request, Status};

use interop::proto::test_service_client::TestServiceClient;
use interop::proto::test_service_server::TestServiceServer;
use interop::proto::unimplemented_service_client::UnimplementedServiceClient;
use interop::proto::{EchoStatus, Empty, SimpleRequest, SimpleResponse, StreamRequest};
use interop::{ECHO_INITIAL, ECHO_TRAILING, TestServer};
use transports::{AnyChannel, Connected, Transport, connect};

fn routes() -> Routes {
    let service = TestServiceServer::new(TestServer)
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip);
    Routes::new(service)
}

/// Runs a case over every transport, each in a runtime of its own.
fn over_all<F>(case: impl Fn(AnyChannel, Transport) -> F)
where
    F: Future<Output = Result<(), Status>>,
{
    for transport in Transport::ALL {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let Connected { channel, nodes: _nodes, .. } = connect(transport, routes()).await;
            if let Err(status) = case(channel, transport).await {
                panic!("{transport:?}: {status:?}");
            }
        });
    }
}

fn large() -> SimpleRequest {
    SimpleRequest { payload: vec![0; 271_828], response_size: 314_159, response_status: None }
}

fn check_large(response: &SimpleResponse) {
    assert_eq!(response.payload, vec![0; 314_159]);
}

#[test]
fn empty_unary() {
    over_all(async |channel, _| {
        let response = TestServiceClient::new(channel).empty_call(Empty {}).await?;
        assert_eq!(response.into_inner(), Empty {});
        Ok(())
    });
}

#[test]
fn large_unary() {
    over_all(async |channel, _| {
        let response = TestServiceClient::new(channel).unary_call(large()).await?;
        check_large(response.get_ref());
        Ok(())
    });
}

#[test]
fn client_compressed_unary_and_server_compressed_unary() {
    over_all(async |channel, _| {
        let client = TestServiceClient::new(channel);
        let mut compressing = client
            .clone()
            .send_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Gzip);
        let response = compressing.unary_call(large()).await?;
        assert_eq!(
            response.metadata().get("grpc-encoding").map(|it| it.as_bytes()),
            Some(&b"gzip"[..])
        );
        check_large(response.get_ref());
        let mut client = client.send_compressed(CompressionEncoding::Gzip);
        let response = client.unary_call(large()).await?;
        assert!(response.metadata().get("grpc-encoding").is_none());
        check_large(response.get_ref());
        Ok(())
    });
}

#[test]
fn custom_metadata() {
    over_all(async |channel, _| {
        let mut request = Request::new(large());
        request
            .metadata_mut()
            .insert(ECHO_INITIAL, "test_initial_metadata_value".parse().expect("a value"));
        request
            .metadata_mut()
            .insert_bin(ECHO_TRAILING, MetadataValue::from_bytes(b"\xAB\xAB\xAB"));
        let response = TestServiceClient::new(channel).unary_call(request).await?;
        let initial = response.metadata().get(ECHO_INITIAL).expect("the metadata");
        assert_eq!(initial.as_bytes(), b"test_initial_metadata_value");
        let trailing = response.metadata().get_bin(ECHO_TRAILING).expect("the metadata");
        assert_eq!(trailing.to_bytes().expect("base64"), &b"\xAB\xAB\xAB"[..]);
        Ok(())
    });
}

async fn echo_status(channel: AnyChannel, message: &str) -> Status {
    let status = EchoStatus { code: Code::Unknown.into(), message: message.to_owned() };
    let request = SimpleRequest { response_status: Some(status), ..SimpleRequest::default() };
    TestServiceClient::new(channel).unary_call(request).await.expect_err("a status")
}

#[test]
fn status_code_and_message() {
    over_all(async |channel, _| {
        let status = echo_status(channel, "test status message").await;
        assert_eq!((status.code(), status.message()), (Code::Unknown, "test status message"));
        assert!(apus_tonic::may_have_executed(&status));
        Ok(())
    });
}

#[test]
fn special_status_message() {
    over_all(async |channel, _| {
        let text = "\t\ntest with whitespace\r\nand Unicode BMP \u{263A} and non-BMP \u{1F608}\t\n";
        let status = echo_status(channel, text).await;
        assert_eq!((status.code(), status.message()), (Code::Unknown, text));
        Ok(())
    });
}

#[test]
fn unimplemented_method() {
    over_all(async |channel, _| {
        let status = TestServiceClient::new(channel).unimplemented_call(Empty {}).await;
        assert_eq!(status.expect_err("a status").code(), Code::Unimplemented);
        Ok(())
    });
}

#[test]
fn unimplemented_service() {
    over_all(async |channel, _| {
        let status = UnimplementedServiceClient::new(channel).unimplemented_call(Empty {}).await;
        assert_eq!(status.expect_err("a status").code(), Code::Unimplemented);
        Ok(())
    });
}

#[test]
fn timeout_on_sleeping_server() {
    over_all(async |channel, transport| {
        let mut request = Request::new(Empty {});
        request.metadata_mut().insert("x-sleep", "1".parse().expect("a value"));
        request.set_timeout(Duration::from_millis(20));
        let status = TestServiceClient::new(channel).empty_call(request).await;
        let status = status.expect_err("the server sleeps");
        // Tonic's own server says CANCELLED.
        let is_apus = transport != Transport::Tcp;
        let code = if is_apus { Code::DeadlineExceeded } else { Code::Cancelled };
        assert_eq!(status.code(), code);
        Ok(())
    });
}

#[test]
fn server_streaming() {
    over_all(async |channel, _| {
        let sizes = [31_415, 9, 2_653, 58_979];
        let request = StreamRequest { response_sizes: sizes.to_vec(), ..StreamRequest::default() };
        let mut client = TestServiceClient::new(channel);
        let mut responses = client.streaming_output_call(request).await?.into_inner();
        let mut lengths = Vec::new();
        while let Some(response) = responses.message().await? {
            lengths.push(response.payload.len() as u32);
        }
        assert_eq!(lengths, sizes);
        Ok(())
    });
}

#[test]
fn client_streaming() {
    over_all(async |channel, _| {
        let lengths = [27_182, 8, 1_828, 45_904];
        let request =
            |length| SimpleRequest { payload: vec![0; length], ..SimpleRequest::default() };
        let requests = tokio_stream::iter(lengths.map(request));
        let response = TestServiceClient::new(channel).streaming_input_call(requests).await?;
        assert_eq!(response.into_inner().length, 74_922);
        Ok(())
    });
}

#[test]
fn empty_stream() {
    over_all(async |channel, _| {
        let mut client = TestServiceClient::new(channel);
        let responses = client.full_duplex_call(tokio_stream::empty::<StreamRequest>()).await?;
        assert_eq!(responses.into_inner().message().await?, None);
        Ok(())
    });
}

#[test]
fn ping_pong() {
    over_all(async |channel, _| {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut client = TestServiceClient::new(channel);
        // The response begins before the first request is there.
        let responses = client.full_duplex_call(ReceiverStream::new(receiver)).await?;
        let mut responses = responses.into_inner();
        for (request, response) in [(27_182, 31_415), (8, 9), (1_828, 2_653), (45_904, 58_979)] {
            let request = StreamRequest {
                payload: vec![0; request],
                response_sizes: vec![response],
                response_status: None,
            };
            sender.send(request).await.expect("the call goes on");
            let got = responses.message().await?.expect("a response");
            assert_eq!(got.payload.len() as u32, response);
        }
        drop(sender);
        assert_eq!(responses.message().await?, None);
        Ok(())
    });
}

#[test]
fn cancel_after_first_response() {
    over_all(async |channel, transport| {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut client = TestServiceClient::new(channel);
        let responses = client.full_duplex_call(ReceiverStream::new(receiver)).await?;
        let mut responses = responses.into_inner();
        let request = StreamRequest { response_sizes: vec![31_415], ..StreamRequest::default() };
        sender.send(request).await.expect("the call goes on");
        responses.message().await?.expect("a response");
        drop(responses);
        // The requests are dropped with the call. Over TCP they stay, and a wait for it would have no end.
        if transport != Transport::Tcp {
            sender.closed().await;
        }
        Ok(())
    });
}

#[test]
fn a_status_comes_after_the_messages_before_it() {
    over_all(async |channel, _| {
        let status =
            EchoStatus { code: Code::DataLoss.into(), message: "ende \u{fc}ber".to_owned() };
        let request = StreamRequest {
            response_sizes: vec![10, 100_000, 10],
            response_status: Some(status),
            ..StreamRequest::default()
        };
        let mut client = TestServiceClient::new(channel);
        let mut responses = client.streaming_output_call(request).await?.into_inner();
        for length in [10, 100_000, 10] {
            let response = responses.message().await?.expect("a response");
            assert_eq!(response.payload.len(), length);
        }
        let status = responses.message().await.expect_err("a status");
        assert_eq!((status.code(), status.message()), (Code::DataLoss, "ende \u{fc}ber"));
        Ok(())
    });
}

#[test]
fn a_long_stream_in_each_direction() {
    over_all(async |channel, transport| {
        let count = if transport == Transport::Loss { 30 } else { 300 };
        let request = |_| StreamRequest {
            payload: vec![0; 10_000],
            response_sizes: vec![10_000; 3],
            response_status: None,
        };
        let requests = tokio_stream::iter((0..count).map(request));
        let mut client = TestServiceClient::new(channel);
        let mut responses = client.full_duplex_call(requests).await?.into_inner();
        let mut got = 0;
        while let Some(response) = responses.message().await? {
            assert_eq!(response.payload.len(), 10_000);
            got += 1;
        }
        assert_eq!(got, 3 * count);
        Ok(())
    });
}

/// A soak: many calls one after the other on one channel.
#[test]
fn rpc_soak() {
    over_all(async |channel, transport| {
        let calls = if transport == Transport::Loss { 20 } else { 200 };
        let mut client = TestServiceClient::new(channel);
        for _ in 0..calls {
            check_large(client.unary_call(large()).await?.get_ref());
        }
        Ok(())
    });
}
