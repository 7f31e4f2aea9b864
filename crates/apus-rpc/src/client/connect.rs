//! From a target to a channel.

use std::fmt;
use std::process;
use std::sync::{Mutex, PoisonError};

use apus::{Address, CallError, Client, Config, Node, OpenError, ResolveError, StartError};

use crate::client::calls::{Calls, Interceptor, OutgoingCall};
use crate::client::channel::Channel;
use crate::envelope::EnvelopeLimits;
use crate::status::Status;
use crate::transport::Caller;

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The target is not an address, and its name is not known.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
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
    target: String,
    client: Option<Result<Client, OpenError>>,
    limits: EnvelopeLimits,
    interceptors: Vec<Interceptor>,
}

impl Channel {
    /// A channel to an address or name, `HOST:PORT`, on the process's [shared node](ChannelBuilder::node). A name is resolved once.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn connect(target: &str) -> Result<Self, ConnectError> {
        Self::builder(target).connect().await
    }

    /// A channel to an address or name, with options.
    pub fn builder(target: &str) -> ChannelBuilder {
        ChannelBuilder {
            target: target.to_owned(),
            client: None,
            limits: EnvelopeLimits::new(),
            interceptors: Vec::new(),
        }
    }
}

impl ChannelBuilder {
    /// The node whose port the channel uses. Default: a node that all such channels of the process share, which is started with the
    /// defaults and the variables `APUS_*` when it is first needed.
    pub fn node(mut self, node: &Node) -> Self {
        self.client = Some(node.client());
        self
    }

    /// Limits on the responses of servers, and on the heads of requests.
    pub fn limits(mut self, limits: EnvelopeLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sees each request before it is sent, in the order of these calls. An error is the status of the call, and nothing is sent.
    pub fn interceptor(
        mut self,
        interceptor: impl Fn(&mut OutgoingCall<'_>) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.interceptors.push(Box::new(interceptor));
        self
    }

    /// Resolves the target, makes the channel and performs first contact, so that the first call takes one round trip.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub async fn connect(self) -> Result<Channel, ConnectError> {
        let to = match self.target.parse() {
            Ok(address) => address,
            Err(_) => apus::resolve_async(&self.target).await?,
        };
        let channel = self.build_to(to)?;
        channel.contact().await?;
        Ok(channel)
    }

    /// Resolves the target and makes the channel, for threads. Nothing is sent; [`Channel::contact`] performs first contact. A name is
    /// looked up by the system's resolver, which may block for seconds.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn build(self) -> Result<Channel, ConnectError> {
        let to = apus::resolve(&self.target)?;
        self.build_to(to)
    }

    fn build_to(self, to: Address) -> Result<Channel, ConnectError> {
        let client = match self.client {
            Some(client) => client?,
            None => with_shared_node(Node::client)??,
        };
        //= docs/rpc-wire.md#E7
        let first = getrandom::u64().map_err(|error| ConnectError::Random(error.to_string()))?;
        Ok(Channel::new(Calls::new(
            Caller::Network(client),
            to,
            first,
            self.limits,
            self.interceptors,
        )))
    }
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
