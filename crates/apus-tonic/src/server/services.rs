//! From a path to its service.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower::util::{BoxCloneSyncService, Oneshot};
use tower::{Service, ServiceExt};

use crate::body::BoxError;

type Named = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The services of a server, each found by its name: the service that layers of [`ServerBuilder::layer`](crate::ServerBuilder::layer)
/// are around. Clones share the services.
#[derive(Clone, Default)]
pub struct Services {
    by_name: Arc<HashMap<&'static str, Named>>,
    routes: Option<Routes>,
}

impl Services {
    /// Adds a service. Returns false if there is one with this name.
    pub(crate) fn add<S, B>(&mut self, service: S) -> bool
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = service.map_response(|response: Response<B>| response.map(Body::new));
        let by_name = Arc::make_mut(&mut self.by_name);
        by_name.insert(S::NAME, BoxCloneSyncService::new(service)).is_none()
    }

    /// Has these routes handle all other paths.
    pub(crate) fn set_routes(&mut self, routes: Routes) {
        // Axum wants to know that nothing is added.
        self.routes = Some(routes.prepare());
    }
}

impl Service<Request<Body>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ServicesFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Each request has a clone of its service, which is awaited until it is ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ServicesFuture {
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|rest| rest.split_once('/')).map(|it| it.0);
        let found = match (name.and_then(|name| self.by_name.get(name)), &self.routes) {
            (Some(service), _) => Found::Named { call: service.clone().oneshot(request) },
            (None, Some(routes)) => Found::Routed { call: routes.clone().oneshot(request) },
            (None, None) => Found::Nothing { path: path.to_owned() },
        };
        ServicesFuture { found }
    }
}

pin_project! {
    /// A request that a service handles. From [`Services`].
    #[must_use = "a future does nothing unless it is polled"]
    pub struct ServicesFuture {
        #[pin]
        found: Found,
    }
}

pin_project! {
    #[project = FoundPinned]
    enum Found {
        Named { #[pin] call: Oneshot<Named, Request<Body>> },
        Routed { #[pin] call: Oneshot<Routes, Request<Body>> },
        Nothing { path: String },
    }
}

impl Future for ServicesFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().found.project() {
            FoundPinned::Named { call } => call.poll(task),
            FoundPinned::Routed { call } => call.poll(task),
            FoundPinned::Nothing { path } => {
                let text = format!("no service of {path} is served");
                Poll::Ready(Ok(tonic::Status::unimplemented(text).into_http()))
            }
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.by_name.keys().collect();
        names.sort_unstable();
        f.debug_struct("Services").field("names", &names).field("routes", &self.routes).finish()
    }
}

impl fmt::Debug for ServicesFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServicesFuture").finish_non_exhaustive()
    }
}
