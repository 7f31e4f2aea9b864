//! Services of tonic's own crates, interceptors and layers run over Apus unchanged, and the same routes over TCP.

mod interop;
mod transports;

use std::time::Duration;

use tonic::service::{Routes, interceptor};
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::limit::ConcurrencyLimitLayer;

use apus_tonic::{ApusConnectInfo, Server};
use interop::TestServer;
use interop::proto::test_service_client::TestServiceClient;
use interop::proto::test_service_server::TestServiceServer;
use interop::proto::{Empty, SimpleRequest};
use transports::{PORT, Transport, channel_to, connect, node};

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

fn status(response: HealthCheckResponse) -> ServingStatus {
    ServingStatus::try_from(response.status).expect("a known status")
}

#[test]
fn health() {
    for transport in Transport::ALL {
        block_on(async {
            let (reporter, service) = tonic_health::server::health_reporter();
            reporter.set_serving::<TestServiceServer<TestServer>>().await;
            let connected = connect(transport, Routes::new(service)).await;
            let mut client = HealthClient::new(connected.channel.clone());
            let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
            let response = client.check(check("interop.TestService")).await.expect("a response");
            assert_eq!(status(response.into_inner()), ServingStatus::Serving);
            reporter.set_not_serving::<TestServiceServer<TestServer>>().await;
            let response = client.check(check("interop.TestService")).await.expect("a response");
            assert_eq!(status(response.into_inner()), ServingStatus::NotServing);
            let error = client.check(check("another")).await.expect_err("no such service");
            assert_eq!(error.code(), Code::NotFound);
            let watched = client.watch(check("interop.TestService")).await.expect("a stream");
            let mut watched = watched.into_inner();
            for is_serving in [false, true, false] {
                if is_serving {
                    reporter.set_serving::<TestServiceServer<TestServer>>().await;
                } else {
                    reporter.set_not_serving::<TestServiceServer<TestServer>>().await;
                }
                let response = watched.message().await.expect("a response").expect("a response");
                let expected =
                    if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
                assert_eq!(status(response), expected);
            }
        });
    }
}

#[test]
fn reflection() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    for transport in Transport::ALL {
        block_on(async {
            let service = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(include_bytes!(
                    "../proto/generated/descriptors.bin"
                ))
                .build_v1()
                .expect("valid descriptors");
            let connected = connect(transport, Routes::new(service)).await;
            let mut client = ServerReflectionClient::new(connected.channel.clone());
            let request = ServerReflectionRequest {
                message_request: Some(MessageRequest::ListServices(String::new())),
                ..ServerReflectionRequest::default()
            };
            let responses = client.server_reflection_info(tokio_stream::once(request)).await;
            let mut responses = responses.expect("responses").into_inner();
            let response = responses.message().await.expect("a response").expect("a response");
            let Some(MessageResponse::ListServicesResponse(list)) = response.message_response
            else {
                panic!("{response:?}");
            };
            let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
            assert!(names.contains(&"routeguide.RouteGuide".to_owned()), "{names:?}");
        });
    }
}

/// Refuses requests without a token, and adds one to the client's.
fn authorize(request: Request<()>) -> Result<Request<()>, Status> {
    match request.metadata().get("authorization") {
        Some(token) if token == "Bearer secret" => Ok(request),
        _ => Err(Status::unauthenticated("no token")),
    }
}

/// The results of a call over Apus and over TCP.
async fn over_both(
    serving: apus_tonic::Serving,
    server: &apus_rpc::Node,
    token: Option<&'static str>,
) -> [Result<(), Code>; 2] {
    let address = serving.tcp_addrs()[0];
    let serving = tokio::spawn(serving);
    let add = move |mut request: Request<()>| {
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.parse().expect("a value"));
        }
        Ok(request)
    };
    let node = node(Transport::Memory, 0);
    let channel = channel_to(server, &node).await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let tcp = endpoint.expect("an address").connect().await.expect("a server");
    let over_apus = TestServiceClient::with_interceptor(channel, add).empty_call(Empty {}).await;
    let over_tcp = TestServiceClient::with_interceptor(tcp, add).empty_call(Empty {}).await;
    serving.abort();
    [over_apus.map(drop), over_tcp.map(drop)].map(|it| it.map_err(|status| status.code()))
}

#[test]
fn interceptors_and_layers_of_the_server_see_both_transports() {
    block_on(async {
        let service = || TestServiceServer::with_interceptor(TestServer, authorize);
        let expected = [(None, Err(Code::Unauthenticated)), (Some("Bearer secret"), Ok(()))];
        for (token, expected) in expected {
            let server = node(Transport::Memory, 0);
            let builder = Server::builder().node(&server).also_tcp("127.0.0.1:0");
            let serving = builder.add_service(service()).serve(PORT);
            assert_eq!(over_both(serving, &server, token).await, [expected; 2]);
            let server = node(Transport::Memory, 0);
            let builder = Server::builder().node(&server).also_tcp("127.0.0.1:0");
            let layered = builder
                .layer(ConcurrencyLimitLayer::new(8))
                .layer(interceptor::InterceptorLayer::new(authorize))
                .add_service(TestServiceServer::new(TestServer));
            assert_eq!(over_both(layered.serve(PORT), &server, token).await, [expected; 2]);
        }
    });
}

#[test]
fn a_request_says_where_it_came_from() {
    /// Answers with the facts that a request has.
    fn facts(request: Request<()>) -> Result<Request<()>, Status> {
        let extensions = request.extensions();
        let info = extensions.get::<ApusConnectInfo>().expect("over Apus");
        let context = extensions.get::<apus_rpc::Context>().expect("over Apus");
        assert_eq!((info.peer(), info.identity()), (context.peer(), None));
        let left = request.metadata().get("grpc-timeout").expect("a deadline");
        assert_eq!(context.path().method(), "EmptyCall");
        Err(Status::already_exists(format!(
            "{} {} {}",
            request.remote_addr() == Some(info.peer().host),
            left.to_str().is_ok_and(|left| left.ends_with('u')),
            context.remaining().is_some_and(|left| left <= Duration::from_secs(90)),
        )))
    }
    block_on(async {
        let server = node(Transport::Memory, 0);
        let service = TestServiceServer::with_interceptor(TestServer, facts);
        tokio::spawn(Server::builder().node(&server).add_service(service).serve(PORT));
        let node = node(Transport::Memory, 0);
        let mut client = TestServiceClient::new(channel_to(&server, &node).await);
        let mut request = Request::new(Empty {});
        request.set_timeout(Duration::from_secs(90));
        let status = client.empty_call(request).await.expect_err("facts");
        assert_eq!(status.message(), "true true true");
    });
}

#[test]
fn limits_of_tonic_hold_and_not_those_of_envelopes() {
    block_on(async {
        let server = node(Transport::Memory, 0);
        let small = TestServiceServer::new(TestServer).max_decoding_message_size(1000);
        tokio::spawn(Server::builder().node(&server).add_service(small).serve(PORT));
        let node = node(Transport::Memory, 0);
        let mut client = TestServiceClient::new(channel_to(&server, &node).await)
            .max_decoding_message_size(usize::MAX);
        let request = |length, response_size| SimpleRequest {
            payload: vec![0; length],
            response_size,
            ..SimpleRequest::default()
        };
        let status = client.unary_call(request(2000, 0)).await.expect_err("too long");
        assert_eq!(status.code(), Code::OutOfRange);
        let response = client.unary_call(request(0, 6 << 20)).await.expect("a response");
        assert_eq!(response.into_inner().payload.len(), 6 << 20);
    });
}
