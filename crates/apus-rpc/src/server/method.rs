//! Methods of a server.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};

use apus::Bytes;

use crate::context::Context;
use crate::server::handling::{Accepted, Handling};
use crate::spawning::BoxTask;
use crate::status::Status;

/// The code of a method.
pub(crate) trait Method: Send + Sync {
    /// The task that handles a request. `None` if the handler panicked before it had one; the request is answered then.
    fn begin(&self, accepted: Accepted, body: Bytes) -> Option<BoxTask>;
}

/// A method with one request and one response.
pub(crate) struct Unary<H> {
    pub(crate) handler: H,
}

impl<H, F, B> Method for Unary<H>
where
    H: Fn(Context, Bytes) -> F + Send + Sync,
    F: Future<Output = Result<B, Status>> + Send + 'static,
    B: Into<Bytes>,
{
    fn begin(&self, mut accepted: Accepted, body: Bytes) -> Option<BoxTask> {
        let context = accepted.context().clone();
        let begin = || context.enter(|| (self.handler)(context.clone(), body));
        match panic::catch_unwind(AssertUnwindSafe(begin)) {
            Ok(future) => Some(Box::pin(Handling::new(accepted, future))),
            Err(_) => {
                accepted.panicked();
                None
            }
        }
    }
}
