//! The resolver of a channel: from a target to the list of its endpoints, which may change.

use std::collections::BTreeMap;
use std::error::Error;
use std::pin::Pin;

use apus::Address;
use futures_core::Stream;

use crate::client::target::Target;

/// The error of a [`Resolve`].
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Lists of endpoints, each of which replaces the one before.
pub type EndpointStream = Pin<Box<dyn Stream<Item = Result<Vec<Endpoint>, BoxError>> + Send>>;

/// The largest number of endpoints of a list. Each change of a list compares all of them.
pub(crate) const ENDPOINTS_MAX: usize = 1_000;

/// Finds the endpoints of a target, and watches them.
///
/// A channel takes its endpoints from the last list. An empty list and an error leave the list before in place, so that a name
/// service that fails takes no servers away. A stream that has ended leaves its last list. A list has at most 1,000 endpoints;
/// others are left out.
///
/// ```
/// use std::pin::Pin;
/// use std::task::{Context, Poll};
/// use apus_rpc::{Endpoint, EndpointStream, Resolve, Target};
///
/// /// Knows one cluster.
/// struct Cluster;
///
/// impl Resolve for Cluster {
///     fn watch(&self, target: &Target) -> EndpointStream {
///         let list = match target.as_str() {
///             "calc" => Ok(vec![Endpoint::new("10.0.0.1:4000".parse().expect("an address"))]),
///             other => Err(format!("no service '{other}'").into()),
///         };
///         Box::pin(futures_lite::stream::once(list))
///     }
/// }
/// ```
pub trait Resolve: Send + Sync + 'static {
    /// Watches the endpoints of a target. The stream is polled by a thread that the channels of a process share; it must not
    /// block.
    fn watch(&self, target: &Target) -> EndpointStream;

    /// An endpoint has failed, so a newer list may be of use. Streams decide themselves how often they look. Default: nothing.
    fn refresh(&self) {}
}

/// A server of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    address: Address,
    weight: u32,
    attributes: BTreeMap<String, String>,
}

impl Endpoint {
    /// An endpoint of weight 1, without attributes.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self { address, weight: 1, attributes: BTreeMap::new() }
    }

    /// The share of calls that the endpoint is to get, in relation to others ([`Balance::LeastOutstanding`](crate::Balance)). At
    /// least 1.
    #[must_use]
    pub fn with_weight(mut self, weight: u32) -> Self {
        self.weight = weight.max(1);
        self
    }

    /// Adds a property for a [`Pick`](crate::Pick) of the application, such as a zone.
    #[must_use]
    pub fn with_attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The weight.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// The value of an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}
