//! The two sides of a rival that runs on tokio.
//!
//! Each side has one thread with one tokio runtime: the client's thread runs the tasks of its connection while it waits for
//! replies, like the thread of a program that awaits its calls. No message changes threads. Outstanding calls are futures that the
//! client's thread polls after they are woken.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use apus_node::transport::interface::{Client, Ended, Failed, Reply, Request, Server};
use apus_node::transport::over_apus::{Bodies, read_reply};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time;

/// Work of a runtime.
type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A runtime's way of waiting while no task is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Sleeps in `epoll_wait`, the only way in the rivals' documentation.
    Sleep,
    /// Polls in a loop: a task that is always ready makes tokio call `epoll_wait` with a timeout of 0, after each round of its
    /// tasks.
    Poll,
}

/// A client with a future for each of its calls.
pub(crate) struct AsyncClient<Call> {
    runtime: Runtime,
    bodies: Bodies,
    call: Call,
    outstanding: FuturesUnordered<Work<Ended>>,
}

impl<Call, Body> AsyncClient<Call>
where
    Call: Fn(Bytes) -> Body + 'static,
    Body: Future<Output = Result<Bytes>> + Send + 'static,
{
    /// Connects. `connect` returns a function that calls the server with a body and returns the reply's body.
    ///
    /// # Errors
    /// The errors of `connect`.
    pub(crate) fn new(wait: Wait, connect: impl Future<Output = Result<Call>>) -> Result<Self> {
        Self::within(runtime(wait)?, connect)
    }

    /// [`new`](Self::new) in a runtime that is there.
    ///
    /// # Errors
    /// The errors of `connect`.
    pub(crate) fn within(
        runtime: Runtime,
        connect: impl Future<Output = Result<Call>>,
    ) -> Result<Self> {
        let call = runtime.block_on(connect)?;
        let outstanding = FuturesUnordered::new();
        Ok(Self { runtime, bodies: Bodies::ready(), call, outstanding })
    }

    fn start(&mut self, request: Request) -> impl Future<Output = Ended> + Send + use<Call, Body> {
        let (tag, reply) = (request.tag, (self.call)(self.bodies.body(request)));
        async move {
            let body =
                reply.await.map_err(|why| Failed::connection_lost(tag, format!("{why:#}")))?;
            read_reply(tag, &body).map_err(|why| Failed::wrong(tag, why))
        }
    }
}

impl<Call, Body> Client for AsyncClient<Call>
where
    Call: Fn(Bytes) -> Body + 'static,
    Body: Future<Output = Result<Bytes>> + Send + 'static,
{
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        let call = self.start(request);
        self.outstanding.push(Box::pin(call));
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let Self { runtime, outstanding, .. } = self;
        runtime.block_on(async {
            if timeout.is_zero() {
                // Polls the new calls, which sends them, and then lets the tasks of the connection run.
                ended.extend(outstanding.next().now_or_never().flatten());
                yield_now().await;
            } else if let Ok(first) = time::timeout(timeout, outstanding.next()).await {
                ended.extend(first);
            }
            while let Some(Some(next)) = outstanding.next().now_or_never() {
                ended.push(next);
            }
        });
        Ok(())
    }

    fn call(&mut self, request: Request, timeout: Duration, _: &mut Vec<Ended>) -> Result<Reply> {
        let call = self.start(request);
        let ended = self.runtime.block_on(async { time::timeout(timeout, call).await });
        Ok(ended.with_context(|| format!("no reply within {timeout:?}"))??)
    }
}

/// A server whose future never completes.
pub(crate) struct AsyncServer {
    runtime: Runtime,
    address: SocketAddr,
    serve: Work<Result<()>>,
}

impl AsyncServer {
    /// Opens a server. `bind` runs within the runtime and returns the address and a future that serves until it fails.
    ///
    /// # Errors
    /// The errors of `bind`.
    pub(crate) fn open<Serve>(
        wait: Wait,
        bind: impl Future<Output = Result<(SocketAddr, Serve)>>,
    ) -> Result<Box<dyn Server>>
    where
        Serve: Future<Output = Result<()>> + Send + 'static,
    {
        Self::within(runtime(wait)?, bind)
    }

    /// [`open`](Self::open) in a runtime that is there.
    ///
    /// # Errors
    /// The errors of `bind`.
    pub(crate) fn within<Serve>(
        runtime: Runtime,
        bind: impl Future<Output = Result<(SocketAddr, Serve)>>,
    ) -> Result<Box<dyn Server>>
    where
        Serve: Future<Output = Result<()>> + Send + 'static,
    {
        let (address, serve) = runtime.block_on(bind)?;
        Ok(Box::new(Self { runtime, address, serve: Box::pin(serve) }))
    }
}

impl Server for AsyncServer {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        let Self { runtime, serve, .. } = *self;
        runtime.block_on(serve)?;
        anyhow::bail!("the server ended")
    }
}

/// A runtime whose tasks run on the thread that blocks on it.
pub(crate) fn runtime(wait: Wait) -> Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start tokio")?;
    if wait == Wait::Poll {
        runtime.spawn(async {
            loop {
                yield_now().await;
            }
        });
    }
    Ok(runtime)
}
