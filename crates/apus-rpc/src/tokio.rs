//! Servers and channels in a runtime of tokio (feature `tokio`).
//!
//! ```
//! use apus::{Address, Config, Node};
//! use apus_rpc::{Bytes, Channel, Context, Server, Status};
//!
//! async fn hello(_: Context, name: Bytes) -> Result<String, Status> {
//!     tokio::task::yield_now().await;
//!     Ok(format!("hello, {}", String::from_utf8_lossy(&name)))
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let mut config = Config::new();
//! config.listen("127.0.0.1:0".parse()?);
//! let node = Node::start(&config)?;
//! apus_rpc::tokio::drive(&node)?;
//! let server = Server::builder(&node).route("/a.Greeter/Hello", hello);
//! let server = server.spawner(apus_rpc::tokio::current()).serve(4000, std::future::pending());
//! tokio::spawn(server);
//!
//! let address = Address::new(node.local_addr(), 4000).to_string();
//! let channel = Channel::builder(&address).node(&node).connect().await?;
//! let response = channel.unary("/a.Greeter/Hello", "ada").await?;
//! assert_eq!(response.body(), "hello, ada");
//! # Ok(())
//! # })
//! # }
//! ```

use apus::{EventLoopError, Node};
use tokio::runtime::Handle;

use crate::client::{ConnectError, with_shared_node};
use crate::spawning::{BoxTask, Spawn};

/// Has the runtime that the calling task runs in turn the node, until the node is closed: its messages then wake tasks without a hop
/// over another thread. To be called once for a node. [`EventLoop::drive`](apus::EventLoop::drive) describes the flavors.
///
/// # Errors
///
/// [`EventLoopError`]: the node has an event loop, several shards, or a delivery mode in which none leads.
///
/// # Panics
///
/// Outside of a runtime, or in one without I/O (`enable_io`).
pub fn drive(node: &Node) -> Result<(), EventLoopError> {
    let event_loop = node.event_loop()?;
    tokio::spawn(async move {
        // Without a descriptor the node's own thread turns it.
        let _ = event_loop.drive().await;
    });
    Ok(())
}

/// [Drives](drive) the node that channels of the process share ([`ChannelBuilder::node`](crate::ChannelBuilder::node)). A runtime that
/// drives it already goes on to do so, which is no error.
///
/// # Errors
///
/// [`ConnectError`]: the node does not start.
///
/// # Panics
///
/// As [`drive`].
pub fn drive_shared() -> Result<(), ConnectError> {
    // Without an event loop, the node's own thread turns it.
    with_shared_node(|node| drop(drive(node)))
}

/// The runtime that the calling task runs in, for [`ServerBuilder::spawner`](crate::ServerBuilder::spawner): handlers that have to
/// wait go on in its tasks.
///
/// A handler is polled for the first time where the server receives: in the task that awaits [`Serving`](crate::Serving). A handler that
/// needs the runtime in its first poll belongs to a server that is awaited in it, not to one that a thread
/// [waits](crate::Serving::wait) for.
///
/// # Panics
///
/// Outside of a runtime.
#[must_use]
pub fn current() -> CurrentRuntime {
    CurrentRuntime { handle: Handle::current() }
}

/// A runtime of tokio. From [`current`].
#[derive(Clone, Debug)]
pub struct CurrentRuntime {
    handle: Handle,
}

impl Spawn for CurrentRuntime {
    fn spawn(&self, task: BoxTask) {
        self.handle.spawn(task);
    }
}
