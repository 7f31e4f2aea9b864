//! What a server serves, and how.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use apus::{Bytes, Node};
#[cfg(feature = "tower")]
use tower::{Layer, Service};

use crate::body::MessageBody;
use crate::context::Context;
use crate::envelope::{EnvelopeLimits, MethodPath};
#[cfg(feature = "tower")]
use crate::layering::{LayerOnce, erased};
use crate::observe;
#[cfg(feature = "tower")]
use crate::response::Response;
use crate::server::admission::Admission;
use crate::server::in_service::InService;
use crate::server::intake::{IncomingCall, Intake, Interceptor};
#[cfg(feature = "tower")]
use crate::server::layers::{IncomingRequest, MethodLayers};
use crate::server::method::{BuiltIn, Method, Unary, WithStreams};
use crate::server::methods::Methods;
use crate::server::serving::{ServeError, Serving};
use crate::server::stream_buffers::StreamBuffers;
use crate::server::stream_table::StreamTable;
use crate::server::workers::Workers;
use crate::spawning::Spawn;
use crate::status::Status;
use crate::streaming::{StreamSender, Streaming};
#[cfg(feature = "tower")]
use crate::tower::{IncomingService, LayerError};

/// The methods of a port. [`Server::builder`] begins one.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// A server on this node, without methods.
    pub fn builder(node: &Node) -> ServerBuilder<'_> {
        Self::begin(Some(node))
    }

    /// A server without a node and methods, for [`Channel::in_memory`](crate::Channel::in_memory).
    pub fn in_memory() -> ServerBuilder<'static> {
        Self::begin(None)
    }

    fn begin(node: Option<&Node>) -> ServerBuilder<'_> {
        ServerBuilder {
            node,
            methods: Methods::default(),
            fallback: None,
            #[cfg(feature = "tower")]
            layers: Vec::new(),
            interceptors: Vec::new(),
            concurrency: usize::MAX,
            per_peer: None,
            streams_per_peer: 1000,
            stream_buffer: 256 << 20,
            stream_buffer_per_host: 64 << 20,
            hold_within: Duration::from_secs(10),
            limits: EnvelopeLimits::new(),
            spawner: None,
            at_end: Vec::new(),
            threads: 1,
            fault: None,
        }
    }
}

/// The methods of a server and its limits. From [`Server::builder`].
#[must_use = "a server serves after `serve`"]
pub struct ServerBuilder<'n> {
    node: Option<&'n Node>,
    methods: Methods,
    fallback: Option<Arc<dyn Method>>,
    #[cfg(feature = "tower")]
    layers: Vec<LayerOnce<IncomingRequest>>,
    interceptors: Vec<Interceptor>,
    concurrency: usize,
    per_peer: Option<usize>,
    streams_per_peer: usize,
    stream_buffer: usize,
    stream_buffer_per_host: usize,
    hold_within: Duration,
    limits: EnvelopeLimits,
    spawner: Option<Arc<dyn Spawn>>,
    at_end: Vec<Box<dyn Fn() + Send + Sync>>,
    threads: usize,
    fault: Option<ServeError>,
}

impl ServerBuilder<'_> {
    /// Serves a method: one request, one response. The path is `/SERVICE/METHOD`.
    ///
    /// The handler's future is polled once by the thread that has received the request, if the body has at most 16 KiB. If it has to
    /// wait, it goes on in a [task](Self::spawner). A future may thus be polled by two threads, one after the other, and with
    /// another waker.
    ///
    /// * An error is the status of the call.
    /// * A panic is [`Code::Internal`](crate::Code::Internal), and the server goes on. State that handlers share must tolerate this.
    /// * The future is dropped when the client gives the request up, at the deadline of the call, and at the end of
    ///   [`Serving::drain`].
    pub fn route<F, B>(
        self,
        path: &str,
        handler: impl Fn(Context, Bytes) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<B, Status>> + Send + 'static,
        B: Into<Bytes> + 'static,
    {
        self.unary(path, handler, |body: B| body.into().into())
    }

    /// Serves a method whose responses become bodies by a function.
    pub(crate) fn unary<F, B>(
        mut self,
        path: &str,
        handler: impl Fn(Context, Bytes) -> F + Send + Sync + 'static,
        into_body: fn(B) -> MessageBody,
    ) -> Self
    where
        F: Future<Output = Result<B, Status>> + Send + 'static,
        B: 'static,
    {
        self.serve_method(path, Arc::new(Unary::new(handler, into_body)));
        self
    }

    /// Serves a method with streams: many requests, many responses, or both. The handler reads requests from [`Streaming`], sends
    /// responses to [`StreamSender`], and ends the call by its result.
    ///
    /// Messages that a handler sends between two waits share packets. Otherwise as [`route`](Self::route).
    ///
    /// ```
    /// use apus_rpc::{Context, Status, StreamSender, Streaming};
    ///
    /// /// Answers each request with its length.
    /// async fn lengths(_: Context, mut requests: Streaming, mut responses: StreamSender) -> Result<(), Status> {
    ///     while let Some(request) = requests.next().await {
    ///         responses.send(request?.len().to_string()).await?;
    ///     }
    ///     Ok(())
    /// }
    /// # fn example(node: &apus_rpc::Node) {
    /// # let _ =
    /// apus_rpc::Server::builder(node).stream("/text.Measure/Lengths", lengths)
    /// # ;
    /// # }
    /// ```
    pub fn stream<F>(
        mut self,
        path: &str,
        handler: impl Fn(Context, Streaming, StreamSender) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.serve_method(path, Arc::new(WithStreams { handler }));
        self
    }

    /// As [`route`](Self::route), for a method of the library: it is outside of layers and of limits on requests in service.
    pub(crate) fn built_in_route<F, B>(
        mut self,
        path: &str,
        handler: impl Fn(Context, Bytes) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<B, Status>> + Send + 'static,
        B: Into<Bytes> + 'static,
    {
        let method = Unary::new(handler, |body: B| body.into().into());
        self.serve_method(path, Arc::new(BuiltIn(method)));
        self
    }

    /// As [`stream`](Self::stream), for a method of the library.
    pub(crate) fn built_in_stream<F>(
        mut self,
        path: &str,
        handler: impl Fn(Context, Streaming, StreamSender) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.serve_method(path, Arc::new(BuiltIn(WithStreams { handler })));
        self
    }

    fn serve_method(&mut self, path: &str, method: Arc<dyn Method>) {
        let Ok(known) = MethodPath::new(path.to_owned()) else {
            self.fault.get_or_insert_with(|| ServeError::Path(path.to_owned()));
            return;
        };
        if !self.methods.insert(known, method) {
            self.fault.get_or_insert_with(|| ServeError::Twice(path.to_owned()));
        }
    }

    /// Most calls with streams of one node at a time. Further ones are refused with
    /// [`Code::ResourceExhausted`](crate::Code::ResourceExhausted). Default 1,000.
    pub fn streams_per_peer(mut self, streams: usize) -> Self {
        self.streams_per_peer = streams;
        self
    }

    /// Most bytes of all streams that wait at the server, for handlers or for clients, outside of the budgets of its node. Beyond
    /// them, messages of clients wait in those budgets until their handler takes them, and a handler sends one message after the
    /// other. Default 256 MiB.
    pub fn stream_buffer(mut self, bytes: usize) -> Self {
        self.stream_buffer = bytes;
        self
    }

    /// Most such bytes of all streams of one IP address, whatever its ports, as [`stream_buffer`](Self::stream_buffer). Default
    /// 64 MiB.
    pub fn stream_buffer_per_host(mut self, bytes: usize) -> Self {
        self.stream_buffer_per_host = bytes;
        self
    }

    /// Serves the methods that no [`route`](Self::route) and no [`stream`](Self::stream) has, for an adapter of another protocol. The
    /// handler gets the path from [`Context::path`], and says [`Code::Unimplemented`](crate::Code::Unimplemented) about methods that do not
    /// exist. A server has one; a second one takes the place of the first.
    ///
    /// The handler knows whether a method has streams. The bytes of one without streams are its message; those of others have frames, which
    /// are for the handler to read and write ([`Streaming::poll_chunk`], [`StreamSender::send_raw`]). Histograms name such a method
    /// `_OTHER`, unless the handler calls [`Context::note_known_method`].
    ///
    /// ```
    /// use apus_rpc::{Code, Context, Status, StreamSender, Streaming};
    ///
    /// /// Echoes the bytes of all methods of one service.
    /// async fn echo(cx: Context, mut requests: Streaming, mut responses: StreamSender) -> Result<(), Status> {
    ///     let service = cx.path().service();
    ///     if service != "shop.Echo" {
    ///         return Err(Status::new(Code::Unimplemented, format!("no service {service} is served")));
    ///     }
    ///     while let Some(chunk) = std::future::poll_fn(|task| requests.poll_chunk(task)).await {
    ///         responses.send_raw(chunk?).await?;
    ///     }
    ///     Ok(())
    /// }
    /// # fn example(node: &apus_rpc::Node) {
    /// # let _ =
    /// apus_rpc::Server::builder(node).fallback(echo)
    /// # ;
    /// # }
    /// ```
    pub fn fallback<F>(
        mut self,
        handler: impl Fn(Context, Streaming, StreamSender) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.fallback = Some(Arc::new(WithStreams { handler }));
        self
    }

    /// Sees each request before its handler, in the order of these calls. An error refuses the request: its client gets the status,
    /// and knows that the request was not executed.
    ///
    /// ```
    /// use apus_rpc::{Code, IncomingCall, Status};
    ///
    /// fn admit(call: &mut IncomingCall<'_>) -> Result<(), Status> {
    ///     match call.metadata().get("authorization") {
    ///         Some("Bearer secret") => Ok(()),
    ///         _ => Err(Status::new(Code::Unauthenticated, "no token")),
    ///     }
    /// }
    /// # fn example(node: &apus_rpc::Node) {
    /// # let _ =
    /// apus_rpc::Server::builder(node).interceptor(admit)
    /// # ;
    /// # }
    /// ```
    pub fn interceptor(
        mut self,
        interceptor: impl Fn(&mut IncomingCall<'_>) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.interceptors.push(Box::new(interceptor));
        self
    }

    /// Wraps all methods in a layer of tower, also those that are added later; see [`tower`](crate::tower). Those of the library are
    /// outside: [`Health`](crate::health::Health), and the schemas of typed services. The first layer is the outermost one. Requests
    /// reach it after the limits and interceptors of the server, and have a copy of the service each.
    #[cfg(feature = "tower")]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<IncomingService> + Send + Sync + 'static,
        L::Service: Service<IncomingRequest, Response = Response> + Clone + Send + Sync + 'static,
        <L::Service as Service<IncomingRequest>>::Future: Send + 'static,
        <L::Service as Service<IncomingRequest>>::Error: Into<LayerError> + Send + Sync + 'static,
    {
        self.layers.push(erased(layer));
        self
    }

    /// Most requests in service at a time. Further ones are refused with
    /// [`Code::ResourceExhausted`](crate::Code::ResourceExhausted) before their handler is called, and clients know that they were
    /// not executed. Those of [`Health`](crate::health::Health), and those for schemas of typed services, do not count. Default: as many
    /// as the budgets of the node have room for.
    pub fn concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// Most requests in service at a time from one node, as [`concurrency`](Self::concurrency). Default: no limit.
    pub fn per_peer(mut self, requests: usize) -> Self {
        self.per_peer = Some(requests);
        self
    }

    /// The time after the first part of a response in which a client that has not announced that it holds its call has to do so.
    /// Clients of this library announce it. Default 10 s.
    //= docs/rpc-wire.md#E27
    pub fn hold_within(mut self, time: Duration) -> Self {
        self.hold_within = time;
        self
    }

    /// Limits on the messages of clients, and on the heads of responses.
    pub fn limits(mut self, limits: EnvelopeLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs handlers that have to wait, and those with long requests. Default: threads of the server, at most as many as the process
    /// has processors, started when needed.
    pub fn spawner(mut self, spawner: impl Spawn) -> Self {
        self.spawner = Some(Arc::new(spawner));
        self
    }

    /// Has the function called when the server begins to end.
    pub(crate) fn at_end(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.at_end.push(Box::new(call));
        self
    }

    /// Number of threads that serve in [`Serving::wait`], at least 1. Default 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Opens the port, 1 to 32766. The server takes requests while the result is awaited or [waited](Serving::wait) for, and begins to
    /// end when `shutdown` is ready. [`std::future::pending()`] never is.
    pub fn serve(self, port: u16, shutdown: impl Future<Output = ()> + Send + 'static) -> Serving {
        observe::describe();
        let (node, threads) = (self.node, self.threads);
        let (fault, intake) = self.into_intake();
        let opened = match (fault, node) {
            (Some(fault), _) => Err(fault),
            (None, None) => Err(ServeError::NoNode),
            (None, Some(node)) => node.bind(port).map_err(ServeError::Open),
        };
        Serving::new(opened, intake, threads, shutdown)
    }

    /// The server without its port, and a fault of its methods.
    pub(crate) fn into_intake(self) -> (Option<ServeError>, Intake) {
        let workers = || {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            Arc::new(Workers::new(processors)) as Arc<dyn Spawn>
        };
        #[cfg(feature = "tower")]
        let (methods, fallback) = {
            let (mut methods, mut fallback) = (self.methods, self.fallback);
            if !self.layers.is_empty() {
                let layers = MethodLayers::new(self.layers);
                let layered = methods.iter_mut().filter(|method| !method.is_built_in());
                for method in layered.chain(&mut fallback) {
                    *method = layers.around(Arc::clone(method));
                }
            }
            (methods, fallback)
        };
        #[cfg(not(feature = "tower"))]
        let (methods, fallback) = (self.methods, self.fallback);
        let admission = Admission::new(self.concurrency, self.per_peer);
        let spawner = self.spawner.unwrap_or_else(workers);
        let in_service = InService::new(admission, spawner, self.limits, self.hold_within);
        let buffers = StreamBuffers::new(self.stream_buffer, self.stream_buffer_per_host);
        let intake = Intake {
            methods,
            fallback,
            interceptors: self.interceptors,
            in_service: Arc::new(in_service),
            streams: Arc::new(StreamTable::new(self.streams_per_peer, buffers)),
            at_end: self.at_end,
            draining: AtomicBool::new(false),
        };
        (self.fault, intake)
    }
}

impl std::fmt::Debug for ServerBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerBuilder").field("methods", &self.methods).finish_non_exhaustive()
    }
}
