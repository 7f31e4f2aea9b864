//! Layers of tower around the methods of a server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use apus::Bytes;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

use crate::context::Context;
use crate::envelope::MethodPath;
use crate::layering::{LayerError, LayerOnce, Layered, Passed, around};
use crate::response::Response;
use crate::server::method::{Method, RequestBody, Unary, WithStreams};
use crate::status::Status;
use crate::streaming::{StreamSender, Streaming};

/// A request on its way through the layers of a server to its handler.
///
/// The response of a method with streams is sent by its handler; the [`Response`] of the service is empty then, and is there when the
/// handler has ended.
pub struct IncomingRequest {
    context: Context,
    body: RequestBody,
    method: Arc<dyn Method>,
    passed: Passed,
}

impl IncomingRequest {
    /// The context of the request, as its handler gets it.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The path of the method.
    #[must_use]
    pub fn path(&self) -> &MethodPath {
        self.context.path()
    }

    /// The message. `None` if the method has streams.
    #[must_use]
    pub fn message(&self) -> Option<&Bytes> {
        match &self.body {
            RequestBody::Message(message) => Some(message),
            RequestBody::Streams(..) => None,
        }
    }

    /// The message, to be changed for the handler.
    pub fn message_mut(&mut self) -> Option<&mut Bytes> {
        match &mut self.body {
            RequestBody::Message(message) => Some(message),
            RequestBody::Streams(..) => None,
        }
    }
}

/// The methods themselves, within all layers.
#[derive(Clone)]
struct Handlers;

impl Service<IncomingRequest> for Handlers {
    type Response = Response;
    type Error = LayerError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, LayerError>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), LayerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: IncomingRequest) -> Self::Future {
        let IncomingRequest { context, body, method, passed } = request;
        Box::pin(async move {
            passed.note();
            let is_message = matches!(body, RequestBody::Message(_));
            let body = method.run(context.clone(), body).await?;
            // That of a stream was sent with its first message.
            let metadata = if is_message { context.take_metadata() } else { Default::default() };
            Ok(Response::new(body, metadata, context.take_trailers()))
        })
    }
}

/// The services around the methods of a server.
pub(crate) struct MethodLayers {
    service: Layered<IncomingRequest>,
}

impl MethodLayers {
    pub(crate) fn new(layers: Vec<LayerOnce<IncomingRequest>>) -> Self {
        Self { service: around(BoxCloneSyncService::new(Handlers), layers) }
    }

    /// The method with the layers around it.
    pub(crate) fn around(&self, method: Arc<dyn Method>) -> Arc<dyn Method> {
        let service = self.service.clone();
        if method.is_stream() {
            let handler = move |context: Context, requests: Streaming, responses: StreamSender| {
                let streams = RequestBody::Streams(requests, responses);
                let response = pass(service.clone(), context, streams, Arc::clone(&method));
                async move { response.await.map(|_| ()) }
            };
            return Arc::new(WithStreams { handler });
        }
        let handler = move |context: Context, message: Bytes| {
            pass(service.clone(), context, RequestBody::Message(message), Arc::clone(&method))
        };
        Arc::new(Unary::new(handler, |body: Bytes| body.into()))
    }
}

/// Sends a request through the layers.
async fn pass(
    service: Layered<IncomingRequest>,
    context: Context,
    body: RequestBody,
    method: Arc<dyn Method>,
) -> Result<Bytes, Status> {
    let passed = Passed::default();
    let request =
        IncomingRequest { context: context.clone(), body, method, passed: passed.clone() };
    let response = service.oneshot(request).await.map_err(|error| passed.status_of(error))?;
    let (body, metadata, trailers) = response.into_parts();
    context.with_response_metadata(|all| all.extend(metadata));
    context.with_trailers(|all| all.extend(trailers));
    Ok(body)
}

impl fmt::Debug for IncomingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingRequest").field("context", &self.context).finish_non_exhaustive()
    }
}
