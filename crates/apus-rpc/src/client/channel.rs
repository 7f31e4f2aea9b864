//! A channel.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "tower")]
use std::sync::Weak;

use apus::{Address, Bytes};

use crate::client::calls::ChannelParts;
use crate::client::channel_counters::ChannelCounters;
use crate::client::contact::Contact;
use crate::client::endpoint_set::EndpointStatus;
#[cfg(feature = "tower")]
use crate::client::layers::calls_within;
#[cfg(feature = "tower")]
use crate::client::outgoing_request::OutgoingRequest;
use crate::client::stream_call::StreamCall;
use crate::client::unary::UnaryCall;
use crate::envelope::Refusals;
#[cfg(feature = "tower")]
use crate::layering::LayerOnce;
use crate::transport::Caller;

/// Calls the methods of a service. Clones are the same channel; any number of threads and tasks may use it at once.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use apus_rpc::Channel;
///
/// let channel = Channel::connect("calc.example:4000").await?;
/// let response = channel
///     .unary("/shop.Calc/Add", "1 2")
///     .metadata("x-tenant-id", "7")
///     .deadline(Duration::from_millis(20))
///     .await?;
/// assert_eq!(response.body(), "3");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Channel {
    pub(crate) calls: Arc<ChannelParts>,
}

impl Channel {
    pub(crate) fn new(calls: ChannelParts) -> Self {
        Self { calls: Arc::new(calls) }
    }

    /// A channel whose calls are within layers.
    #[cfg(feature = "tower")]
    pub(crate) fn within(calls: ChannelParts, layers: Vec<LayerOnce<OutgoingRequest>>) -> Self {
        if layers.is_empty() {
            return Self::new(calls);
        }
        let layered = |own: &Weak<ChannelParts>| {
            let mut calls = calls;
            calls.layers = Some(calls_within(layers, Weak::clone(own)));
            calls
        };
        Self { calls: Arc::new_cyclic(layered) }
    }

    /// A call of a method with one request and one response. The path is `/SERVICE/METHOD`. The result is awaited, or a thread
    /// [waits](UnaryCall::wait) for it.
    pub fn unary(&self, path: impl Into<Bytes>, body: impl Into<Bytes>) -> UnaryCall<'_> {
        UnaryCall::new(&self.calls, path, body.into().into())
    }

    /// A call of a method with streams: many requests, many responses, or both.
    pub fn stream(&self, path: impl Into<Bytes>) -> StreamCall<'_> {
        StreamCall::new(&self.calls, path)
    }

    /// Performs first contact with the first server of the list, which takes one round trip. A task awaits it, and a thread calls
    /// [`wait`](Contact::wait).
    pub fn contact(&self) -> Contact<'_> {
        Contact::new(match &self.calls.caller {
            Caller::Network(client) => Some(client.connect(self.address())),
            Caller::Memory(_) => None,
        })
    }

    /// The first address of the list of endpoints.
    #[must_use]
    pub fn address(&self) -> Address {
        self.calls
            .endpoints
            .first()
            .expect("a channel begins with a list, and an empty one does not replace it")
    }

    /// The endpoints of the channel at present.
    #[must_use]
    pub fn endpoints(&self) -> Vec<EndpointStatus> {
        self.calls.endpoints.statuses()
    }

    /// The counters of the channel.
    #[must_use]
    pub fn counters(&self) -> &ChannelCounters {
        &self.calls.endpoints.counters
    }

    /// Responses whose bytes were refused, by reason.
    #[must_use]
    pub fn refusals(&self) -> &Refusals {
        &self.calls.refusals
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("addresses", &self.calls.endpoints.addresses())
            .finish_non_exhaustive()
    }
}
