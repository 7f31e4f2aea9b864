//! Calls as a `tower` service (feature `tower`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tower_service::Service;

use crate::address::Address;
use crate::call::{Call, CallOptions};
use crate::client::Client;
use crate::error::CallError;

/// A request is the arguments of [`Client::start_with`], and the answer is the response of the call, so that calls can pass
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
    type Future = CallFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.poll_room(context).map_err(CallError::from)
    }

    fn call(&mut self, (to, body, options): (Address, Bytes, CallOptions)) -> CallFuture {
        CallFuture { call: self.start_with(to, body, &options) }
    }
}

/// A call that was made through `tower`. Dropping it gives the call up.
#[derive(Debug)]
#[must_use = "dropping a call gives it up"]
pub struct CallFuture {
    /// Or why it could not be started.
    call: Result<Call, CallError>,
}

impl Future for CallFuture {
    type Output = Result<Bytes, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.call {
            Ok(call) => Pin::new(call).poll(context),
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}
