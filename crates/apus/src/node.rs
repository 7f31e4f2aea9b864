//! A handle to everything that runs for a node.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apus_net::Capabilities;
#[cfg(feature = "custom-link")]
use apus_net::Link;

use crate::client::Client;
use crate::clock;
use crate::config::Config;
use crate::error::{CloseError, OpenError, StartError, Unusable};
use crate::links;
use crate::service::Service;
use crate::shards::Shards;
use crate::socket::Socket;
use crate::stats::Stats;
use crate::trace;

/// A place on the network: one link (by default a UDP port), any number of [`Client`]s and [`Service`]s on it.
///
/// A process needs one, seldom more: scheduling is best when all of a host's messages share a node.
///
/// [`close`](Self::close) lets everything end, then stops the node. A node that is dropped instead
/// goes on until the last of its clients, services, calls and requests is dropped, and then stops at once.
///
/// # A handle
///
/// A node is a handle to an engine. The engine runs in this process today. Nothing here depends on that, except for the
/// feature `custom-link`: messages go in and out as [`Bytes`](crate::Bytes), everything else as plain values. So an engine may
/// later live in another process, shared by several programs.
///
/// # After a fork
///
/// A node belongs to the process that started it. In a child (`fork`), every operation on it and on
/// what came of it ends at once with an error named `Forked`, or does nothing where there is no error
/// to give; no packet is sent or taken by the parent's link, and dropping is free of effect. The check
/// costs about a nanosecond an operation. A child may start nodes of its own. The parent's descriptors
/// stay open in the child until it ends or executes another program.
///
/// # After a panic inside
///
/// A thread that panics while it works on a node, in a link of the application's own for instance, leaves the node unusable.
/// Threads and tasks that wait are woken, and every operation returns an error named `NodePanicked`. Handlers run outside the
/// node: their panics end one request ([`Service::serve`]).
pub struct Node {
    shards: Arc<Shards>,
}

impl Node {
    /// Starts a node on the links and at the address of its configuration ([`Config::link`],
    /// [`Config::listen`]), with [`Config::shards`] of them.
    ///
    /// # Errors
    ///
    /// [`StartError`]: a setting is not allowed, the port is busy, the address not of this machine, no permission, no thread
    /// or descriptor left.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        Ok(Self::of(Shards::start(links::open_shards(config)?, config)?))
    }

    /// Starts a node on a link of the caller's: one that injects faults, captures packets, or is not
    /// UDP at all. [`Config::listen`], [`Config::shards`] and the UDP settings are not looked at.
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

    /// Starts a node with a shard for each of several links. All have the same address, and the
    /// traffic with a peer goes by the one whose place [`net::shard_of`](apus_net::shard_of) tells,
    /// as from [`UdpLink::bind_shards`](apus_net::UdpLink::bind_shards).
    ///
    /// Needs the feature `custom-link`, which semantic versioning does not cover.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`], [`StartError::Memory`], [`StartError::Thread`].
    ///
    /// # Panics
    ///
    /// Without a link.
    #[cfg(feature = "custom-link")]
    pub fn with_links(links: Vec<Box<dyn Link>>, config: &Config) -> Result<Self, StartError> {
        Ok(Self::of(Shards::start(links, config)?))
    }

    fn of(shards: Shards) -> Self {
        trace::node_started(shards.local_addr, shards.iter().len());
        Self { shards: Arc::new(shards) }
    }

    /// The address the link is bound to, with the port the system chose if 0 was asked for. An
    /// unspecified IP (`0.0.0.0`) stays unspecified: peers take one of the machine's own instead.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shards.local_addr
    }

    /// What the link found the kernel to offer.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shards.capabilities.clone()
    }

    /// Opens a client, on an automatic port.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoPortLeft`] when all 32,768 are in use, [`OpenError::Forked`] in a forked child.
    pub fn client(&self) -> Result<Client, OpenError> {
        Socket::open(&self.shards, None).map(Client::new)
    }

    /// Opens a service on a server port, 1 to 32767, so that clients can call it.
    ///
    /// # Errors
    ///
    /// [`OpenError::PortInUse`], [`OpenError::PortOutOfRange`], or [`OpenError::Forked`] in a forked
    /// child.
    pub fn bind(&self, port: u16) -> Result<Service, OpenError> {
        Socket::open(&self.shards, Some(port)).map(Service::new)
    }

    /// Everything counted since the node was started, over all shards; all zero in a forked child of
    /// the process that started it. Takes their locks; may cost a system call for each.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shards.stats()
    }

    /// Takes no further calls, waits until all outstanding calls have ended, all requests taken are
    /// answered and all responses are acknowledged, but no longer than `deadline`; then stops, and the
    /// link's port is free. Zero stops at once. Clients and services that are still held find themselves closed.
    ///
    /// # Errors
    ///
    /// [`CloseError::Unfinished`] when something had not ended; the node is stopped all the same.
    /// [`CloseError::Forked`] in a forked child of the process that started it.
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
        trace::node_closed(self.shards.local_addr, &closed);
        closed
    }
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
