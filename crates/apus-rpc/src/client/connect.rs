//! From a target to a channel.

use std::fmt;
use std::future::poll_fn;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "tower")]
use tower::{Layer, Service};

use apus::{CallError, Client, Config, Node, OpenError, ResolveError, StartError};

use crate::blocking::block_on;
use crate::client::balance::{Balance, Pick};
use crate::client::calls::{CallDefaults, ChannelParts, Interceptor, OutgoingCall};
use crate::client::channel::Channel;
use crate::client::endpoint_set::EndpointSet;
use crate::client::first_contact;
use crate::client::health_watch::HealthWatch;
use crate::client::hedge::Hedge;
#[cfg(feature = "hickory")]
use crate::client::hickory_resolver::HickoryResolver;
use crate::client::resolve::{BoxError, Endpoint, EndpointStream, Resolve};
use crate::client::retry::Retry;
use crate::client::system_resolver::SystemResolver;
use crate::client::target::{HostSource, Target};
use crate::client::task_thread::UPKEEP;
use crate::client::upkeep;
use crate::envelope::EnvelopeLimits;
#[cfg(feature = "tower")]
use crate::layering::erased;
use crate::observe;
#[cfg(feature = "tower")]
use crate::response::Response;
use crate::status::Status;
#[cfg(feature = "tower")]
use crate::tower::{LayerError, OutgoingRequest, OutgoingService};
use crate::transport::Caller;

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The target has another form, or its name is not known.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The resolver found no endpoints.
    #[error("no endpoints of '{target}': {source}")]
    Endpoints {
        /// The target.
        target: String,
        /// The error of the resolver.
        source: BoxError,
    },
    /// The node that channels of the process share does not start.
    #[error("the node for channels does not start: {0}")]
    Start(#[from] StartError),
    /// The node has no port for the channel.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// First contact with the server failed.
    #[error(transparent)]
    Contact(#[from] CallError),
    /// The system has no random numbers.
    #[error("the system has no random numbers: {0}")]
    Random(String),
}

/// A channel to be. From [`Channel::builder`].
#[must_use = "a builder makes a channel with `build` or `connect`"]
pub struct ChannelBuilder {
    target: Target,
    client: Option<Result<Client, OpenError>>,
    resolver: Option<Arc<dyn Resolve>>,
    pick: Option<Box<dyn Pick>>,
    seed: Option<u64>,
    health: Option<String>,
    interceptors: Vec<Interceptor>,
    defaults: CallDefaults,
}

impl Channel {
    /// A channel to a [target](Target), such as `HOST:PORT`, on the process's [shared node](ChannelBuilder::node).
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn connect(target: &str) -> Result<Self, ConnectError> {
        Self::builder(target).connect().await
    }

    /// A channel to a [target](Target) with options.
    pub fn builder(target: &str) -> ChannelBuilder {
        ChannelBuilder {
            target: Target::new(target),
            client: None,
            resolver: None,
            pick: None,
            seed: None,
            health: None,
            interceptors: Vec::new(),
            defaults: CallDefaults::new(),
        }
    }
}

impl ChannelBuilder {
    /// The node whose port the channel uses. Default: a node that all such channels of the process share, which is started with
    /// the defaults and the variables `APUS_*` when it is first needed.
    pub fn node(mut self, node: &Node) -> Self {
        self.client = Some(node.client());
        self
    }

    /// Finds the endpoints of the target. Default: a [`SystemResolver`].
    pub fn resolver(mut self, resolver: impl Resolve) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// Chooses the endpoint of each call: a [`Balance`], or a [`Pick`] of the application. Default: [`Balance::PickFirst`] for
    /// the addresses of one host, and [`Balance::LeastOutstanding`] for other targets.
    pub fn balance(mut self, pick: impl Pick) -> Self {
        self.pick = Some(Box::new(pick));
        self
    }

    /// Repeats failed calls. Default [`Retry::new`]: requests that were not executed go to other endpoints at once, and nothing
    /// else is repeated.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.defaults.retry = retry;
        self
    }

    /// Sends a second copy of slow calls that are marked [idempotent](crate::UnaryCall::idempotent), or whose method has a
    /// [`RetryPolicy`](crate::RetryPolicy) of its own. Default: none has one.
    pub fn hedge(mut self, hedge: Hedge) -> Self {
        self.defaults.hedge = Some(hedge);
        self
    }

    /// Whether calls wait until an endpoint takes them. Default `false`: a call that no endpoint takes ends with
    /// [`Code::Unavailable`](crate::Code::Unavailable) at once. [`UnaryCall::wait_for_ready`](crate::UnaryCall::wait_for_ready)
    /// overrides it for a call.
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.defaults.waits_for_ready = waits;
        self
    }

    /// Begins the random numbers of the channel (choices and pauses) with this number, so that a test can repeat them. Default: a
    /// random number of the system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Watches the [health](crate::health) of a service at each endpoint, such as `"shop.Calc"`; the empty name is the whole server.
    /// Endpoints where it does not serve, or whose health cannot be asked, get no calls as long as another one is left. An endpoint
    /// without the method `grpc.health.v1.Health/Watch` serves, and so does one that has not answered yet. Default: off.
    ///
    /// The watch of an endpoint is a call with streams to it, by the port of the channel. The interceptors of the channel see it; its
    /// layers do not, and spans and histograms leave it out.
    pub fn health(mut self, service: impl Into<String>) -> Self {
        self.health = Some(service.into());
        self
    }

    /// Limits on the responses of servers, and on the heads of requests.
    pub fn limits(mut self, limits: EnvelopeLimits) -> Self {
        self.defaults.limits = limits;
        self
    }

    /// Sees each request before it is sent, in the order of these calls. An error is the status of the call, and nothing is sent.
    /// A request that is sent again is not shown again.
    pub fn interceptor(
        mut self,
        interceptor: impl Fn(&mut OutgoingCall<'_>) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.interceptors.push(Box::new(interceptor));
        self
    }

    /// Wraps calls with one request and one response in a layer of tower, with all their attempts; see [`tower`](crate::tower). The
    /// first layer is the outermost one. Each call has a copy of the service.
    #[cfg(feature = "tower")]
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<OutgoingService> + Send + Sync + 'static,
        L::Service: Service<OutgoingRequest, Response = Response> + Clone + Send + Sync + 'static,
        <L::Service as Service<OutgoingRequest>>::Future: Send + 'static,
        <L::Service as Service<OutgoingRequest>>::Error: Into<LayerError> + Send + Sync + 'static,
    {
        self.defaults.layers.push(erased(layer));
        self
    }

    /// Resolves the target, makes the channel and performs first contact with a server, so that the first call takes one round
    /// trip. The servers are contacted in order, 250 ms apart, until one is reached.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn connect(self) -> Result<Channel, ConnectError> {
        let channel = self.open().await?;
        if let Caller::Network(client) = &channel.calls.caller {
            first_contact::reach(client, &channel.calls.endpoints).await?;
        }
        Ok(channel)
    }

    /// Resolves the target and makes the channel, for threads. Nothing is sent; [`Channel::contact`] performs first contact. The
    /// thread waits for the resolver, which may take seconds for a name.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn build(self) -> Result<Channel, ConnectError> {
        block_on(self.open())
    }

    async fn open(self) -> Result<Channel, ConnectError> {
        observe::describe();
        let Self { target, client, resolver, pick, seed, health, interceptors, mut defaults } =
            self;
        defaults.interceptors = interceptors.into();
        #[cfg(feature = "tower")]
        let layers = std::mem::take(&mut defaults.layers);
        let client = match client {
            Some(client) => client?,
            None => with_shared_node(Node::client)??,
        };
        #[cfg(feature = "hickory")]
        let resolver = match resolver {
            None if target.as_str().starts_with("srv:") => {
                let system = HickoryResolver::from_system().map_err(|source| {
                    ConnectError::Endpoints { target: target.to_string(), source }
                })?;
                Some(Arc::new(system) as Arc<dyn Resolve>)
            }
            resolver => resolver,
        };
        let source = resolver.is_none().then(|| target.source()).transpose()?;
        let is_one_host = source.as_ref().is_some_and(HostSource::is_one_host);
        let is_numeric = source.is_some_and(|source| source.numeric().is_some());
        let resolver = resolver.unwrap_or_else(|| Arc::new(SystemResolver::new()));
        let pick = pick.unwrap_or_else(|| {
            let one_host = if is_one_host { Balance::PickFirst } else { Balance::LeastOutstanding };
            Box::new(one_host)
        });
        let mut lists = resolver.watch(&target);
        let first = first_list(&target, &mut lists).await?;
        // The list of an address alone never changes.
        let is_kept = !is_numeric || first.len() > 1 || health.is_some();
        let set = EndpointSet::new(pick, seed.map_or_else(random, Ok)?, resolver);
        set.update(first);
        let set = Arc::new(set);
        let health = health.map(|service| HealthWatch::new(service, &defaults));
        let upkeep = match is_kept {
            true => {
                let kept = upkeep::keep(Arc::clone(&set), client.clone(), lists, health, random()?);
                Some(UPKEEP.spawn(kept))
            }
            false => None,
        };
        //= docs/rpc-wire.md#E7
        let caller = Caller::Network(client);
        let parts = ChannelParts::new(caller, set, random()?, defaults, upkeep);
        #[cfg(feature = "tower")]
        let channel = Channel::within(parts, layers);
        #[cfg(not(feature = "tower"))]
        let channel = Channel::new(parts);
        Ok(channel)
    }
}

/// The first list of endpoints that is not empty.
async fn first_list(
    target: &Target,
    lists: &mut EndpointStream,
) -> Result<Vec<Endpoint>, ConnectError> {
    let error = |source: BoxError| match source.downcast() {
        Ok(error) => ConnectError::Resolve(*error),
        Err(source) => ConnectError::Endpoints { target: target.to_string(), source },
    };
    loop {
        match poll_fn(|task| lists.as_mut().poll_next(task)).await {
            Some(Ok(list)) if list.is_empty() => {}
            Some(result) => return result.map_err(error),
            None => return Err(error("the resolver has none".into())),
        }
    }
}

fn random() -> Result<u64, ConnectError> {
    getrandom::u64().map_err(|error| ConnectError::Random(error.to_string()))
}

/// The node that channels of the process share, which is started when it is first needed. A forked child of the process has a node of
/// its own.
pub(crate) fn with_shared_node<T>(run: impl FnOnce(&Node) -> T) -> Result<T, ConnectError> {
    static NODE: Mutex<Option<(u32, Node)>> = Mutex::new(None);
    let mut node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, node)) = &*node
        && *process == process::id()
        && node.client().is_ok()
    {
        return Ok(run(node));
    }
    let mut config = Config::new();
    config.apply_environment().map_err(StartError::Config)?;
    let (_, started) = node.insert((process::id(), Node::start(&config)?));
    Ok(run(started))
}

impl fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelBuilder").field("target", &self.target).finish_non_exhaustive()
    }
}
