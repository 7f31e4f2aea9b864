//! The service of the interoperability tests.

use std::pin::Pin;
use std::time::Duration;

use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

#[allow(warnings, reason = "generated")]
pub(crate) mod proto {
    include!("../../proto/generated/interop.rs");
}

use proto::test_service_server::TestService;
use proto::{EchoStatus, Empty, SimpleRequest, SimpleResponse, StreamRequest, SumResponse};

/// Metadata that comes back before the response.
pub(crate) const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";

/// Metadata that comes back after it.
pub(crate) const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";

/// The methods, with behaviours that their requests ask for.
#[derive(Clone, Default)]
pub(crate) struct TestServer;

type Responses = Pin<Box<dyn Stream<Item = Result<SimpleResponse, Status>> + Send>>;

fn zeros(length: u32) -> Vec<u8> {
    vec![0; length as usize]
}

/// The status that a request asks for.
fn check(status: Option<&EchoStatus>) -> Result<(), Status> {
    match status {
        Some(status) => Err(Status::new(status.code.into(), status.message.clone())),
        None => Ok(()),
    }
}

/// Copies the metadata of a request that is to come back, first that before the response.
fn echo<T, R>(request: &Request<T>, response: &mut Response<R>) {
    if let Some(value) = request.metadata().get(ECHO_INITIAL) {
        response.metadata_mut().insert(ECHO_INITIAL, value.clone());
    }
    if let Some(value) = request.metadata().get_bin(ECHO_TRAILING) {
        response.metadata_mut().insert_bin(ECHO_TRAILING, value.clone());
    }
}

fn responses(request: StreamRequest) -> impl Stream<Item = Result<SimpleResponse, Status>> + Send {
    let sizes = request.response_sizes.into_iter();
    let responses = sizes.map(|size| Ok(SimpleResponse { payload: zeros(size) }));
    let end = check(request.response_status.as_ref()).err().map(Err);
    tokio_stream::iter(responses.chain(end))
}

#[tonic::async_trait]
impl TestService for TestServer {
    async fn empty_call(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        // The case timeout_on_sleeping_server.
        if request.metadata().get("x-sleep").is_some() {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        Ok(Response::new(Empty {}))
    }

    async fn unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        check(request.get_ref().response_status.as_ref())?;
        let size = request.get_ref().response_size;
        let mut response = Response::new(SimpleResponse { payload: zeros(size) });
        echo(&request, &mut response);
        Ok(response)
    }

    type StreamingOutputCallStream = Responses;

    async fn streaming_output_call(
        &self,
        request: Request<StreamRequest>,
    ) -> Result<Response<Responses>, Status> {
        Ok(Response::new(Box::pin(responses(request.into_inner()))))
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<SimpleRequest>>,
    ) -> Result<Response<SumResponse>, Status> {
        let (mut requests, mut length) = (request.into_inner(), 0);
        while let Some(request) = requests.next().await {
            length += request?.payload.len() as u64;
        }
        Ok(Response::new(SumResponse { length }))
    }

    type FullDuplexCallStream = Responses;

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let requests = request.into_inner();
        let responses = futures_util::StreamExt::flat_map(requests, |request| {
            let parts: Responses = match request {
                Ok(request) => Box::pin(responses(request)),
                Err(status) => Box::pin(tokio_stream::once(Err(status))),
            };
            parts
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn unimplemented_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Err(Status::unimplemented(""))
    }
}
