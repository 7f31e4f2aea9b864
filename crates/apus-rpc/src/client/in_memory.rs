//! Channels whose server is in memory.

use std::sync::Arc;

use crate::client::balance::Balance;
use crate::client::calls::{CallDefaults, ChannelParts};
use crate::client::channel::Channel;
use crate::client::endpoint_set::EndpointSet;
use crate::client::resolve::Endpoint;
use crate::client::system_resolver::SystemResolver;
use crate::server::ServerBuilder;
use crate::transport::{Caller, Deliver, MemoryRequest};

impl Channel {
    /// A channel to a server within the channel, for tests: without a node, a port or a thread of its own. Requests and responses
    /// have their envelopes, and deadlines, metadata, limits, interceptors and cancellation are as over the network. The server
    /// ends when the last clone of the channel is dropped.
    ///
    /// A handler is first polled by the thread that polls the call. [`Server::in_memory`](crate::Server::in_memory) begins such a
    /// server; one with a node serves here and not there.
    ///
    /// ```
    /// # #[cfg(all(feature = "macros", feature = "postcard"))]
    /// # mod example {
    /// use apus_rpc::{Channel, Context, Server, Status};
    ///
    /// #[apus_rpc::service(name = "shop.Calc")]
    /// trait Calc {
    ///     async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
    /// }
    ///
    /// struct Mock;
    ///
    /// impl Calc for Mock {
    ///     async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
    ///         assert_eq!((a, b), (1, 2));
    ///         Ok(3)
    ///     }
    /// }
    ///
    /// pub fn test() {
    ///     let server = Server::in_memory().add(CalcServer::new(Mock));
    ///     let calc = CalcClient::new(Channel::in_memory(server));
    ///     assert_eq!(calc.add(1, 2).wait(), Ok(3));
    /// }
    /// # }
    /// # #[cfg(all(feature = "macros", feature = "postcard"))]
    /// # example::test();
    /// ```
    ///
    /// # Panics
    ///
    /// If the server has two methods of the same path, or one whose path is not `/SERVICE/METHOD`.
    #[must_use]
    pub fn in_memory(server: ServerBuilder<'_>) -> Self {
        let intake = match server.into_intake() {
            (Some(fault), _) => panic!("{fault}"),
            (None, intake) => intake,
        };
        Self::carried(Arc::new(intake))
    }

    /// A channel to a server that takes messages from memory.
    pub(crate) fn carried(server: Arc<dyn Deliver>) -> Self {
        let caller = Caller::Memory(server);
        let set =
            EndpointSet::new(Box::new(Balance::PickFirst), 0, Arc::new(SystemResolver::new()));
        set.update(vec![Endpoint::new(MemoryRequest::address())]);
        // One process has both ends: ids need not differ from those of another.
        Self::new(ChannelParts::new(caller, Arc::new(set), 1, CallDefaults::new(), None))
    }
}
