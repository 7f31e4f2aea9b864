//! The place where tasks run that have to wait.

use std::future::Future;
use std::pin::Pin;

/// A task of a server.
pub type BoxTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the tasks of a server: handlers that have to wait, and long messages. A server has threads of its own for them unless
/// [`ServerBuilder::spawner`](crate::ServerBuilder::spawner) says otherwise.
///
/// ```
/// use apus_rpc::{BoxTask, Spawn};
///
/// /// The runtime of tokio that the value was made in.
/// struct InTokio(tokio::runtime::Handle);
///
/// impl Spawn for InTokio {
///     fn spawn(&self, task: BoxTask) {
///         self.0.spawn(task);
///     }
/// }
/// ```
pub trait Spawn: Send + Sync + 'static {
    /// Runs the task to its end. A task that is dropped earlier answers its request with
    /// [`Code::Cancelled`](crate::Code::Cancelled).
    fn spawn(&self, task: BoxTask);
}
