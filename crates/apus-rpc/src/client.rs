//! Channels: calls out, responses in.
//!
//! | file | contents |
//! |---|---|
//! | `connect.rs`, `first_contact.rs` | from a target to a channel |
//! | `target.rs`, `resolve.rs`, `system_resolver.rs`, `hickory_resolver.rs` | the text that names endpoints, and the lists of them |
//! | `in_memory.rs` | a channel whose server is in memory |
//! | `channel.rs` | the channel |
//! | `contact.rs` | first contact |
//! | `calls.rs`, `channel_counters.rs` | what its calls share |
//! | `endpoint_set.rs`, `endpoint_state.rs` | the endpoints of a channel |
//! | `balance.rs` | the choice of an endpoint |
//! | `ejection.rs`, `upkeep.rs`, `task_thread.rs` | endpoints that are left out, and the task that asks them |
//! | `health_watch.rs` | the health of a service at an endpoint |
//! | `call_head.rs` | path, metadata and options of a call |
//! | `unary.rs`, `unary_future.rs` | a call with one request and one response; its attempts |
//! | `attempts.rs`, `failure.rs`, `tried.rs`, `backoff.rs` | what follows a failed attempt of a call |
//! | `retry.rs`, `service_config.rs`, `throttle.rs` | policies of repetition |
//! | `hedge.rs`, `hedge_window.rs`, `hedging.rs` | second copies of slow calls |
//! | `outgoing_request.rs`, `layers.rs` | layers of tower around calls |
//! | `stream_call.rs`, `client_stream.rs` | a call with streams |

mod attempts;
mod backoff;
mod balance;
mod call_head;
mod calls;
mod channel;
mod channel_counters;
mod client_stream;
mod connect;
mod contact;
mod ejection;
mod endpoint_set;
mod endpoint_state;
mod failure;
mod first_contact;
mod health_watch;
mod hedge;
mod hedge_window;
mod hedging;
#[cfg(feature = "hickory")]
mod hickory_resolver;
mod in_memory;
#[cfg(feature = "tower")]
mod layers;
#[cfg(feature = "tower")]
mod outgoing_request;
mod resolve;
mod retry;
#[cfg(feature = "service-config")]
mod service_config;
mod stream_call;
mod system_resolver;
mod target;
mod task_thread;
mod throttle;
mod tried;
mod unary;
mod unary_future;
mod upkeep;

pub use balance::{Balance, Candidates, Pick};
pub use calls::OutgoingCall;
pub use channel::Channel;
pub use channel_counters::ChannelCounters;
#[cfg(feature = "tokio")]
pub(crate) use connect::with_shared_node;
pub use connect::{ChannelBuilder, ConnectError};
pub use contact::Contact;
pub use endpoint_set::EndpointStatus;
pub use hedge::Hedge;
#[cfg(feature = "hickory")]
pub use hickory_resolver::HickoryResolver;
#[cfg(feature = "tower")]
pub use outgoing_request::OutgoingRequest;
pub use resolve::{BoxError, Endpoint, EndpointStream, Resolve};
pub use retry::{Retry, RetryPolicy};
#[cfg(feature = "service-config")]
pub use service_config::ServiceConfigError;
pub use stream_call::StreamCall;
pub use system_resolver::SystemResolver;
pub use target::Target;
pub use unary::UnaryCall;
pub use unary_future::UnaryFuture;
