//! What a server serves, and how.

use std::convert::Infallible;
use std::future::{self, Future};
use std::time::Duration;

use apus::{Config, StartError};
use apus_rpc::envelope::EnvelopeLimits;
use apus_rpc::{Bytes, Node};
use http::{Request, Response};
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower::layer::util::{Identity, Stack};
use tower::{Layer, Service, ServiceBuilder};

use crate::body::BoxError;
use crate::handler::AddTower;
use crate::server::error::ServeError;
use crate::server::services::Services;
use crate::server::serving::{InRuntime, Serving};
#[cfg(feature = "transport")]
use crate::server::tcp::TcpListeners;

/// Serves the services that tonic generates, in place of `tonic::transport::Server`. [`Server::builder`] begins one.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server without services.
    pub fn builder() -> ServerBuilder<'static> {
        ServerBuilder {
            node: None,
            layers: ServiceBuilder::new(),
            services: Services::default(),
            limits: EnvelopeLimits::new().frame_max(usize::MAX),
            concurrency: usize::MAX,
            per_peer: None,
            drain: Duration::from_secs(30),
            #[cfg(feature = "transport")]
            tcp: TcpListeners::default(),
            fault: None,
        }
    }
}

/// The services of a server and its limits. From [`Server::builder`].
///
/// ```no_run
/// # async fn example<R: Into<tonic::service::Routes>>(routes: R) -> Result<(), apus_tonic::ServeError> {
/// # let routes = routes.into();
/// apus_tonic::Server::builder().add_routes(routes).serve(4000).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a server serves after `serve`"]
pub struct ServerBuilder<'n, L = Identity> {
    node: Option<&'n Node>,
    layers: ServiceBuilder<L>,
    services: Services,
    limits: EnvelopeLimits,
    concurrency: usize,
    per_peer: Option<usize>,
    drain: Duration,
    #[cfg(feature = "transport")]
    tcp: TcpListeners,
    fault: Option<ServeError>,
}

impl<'n, L> ServerBuilder<'n, L> {
    /// The node whose port is opened. Default: a node of the server's own at UDP port 20146, with the variables `APUS_*`; the runtime of
    /// tokio that the server is awaited in turns it. A node that is given is turned as its owner says
    /// ([`apus_rpc::tokio::drive`]).
    ///
    /// A node without a certificate speaks with its own machine only
    /// ([encryption and identity](https://github.com/apus-rpc/apus/blob/main/docs/security.md)).
    pub fn node<'m>(self, node: &'m Node) -> ServerBuilder<'m, L> {
        ServerBuilder {
            node: Some(node),
            layers: self.layers,
            services: self.services,
            limits: self.limits,
            concurrency: self.concurrency,
            per_peer: self.per_peer,
            drain: self.drain,
            #[cfg(feature = "transport")]
            tcp: self.tcp,
            fault: self.fault,
        }
    }

    /// Adds a service that tonic generates, or one with interceptors around it. Two services of one name are an error of
    /// [`serve`](Self::serve).
    pub fn add_service<S, B>(mut self, service: S) -> Self
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
        if !self.services.add(service) {
            self.fault.get_or_insert(ServeError::Twice(S::NAME));
        }
        self
    }

    /// Adds a service if there is one.
    pub fn add_optional_service<S, B>(self, service: Option<S>) -> Self
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
        match service {
            Some(service) => self.add_service(service),
            None => self,
        }
    }

    /// Has these routes handle the paths of all other services. Later routes take the place of earlier ones. A service of
    /// [`add_service`](Self::add_service) is found faster than one of routes.
    pub fn add_routes(mut self, routes: Routes) -> Self {
        self.services.set_routes(routes);
        self
    }

    /// Wraps all services in a layer of tower; the first one is the outermost.
    pub fn layer<M>(self, layer: M) -> ServerBuilder<'n, Stack<M, L>> {
        ServerBuilder {
            node: self.node,
            layers: self.layers.layer(layer),
            services: self.services,
            limits: self.limits,
            concurrency: self.concurrency,
            per_peer: self.per_peer,
            drain: self.drain,
            #[cfg(feature = "transport")]
            tcp: self.tcp,
            fault: self.fault,
        }
    }

    /// Most requests over Apus in service at a time. Further ones are refused with `RESOURCE_EXHAUSTED` before they are read, and
    /// clients know that they were not executed. Default: as many as the budgets of the node have room for.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// Most requests in service at a time from one node, as [`concurrency`](Self::concurrency). Default 1,000.
    pub fn per_peer(mut self, requests: usize) -> Self {
        self.per_peer = Some(requests);
        self
    }

    /// Limits on the heads of messages over Apus, with the defaults of [`EnvelopeLimits`]. The length of messages is for tonic to bound
    /// (`max_decoding_message_size`, 4 MiB by default), so there is no limit on frames unless this sets one.
    pub fn limits(mut self, limits: EnvelopeLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The longest time for which the end of the server waits for handlers. Default 30 s. Handlers of calls over Apus are dropped then;
    /// those of calls over TCP go on in the runtime.
    pub fn drain(mut self, at_most: Duration) -> Self {
        self.drain = at_most;
        self
    }

    /// Serves the same services also over TCP, as tonic's own server does: for grpcurl and programs in other languages. The address is
    /// `HOST:PORT`. Needs the feature `transport`, and a runtime with I/O and time.
    #[cfg(feature = "transport")]
    #[cfg_attr(docsrs, doc(cfg(feature = "transport")))]
    pub fn also_tcp(mut self, address: &str) -> Self {
        if let Err(source) = self.tcp.bind(address) {
            let fault = ServeError::Listen { address: address.to_owned(), source };
            self.fault.get_or_insert(fault);
        }
        self
    }

    /// Opens the port, 1 to 32766, and serves while the result is awaited, until the node is closed.
    pub fn serve<B>(self, port: u16) -> Serving
    where
        L: Layer<Services>,
        L::Service: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send,
        <L::Service as Service<Request<Body>>>::Error: Into<BoxError> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.serve_with_shutdown(port, future::pending())
    }

    /// [`serve`](Self::serve), until `shutdown` is ready. Requests that arrive then are refused, and clients know that they were not
    /// executed; the server waits for its handlers, at most as long as [`drain`](Self::drain) says.
    pub fn serve_with_shutdown<B>(
        self,
        port: u16,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Serving
    where
        L: Layer<Services>,
        L::Service: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request<Body>>>::Future: Send,
        <L::Service as Service<Request<Body>>>::Error: Into<BoxError> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if let Some(fault) = self.fault {
            return Serving::failed(fault);
        }
        let own = match self.node {
            Some(_) => None,
            None => match own_node() {
                Ok(node) => Some(node),
                Err(error) => return Serving::failed(error.into()),
            },
        };
        let node = self.node.or(own.as_ref()).expect("a node was given or started");
        let service = self.layers.service(self.services);
        #[cfg(feature = "transport")]
        let (tcp, shutdown) = self.tcp.serve(service.clone(), self.drain, shutdown);
        let runtime = InRuntime::default();
        let server = apus_rpc::Server::builder(node)
            .add_tower(service)
            .limits(self.limits)
            .concurrency(self.concurrency)
            // Any call may be one with streams, whose requests wait outside of the node's budgets.
            .streams_per_peer(self.per_peer.unwrap_or(PER_PEER))
            .spawner(runtime.clone());
        let server = match self.per_peer {
            Some(requests) => server.per_peer(requests),
            None => server,
        };
        let serving = server.serve(port, shutdown).drain(self.drain);
        let serving = Serving::new(serving, runtime, own);
        #[cfg(feature = "transport")]
        let serving = serving.with_tcp(tcp);
        serving
    }
}

/// Default of [`ServerBuilder::per_peer`]. A call with streams holds up to 256 KiB of requests that its handler has not read.
const PER_PEER: usize = 1_000;

/// The node of a server that was given none.
fn own_node() -> Result<Node, StartError> {
    let mut config = Config::server();
    config.apply_environment().map_err(StartError::Config)?;
    Node::start(&config)
}
