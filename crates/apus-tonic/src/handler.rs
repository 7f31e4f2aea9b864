//! The server's side: requests of Apus as HTTP requests for the services that tonic generates.

use apus_rpc::{Bytes, Code, Context, Status, StreamSender, Streaming};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tower::{Service, ServiceExt};

use crate::body::{BoxError, RequestBody, respond};
use crate::connect_info::ApusConnectInfo;
use crate::headers::{GRPC_TIMEOUT, to_message_headers, to_metadata};
use crate::known_methods::KnownMethods;
use crate::status::{from_headers, from_http, from_tonic, invalid_response};
use crate::timeout;

/// Serves tower services with an [`apus_rpc::Server`], beside methods of other kinds.
///
/// ```no_run
/// # async fn serve<R: Clone + Into<tonic::service::Routes>>(node: &apus_rpc::Node, routes: R) {
/// use apus_tonic::AddTower;
///
/// # let routes: tonic::service::Routes = routes.into();
/// let server = apus_rpc::Server::builder(node)
///     .route("/shop.Clock/Now", |_, _| async { Ok("12:00") })
///     .add_tower(routes)
///     .spawner(apus_rpc::tokio::current())
///     .serve(4000, std::future::pending());
/// # let _ = server.await;
/// # }
/// ```
pub trait AddTower: Sized {
    /// Has the service handle the methods that no [`route`](apus_rpc::ServerBuilder::route) has, as
    /// [`fallback`](apus_rpc::ServerBuilder::fallback) does. The service is one that tonic generates, a `Routes`, or any other with
    /// these types.
    ///
    /// A request has the extensions [`ApusConnectInfo`] and [`apus_rpc::Context`], and with the feature `transport` tonic's
    /// `TcpConnectInfo`. Its header `grpc-timeout` has the time that is left until the deadline of the call.
    #[must_use]
    fn add_tower<S, B>(self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>;
}

impl AddTower for apus_rpc::ServerBuilder<'_> {
    fn add_tower<S, B>(self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let known = KnownMethods::new();
        self.fallback(move |context, requests, responses| {
            handle(context, requests, responses, service.clone(), known.clone())
        })
    }
}

async fn handle<S, B>(
    context: Context,
    requests: Streaming,
    mut responses: StreamSender,
    service: S,
    known: KnownMethods,
) -> Result<(), Status>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let is_new = known.name(&context);
    let response = service.oneshot(request(&context, requests)?).await;
    let response =
        response.map_err(|error| from_tonic(&tonic::Status::from_error(error.into())))?;
    if is_new && is_served(&response) {
        known.add(&context);
    }
    answer(&context, response, &mut responses).await
}

/// Whether a response is that of a method that exists: no error is in its headers.
fn is_served<B>(response: &Response<B>) -> bool {
    let status = from_headers(response.headers());
    response.status() == StatusCode::OK && status.is_none_or(|status| status.code() == Code::Ok)
}

/// The HTTP request that a client of tonic would have sent.
fn request(context: &Context, requests: Streaming) -> Result<Request<Body>, Status> {
    let mut request = Request::new(Body::new(RequestBody::new(requests)));
    let path = context.path().as_str();
    *request.uri_mut() = path.parse::<Uri>().map_err(|error| {
        let text = format!("the path {path} is no path of HTTP: {error}");
        Status::new(Code::Unimplemented, text)
    })?;
    (*request.method_mut(), *request.version_mut()) = (Method::POST, Version::HTTP_2);
    let mut headers = to_message_headers(context.metadata())?;
    if let Some(remaining) = context.remaining() {
        let text = timeout::format(remaining);
        let value = HeaderValue::try_from(text).expect("digits and a letter");
        headers.insert(GRPC_TIMEOUT, value);
    }
    *request.headers_mut() = headers;
    let client = ApusConnectInfo::of(context);
    #[cfg(feature = "transport")]
    request.extensions_mut().insert(tonic::transport::server::TcpConnectInfo {
        local_addr: None,
        remote_addr: Some(client.peer().host),
    });
    request.extensions_mut().insert(client);
    request.extensions_mut().insert(context.clone());
    Ok(request)
}

/// Sends the response. Its metadata goes at once if no message is there to go with it.
async fn answer<B>(
    context: &Context,
    response: Response<B>,
    responses: &mut StreamSender,
) -> Result<(), Status>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    // A status in the headers is the whole response.
    let early = match from_headers(&parts.headers) {
        Some(status) if status.code() != Code::Ok => return Err(status),
        early => early.map(|_| Status::new(Code::Ok, "")),
    };
    let metadata = to_metadata(&MetadataMap::from_headers(parts.headers));
    let metadata = metadata.map_err(|error| invalid_response(&error))?;
    context.with_response_metadata(|response| response.extend(metadata));
    responses.send_head();
    let trailers = respond(Box::pin(body), responses).await?;
    match trailers.as_ref().and_then(from_headers).or(early) {
        Some(status) if status.code() == Code::Ok => {
            context.with_trailers(|trailers| trailers.extend(status.metadata().clone()));
            Ok(())
        }
        Some(status) => Err(status),
        None => Err(from_http(parts.status)),
    }
}
