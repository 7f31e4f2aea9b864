//! Calls as a `tower` service (feature `tower`).

use std::task::{Context, Poll};

use bytes::Bytes;
use tower_service::Service;

use crate::address::Address;
use crate::call_builder::CallFuture;
use crate::call_options::CallOptions;
use crate::client::Client;
use crate::error::CallError;

/// A request is the address, the body and the options of a call, and the answer is the response of the call, so that calls can pass
/// through layers of `tower`: limits, retries, load balancing.
///
/// The service is ready unless calls of its node wait for room ([`CallOptions::wait_for_room`]). It becomes ready when none of them
/// waits any more.
///
/// ```no_run
/// # async fn example(client: apus::Client, to: apus::Address) -> Result<(), apus::CallError> {
/// use apus::CallOptions;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// let limited = ServiceBuilder::new().concurrency_limit(8).service(client);
/// let response = limited.oneshot((to, "hello".into(), CallOptions::new())).await?;
/// # Ok(())
/// # }
/// ```
impl Service<(Address, Bytes, CallOptions)> for Client {
    type Response = Bytes;
    type Error = CallError;
    type Future = CallFuture<'static>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.poll_room(context).map_err(CallError::from)
    }

    fn call(&mut self, (to, body, options): (Address, Bytes, CallOptions)) -> CallFuture<'static> {
        CallFuture::begun(Self::call(self, to, body).options(options).start())
    }
}
