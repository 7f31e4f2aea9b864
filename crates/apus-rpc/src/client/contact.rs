//! First contact with a server.

use std::fmt;
use std::future::{Future, IntoFuture, ready};
use std::pin::Pin;
use std::time::Duration;

use apus::{CallError, Connect};

/// A first contact that has not begun. From [`Channel::contact`](crate::Channel::contact). A task awaits it, and a thread calls
/// [`wait`](Self::wait).
#[must_use = "a server is contacted when this is awaited, or by `wait`"]
pub struct Contact<'c> {
    /// `None` for a server in memory, which is there.
    connect: Option<Connect<'c>>,
}

impl<'c> Contact<'c> {
    pub(crate) fn new(connect: Option<Connect<'c>>) -> Self {
        Self { connect }
    }

    /// Ends the wait after this time, see [`Connect::deadline`]. Default: no deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.connect = self.connect.map(|connect| connect.deadline(deadline));
        self
    }

    /// Contacts the server and blocks the thread until it is known.
    ///
    /// # Errors
    ///
    /// As [`Connect::wait`].
    pub fn wait(self) -> Result<(), CallError> {
        self.connect.map_or(Ok(()), Connect::wait)
    }
}

impl<'c> IntoFuture for Contact<'c> {
    type Output = Result<(), CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<(), CallError>> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        match self.connect {
            Some(connect) => Box::pin(connect.into_future()),
            None => Box::pin(ready(Ok(()))),
        }
    }
}

impl fmt::Debug for Contact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contact").field("connect", &self.connect).finish()
    }
}
