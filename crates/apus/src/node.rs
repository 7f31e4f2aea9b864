//! The handle of a running node.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apus_net::{Capabilities, Link};
use apus_wire::is_native;

use crate::address::Address;
use crate::client::Client;
use crate::config::{Config, EngineAt};
use crate::engine::links;
use crate::engine::lock::Shared;
use crate::engine::shards::{Near, Shards};
use crate::error::{CloseError, EventLoopError, IdentityError, OpenError, StartError, Unusable};
use crate::event_loop::EventLoop;
use crate::observe::events;
use crate::observe::stats::Stats;
use crate::port::Port;
use crate::resolve::{ResolveError, host_of, resolve_all};
use crate::socket::Socket;
use crate::sync::clock;
use crate::sync::on_thread::OnThread;

/// An endpoint on the network: one link (by default a UDP port), and any number of [`Client`]s and [`Port`]s on it.
///
/// A process usually needs one node. Scheduling is best when all messages of a host share a node.
///
/// [`close`](Self::close) waits for calls and requests to end, then stops the node. A node that is dropped instead runs until
/// the last of its clones, clients, services, calls and requests is dropped, and then stops at once. A clone is another handle to the
/// same node; once one of them was closed, the operations of all return errors named `Closed`.
///
/// ```
/// use std::time::Duration;
/// use apus::{Config, Node};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = Config::new();
/// config.listen("127.0.0.1:0".parse()?).apply_environment()?;
/// let node = Node::start(&config)?;
/// let port = node.bind(4000)?; // For requests.
/// let client = node.client()?; // For calls.
/// # drop((port, client));
/// node.close(Duration::from_secs(5))?;
/// # Ok(())
/// # }
/// ```
///
/// # Within one host
///
/// A node with one shard and the setting [`link = auto`](Config::link), which is the default, shares memory with such nodes of
/// its host and network namespace, and with those of other network namespaces that share a directory with it
/// ([`Config::shm_dir`]). Two nodes begin to meet at the first call from one to the other, or at
/// [`Client::connect`]. Calls go over UDP until memory is shared. Deadlines, budgets and errors are the same on both ways.
/// [`route`](Self::route) returns the current way to another node, and [`Stats::memory`] counts messages and bytes through memory.
///
/// # Time trace
///
/// Each thread keeps its last 65,536 records of events with their times: batches of packets, sleeps, and each stage of one call in 64
/// that goes over the network. `apus trace record` writes them to files. Environment variables change that, when the first
/// node of a process starts:
///
/// | variable | value | effect |
/// |---|---|---|
/// | `APUS_TRACE` | `on` (default) | records are kept in memory, up to 2 MiB for each of up to 32 threads |
/// | | `off` | nothing is recorded |
/// | | a directory | records are kept in a file there, which stays also if the process is killed |
/// | `APUS_TRACE_CALLS` | a number (default 64) | one call in this many is recorded, rounded up to a power of two |
/// | | `all` | every call is recorded |
/// | `APUS_TRACE_KERNEL` | `on` | batches are recorded with the moment in which the kernel had their first datagram; costs 0.1 µs a batch and more |
/// | `APUS_TRACE_SLOWER_THAN` | a time like `5ms` | a call that takes longer freezes the traces of both ends, so that they are not overwritten |
///
/// A child that a process with nodes has forked records nothing. A trace that cannot be begun, for example because the directory is
/// missing, is no error: nothing is recorded then.
///
/// # A handle
///
/// A node is a handle to an engine, which runs in this process. Except for the feature `custom-link`, the API does not depend
/// on that: messages are passed as [`Bytes`](crate::Bytes), all else as plain values. A later version may run the engine in
/// another process, shared by several programs.
///
/// # After a fork
///
/// A node belongs to the process that started it. In a child (`fork`), every operation on the node, its clients and its
/// services returns an error named `Forked` at once, or does nothing if it returns no error. The child neither sends nor
/// receives packets on the parent's link, and a drop has no effect. The check costs about a nanosecond per operation. A child
/// may start nodes of its own. The parent's descriptors stay open in the child until it ends or executes another program.
///
/// A body stays readable in the child. If it lies in the memory of a process of this host, its bytes may change there once the
/// parent has dropped it.
///
/// # After a panic inside
///
/// A thread that panics while it works on a node, for example in a custom link, leaves the node unusable. Waiting threads and
/// tasks are woken, and every operation returns an error named `NodePanicked`. Handlers run outside the node: a panic of a
/// handler ends one request ([`Port::serve`]).
#[derive(Clone)]
pub struct Node {
    pub(crate) shards: Arc<Shards>,
}

impl Node {
    /// Starts a node on the links and at the address of its configuration ([`Config::link`], [`Config::listen`]), with as many
    /// engines as [`Config::shards`] says.
    ///
    /// # Errors
    ///
    /// [`StartError`]: a setting is out of range, the port is in use, the address does not belong to this machine, permission
    /// is missing, or no thread or descriptor is left.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        if let EngineAt::Socket(path) = config.engine_at() {
            return Ok(Self::of(Shards::attach(path, config)?));
        }
        let near = if config.shares_memory() { Near::Nodes } else { Near::Nobody };
        Self::of_links(links::open_shards(config)?, config, near)
    }

    pub(crate) fn of_links(
        links: Vec<Box<dyn Link>>,
        config: &Config,
        near: Near,
    ) -> Result<Self, StartError> {
        Ok(Self::of(Shards::start(links, config, near)?))
    }

    /// Starts a node on a link of the caller, for example one that injects faults, captures packets, or is not UDP.
    /// [`Config::link`], [`Config::engine`], [`Config::listen`], [`Config::shards`] and the UDP settings are ignored. The node shares no memory with
    /// processes of this host.
    ///
    /// Needs the feature `custom-link`, which semantic versioning does not cover.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`], [`StartError::Memory`], [`StartError::Thread`].
    #[cfg(feature = "custom-link")]
    pub fn with_link(link: Box<dyn Link>, config: &Config) -> Result<Self, StartError> {
        Self::with_links(vec![link], config)
    }

    /// Starts a node with a shard for each of several links, as from [`UdpLink::bind_shards`](apus_net::UdpLink::bind_shards).
    /// All links must have the same address. [`net::shard_of`](apus_net::shard_of) must name the link that carries the traffic
    /// with a peer. Settings are ignored as in [`with_link`](Self::with_link), and the node shares no memory with processes of
    /// this host.
    ///
    /// Needs the feature `custom-link`, which semantic versioning does not cover.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`], [`StartError::Memory`], [`StartError::Thread`].
    ///
    /// # Panics
    ///
    /// If there is no link.
    #[cfg(feature = "custom-link")]
    pub fn with_links(links: Vec<Box<dyn Link>>, config: &Config) -> Result<Self, StartError> {
        Self::of_links(links, config, Near::Nobody)
    }

    fn of(shards: Shards) -> Self {
        events::node_started(shards.local_addr, shards.iter().len());
        Self { shards: Arc::new(shards) }
    }

    /// The address of the link, with the port that the system chose if the configuration has port 0. An unspecified IP address
    /// (`0.0.0.0`) stays unspecified: peers use one of the machine's addresses instead.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shards.local_addr
    }

    /// The capabilities of the kernel that the link has probed. Their text is one line for a log:
    ///
    /// ```no_run
    /// # fn example(node: &apus::Node) {
    /// println!("{} with {}", node.local_addr(), node.capabilities());
    /// # }
    /// ```
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shards.capabilities.clone()
    }

    /// Finds the address of a service as [`resolve`](crate::resolve()) does, and remembers its DNS name: clients of a node with a
    /// certificate then expect a server with that name at the address ([`Client::expect`]). The last 4,096 names are remembered.
    ///
    /// # Errors
    ///
    /// [`ResolveError`].
    ///
    /// ```no_run
    /// # fn example(node: &apus::Node) -> Result<(), Box<dyn std::error::Error>> {
    /// let kv = node.resolve("kv.example.org:4000")?;
    /// let response = node.client()?.call(kv, "hello").wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn resolve(&self, text: &str) -> Result<Address, ResolveError> {
        let found = resolve_all(text)?;
        if let Some(identity) = self.shards.identities.first()
            && let Some(host) = host_of(text)
        {
            for address in &found {
                identity.remember(address.host, host);
                for shared in self.shards.iter() {
                    if let Ok(mut engine) = shared.enter() {
                        engine.name_has_changed(address.host);
                    }
                }
            }
        }
        Ok(found[0])
    }

    /// Reads the files of the node's identity ([`Config::tls_cert`]) again if one has changed, or asks its
    /// [source](Config::identity_source), as the node does by itself every 10 s. Peers that are no longer accepted, because of a
    /// revocation list or other roots, lose their paths at once. Returns whether there was a change; `false` for a node without a
    /// certificate. An identity that cannot be used leaves the earlier one in its place.
    ///
    /// # Errors
    ///
    /// [`IdentityError`] as for [`start`](Self::start).
    pub fn reload_identity(&self) -> Result<bool, IdentityError> {
        let mut changed = false;
        for identity in &self.shards.identities {
            changed |= identity.reload()?;
        }
        for shared in self.shards.iter().filter(|_| changed) {
            if let Ok(mut engine) = shared.enter() {
                engine.run_driver();
            }
        }
        Ok(changed)
    }

    /// Opens a client on a port that the node chooses.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoPortLeft`] if all 32,768 client ports are in use, [`OpenError::Closed`], [`OpenError::Forked`] in a forked
    /// child.
    pub fn client(&self) -> Result<Client, OpenError> {
        Socket::open(&self.shards, None).map(Client::new)
    }

    /// Opens a server port, 1 to 32766, which clients can call. Port 32,767 is that of handshakes.
    ///
    /// # Errors
    ///
    /// [`OpenError::PortInUse`], [`OpenError::PortOutOfRange`], [`OpenError::PortReserved`], [`OpenError::Closed`], or
    /// [`OpenError::Forked`] in a forked child.
    pub fn bind(&self, port: u16) -> Result<Port, OpenError> {
        Socket::open(&self.shards, Some(port)).map(Port::new)
    }

    /// Lets an event loop of the application turn the engine, in place of the background thread ([`EventLoop`]). A node has at most
    /// one, and needs one shard and a [delivery](Config::delivery) of the mode `suspend`, which is the default.
    ///
    /// # Errors
    ///
    /// [`EventLoopError`].
    pub fn event_loop(&self) -> Result<EventLoop, EventLoopError> {
        EventLoop::new(&self.shards)
    }

    /// The current route of messages to another node. A call under way keeps the route on which it began. Takes the locks of all
    /// shards.
    ///
    /// ```
    /// use apus::{CallOptions, Route};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let port = node.bind(4000)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # let client_node = apus::Node::start(&config)?;
    /// let client = client_node.client()?;
    /// client.connect(address).wait()?;
    /// match client_node.route(address) {
    ///     Route::Memory => println!("{address} is on this host"),
    ///     Route::Udp => println!("{address} is reached over UDP"),
    ///     other => println!("{address}: {other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn route(&self, to: Address) -> Route {
        let shares_memory = |shared: &Arc<Shared>| {
            shared.enter().is_ok_and(|mut engine| engine.shares_memory_with(to.host))
        };
        let uses_engine =
            |shared: &Arc<Shared>| shared.enter().is_ok_and(|mut it| it.attached().is_some());
        if self.shards.iter().any(uses_engine) {
            Route::Engine
        } else if is_native(to.host) {
            Route::Raw
        } else if self.shards.iter().any(shares_memory) {
            Route::Memory
        } else {
            Route::Udp
        }
    }

    /// The counters of the node since its start, over all shards; all zero in a forked child of the process that started it.
    /// Takes the locks of all shards, and may cost a system call for each.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let port = node.bind(4000)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # std::thread::spawn(move || {
    /// #     port.serve(|request| {
    /// #         let body = request.body().clone();
    /// #         let _ = request.reply(body);
    /// #     });
    /// # });
    /// # let client = node.client()?;
    /// client.call(address, "hello").wait()?;
    /// let stats = node.stats();
    /// assert_eq!(stats.protocol.calls, 1);
    /// for (name, value) in stats.iter().filter(|(_, value)| *value > 0) {
    ///     println!("{name}: {value}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shards.stats()
    }

    /// Takes no further calls, by this handle or another one. Waits for at most `deadline` until all outstanding calls have
    /// ended, all requests are answered and all responses are acknowledged. Then stops the node and frees the link's port. A
    /// deadline of zero stops the node at once. Clients and services that are still held return errors named `Closed`.
    ///
    /// # Errors
    ///
    /// [`CloseError::Unfinished`] if a call, request or response had not ended; the node is stopped nevertheless.
    /// [`CloseError::Forked`] in a forked child of the process that started the node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use apus::CloseError;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// // A server at the end of its work.
    /// match node.close(Duration::from_secs(10)) {
    ///     Ok(()) => println!("every request is answered"),
    ///     Err(CloseError::Unfinished { active, .. }) => println!("{active} RPCs were cut off"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self, deadline: Duration) -> Result<(), CloseError> {
        let drained = self.shards.drain(clock::now() + deadline);
        if drained != Err(Unusable::Forked) {
            self.shards.stop();
        }
        let closed = match drained {
            Ok(0) => Ok(()),
            Ok(active) => Err(CloseError::Unfinished { active, after: deadline }),
            Err(unusable) => Err(unusable.into()),
        };
        events::node_closed(self.shards.local_addr, &closed);
        closed
    }

    /// [`close`](Self::close) as a future, for any executor. The node is closed on a thread of its own, which continues if the
    /// future is dropped.
    ///
    /// # Errors
    ///
    /// As [`close`](Self::close).
    pub fn close_async(
        self,
        deadline: Duration,
    ) -> impl Future<Output = Result<(), CloseError>> + Send + Unpin {
        OnThread::begin(move || self.close(deadline))
    }
}

/// The route of messages to a node. From [`Node::route`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Route {
    /// Through memory that is shared with a process of this host.
    Memory,
    /// Through the engine of another process ([`Config::engine`]).
    Engine,
    /// Over UDP.
    Udp,
    /// By IP protocol 146.
    Raw,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("local_addr", &self.shards.local_addr)
            .field("shards", &self.shards.iter().len())
            .field("delivery", &self.shards.delivery())
            .finish_non_exhaustive()
    }
}
