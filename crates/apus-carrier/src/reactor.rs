//! Descriptors and timers of tasks besides streams, from the reactor of the crate `async-io`. Its thread runs the tasks.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_io::{Async, Timer};
use futures_lite::future;

/// The output of a future, or `None` if it takes longer than `time`.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let too_late = async {
        Timer::after(time).await;
        None
    };
    future::or(async { Some(future.await) }, too_late).await
}

/// A descriptor that one task waits for.
pub(crate) struct Source<T: AsFd>(Async<T>);

impl<T: AsFd> Source<T> {
    pub(crate) fn new(inner: T) -> io::Result<Self> {
        Ok(Self(Async::new(inner)?))
    }

    /// Returns the descriptor.
    pub(crate) fn into_inner(self) -> io::Result<T> {
        self.0.into_inner()
    }

    pub(crate) fn get(&self) -> &T {
        self.0.get_ref()
    }

    /// Calls `operation` once the descriptor is readable.
    pub(crate) async fn readable<R>(
        &self,
        operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        self.0.read_with(operation).await
    }

    /// Calls `operation` once the descriptor is writable.
    pub(crate) async fn writable<R>(
        &self,
        operation: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        self.0.write_with(operation).await
    }

    /// Calls `operation` if the descriptor is readable. Otherwise the task is woken when it is.
    pub(crate) fn poll<R>(
        &self,
        context: &Context<'_>,
        operation: impl Fn(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            match operation(self.get()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            ready!(self.0.poll_readable(&mut Context::from_waker(context.waker())))?;
        }
    }
}
