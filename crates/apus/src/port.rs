//! Ports: requests in, responses out.

use std::fmt;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::config::PeerRule;
use crate::delivery::serving::{Serving, Takers};
use crate::error::{RecvError, RuleError};
use crate::observe::events;
use crate::observe::stats::PortStats;
use crate::request::Request;
use crate::socket::{Recv, Socket};
use crate::sync::clock;

/// A port that clients call: the server's side of a service. Opened by [`Node::bind`](crate::Node::bind).
///
/// ```no_run
/// # fn example(port: apus::Port) {
/// while let Ok(mut request) = port.recv() {
///     let body = request.take_body();
///     let _ = request.reply(body); // The client may have gone.
/// }
/// # }
/// ```
///
/// Clones are the same port; any number of threads and tasks may use it at once. A request goes to a waiting thread that is
/// polling, otherwise to the thread that slept last.
///
/// Requests that wait are taken in turns of the peers that they are from, the oldest of each peer first. So a peer with thousands
/// of them delays a request of another peer by one. A peer is another process of this host that memory is shared with, or otherwise
/// an address and UDP port; all processes behind one shared engine are one peer.
///
/// The port is closed when the last clone and the last unanswered [`Request`]
/// are dropped. Outstanding requests and responses are then forgotten on both sides without a packet to the peer, so a response
/// given just before may be lost (see [`Node::close`](crate::Node::close)).
///
/// A port keeps its node running, even if the [`Node`](crate::Node) is dropped. A program that both serves and calls has a
/// port and a [`Client`](crate::Client) on one node.
#[derive(Clone)]
pub struct Port {
    socket: Socket,
    takers: Arc<Takers>,
}

impl Port {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, takers: Arc::default() }
    }

    /// The number of the Homa port, 1 to 32766.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.socket.port()
    }

    /// Admits requests only of peers that one of the patterns names, from now on. Requests that wait in the queue are judged again,
    /// and those that the application has taken go on. Without this, the setting `tls_allow` decides, and else every peer with a
    /// certificate of the configured roots is admitted.
    ///
    /// | pattern | peers |
    /// |---|---|
    /// | `spiffe://example.org/kv/1` | the peer with this SPIFFE id |
    /// | `spiffe://example.org/kv/*` | peers with one or more segments below it |
    /// | `kv.example.org` | peers with this DNS name |
    /// | `*.example.org` | peers with a DNS name of one or more labels below it |
    /// | `10.0.0.2` | peers with this IP address in their certificate |
    /// | `any` | peers with a certificate of the configured roots |
    /// | `plain` | peers without a certificate, where [`Config::tls_plain`](crate::Config::tls_plain) takes plain packets |
    ///
    /// A refused request is never executed, and its call ends with [`CallError::Forbidden`](crate::CallError::Forbidden).
    ///
    /// # Errors
    ///
    /// [`RuleError`]: a text is not a pattern, or the node has no certificate.
    ///
    /// ```no_run
    /// # fn example(node: &apus::Node) -> Result<(), Box<dyn std::error::Error>> {
    /// let port = node.bind(4000)?;
    /// port.allow(["spiffe://example.org/front/*", "admin.example.org"])?;
    /// port.serve(|request| {
    ///     let name = request.peer().map(|peer| peer.name().to_owned());
    ///     let _ = request.reply(format!("hello, {}", name.unwrap_or_default()));
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn allow<'a>(&self, patterns: impl IntoIterator<Item = &'a str>) -> Result<(), RuleError> {
        self.socket.set_rule(&PeerRule::parse(patterns)?)
    }

    /// Counters of the messages delivered to this port and of its wake-ups. Zero once the port is closed, and in a forked
    /// child of the process that opened it.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        self.socket.stats()
    }

    /// The socket, for receiving by other means than `serve`.
    #[inline]
    fn receiving(&self) -> &Socket {
        self.takers.note_other(self.socket.first());
        &self.socket
    }

    /// Waits for the next request.
    ///
    /// # Errors
    ///
    /// [`RecvError::Closed`] if the port was shut down or the node closed. No action of a client is an error here.
    pub fn recv(&self) -> Result<Request, RecvError> {
        self.receiving().recv(None)
    }

    /// [`recv`](Self::recv) for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvError::Timeout`] if no request arrived, [`RecvError::Closed`] as for `recv`.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Request, RecvError> {
        self.receiving().recv(Some(timeout))
    }

    /// The next request if one has arrived. Turns the engine once to find out.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`] if no request has arrived, [`RecvError::Closed`] as for `recv`.
    pub fn try_recv(&self) -> Result<Request, RecvError> {
        self.receiving().try_recv()
    }

    /// Waits for the next request, then takes up to `max` requests that have arrived, under one lock. Appends them to `batch`
    /// and returns their number. `timeout` is that of [`recv_timeout`](Self::recv_timeout); `None` waits without end. A `max`
    /// of 0 counts as 1.
    ///
    /// # Errors
    ///
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_many(
        &self,
        batch: &mut Vec<Request>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, RecvError> {
        self.receiving().recv_many(batch, max, timeout)
    }

    /// [`recv`](Self::recv) as a future, for any executor. Dropping the future loses no request.
    ///
    /// ```no_run
    /// # async fn example(port: apus::Port) {
    /// while let Ok(mut request) = port.recv_async().await {
    ///     let body = request.take_body();
    ///     let _ = request.reply(body); // The client may have gone.
    /// }
    /// # }
    /// ```
    pub fn recv_async(
        &self,
    ) -> impl Future<Output = Result<Request, RecvError>> + Send + Sync + Unpin {
        RecvRequest { recv: Recv::new(&self.socket), port: self }
    }

    /// The requests as a [`Stream`](futures_core::Stream), for any executor. It ends when the port is closed or its node is
    /// unusable. Needs the feature `stream`.
    ///
    /// ```no_run
    /// # async fn example(port: apus::Port) {
    /// use futures_util::StreamExt;
    ///
    /// let answered = port.requests().for_each_concurrent(100, async |mut request| {
    ///     let body = request.take_body();
    ///     let _ = request.reply(body); // The client may have gone.
    /// });
    /// answered.await;
    /// # }
    /// ```
    #[cfg(feature = "stream")]
    pub fn requests(&self) -> crate::requests::Requests {
        crate::requests::Requests::new(self.socket.clone(), Arc::clone(&self.takers))
    }

    /// Gives each request to `handler`, until the port or the node is closed.
    ///
    /// Requests are taken in turns of the peers that they are from (see [`Port`]). While the handler is quick (below 5 µs per
    /// request), requests that arrive together are handled together, and their responses share datagrams, locks and system calls.
    /// Otherwise one is taken at a time, and each response is transmitted at once. A handler may move the [`Request`] to another
    /// thread and return.
    ///
    /// # Panics of the handler
    ///
    /// A panic of the handler ends its request, not `serve`. The caller gets
    /// [`CallError::HandlerPanicked`](crate::CallError::HandlerPanicked) unless the request was answered before, the panic is
    /// counted (`handler_panics` of [`Stats`](crate::Stats)), and the next request is handled. State that the handler shares
    /// with other requests must tolerate this, as it must tolerate a panic of another thread. With `panic = "abort"` the
    /// process ends.
    ///
    /// # A handler that calls its own port
    ///
    /// Such a call waits for another thread to serve it. If no other thread serves, [`CallBuilder::wait`](crate::CallBuilder::wait)
    /// detects this after a second and returns [`CallError::OwnService`](crate::CallError::OwnService). The same holds for a thread that
    /// receives in a loop of its own, or whose tasks do ([`recv_async`](Self::recv_async), `requests` with the feature `stream`), as long as no
    /// other thread has received from the port: a blocking call in a runtime with one thread, for example. A call that
    /// is awaited or [started](crate::CallBuilder::start), and two services that call each other, are not detected and may wait for
    /// ever. Use more threads than calls can be nested, futures, or plain functions.
    ///
    /// # Example
    ///
    /// Two threads serve the same port:
    ///
    /// ```
    /// use std::thread;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// let port = node.bind(4000)?;
    /// let threads = [(); 2].map(|()| {
    ///     let port = port.clone();
    ///     thread::spawn(move || {
    ///         port.serve(|request| {
    ///             let length = request.body().len();
    ///             let _ = request.reply(length.to_string()); // The client may have gone.
    ///         });
    ///     })
    /// });
    /// # assert_eq!(node.client()?.call(address, "hello").wait()?, "5");
    /// port.shutdown(); // Both calls of `serve` return.
    /// threads.into_iter().for_each(|thread| thread.join().unwrap());
    /// # Ok(())
    /// # }
    /// ```
    pub fn serve(&self, mut handler: impl FnMut(Request)) {
        let _serving = Serving::begin(self.socket.first(), &self.takers);
        let mut batch: Vec<Request> = Vec::with_capacity(SERVE_BATCH);
        let mut max = 1;
        while let Ok(count) = self.socket.recv_many(&mut batch, max, None) {
            let began = clock::now();
            let together = count > 1;
            // All of a batch came to one end.
            let cork = batch.first().filter(|_| together).map(|first| first.cork());
            for request in batch.drain(..) {
                let span = request.scope();
                let handled = panic::catch_unwind(AssertUnwindSafe(|| {
                    span.enter(|| handler(request));
                }));
                if handled.is_err() {
                    span.enter(|| self.count_handler_panic());
                }
            }
            drop(cork);
            let count = u32::try_from(count).expect("a batch is small");
            let quick = clock::now().saturating_since(began) < QUICK * count;
            // The requests of a batch have had their turn: a request of another peer that arrives now waits for all of them.
            max = if quick { SERVE_BATCH.min(max * 2) } else { 1 };
        }
    }

    #[cold]
    fn count_handler_panic(&self) {
        if let Ok(mut engine) = self.socket.first().shared.enter() {
            engine.counters.handler_panics += 1;
        }
        events::handler_panicked(self.number());
    }

    /// Closes the port now, even if clones of it exist. Waiting threads and tasks return with `Closed`, and unanswered
    /// requests are given up. Does nothing in a forked child of the process that opened it.
    pub fn shutdown(&self) {
        self.socket.shutdown();
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// Waiting for the next request, as a future.
struct RecvRequest<'a> {
    recv: Recv<'a, Request>,
    port: &'a Port,
}

impl Future for RecvRequest<'_> {
    type Output = Result<Request, RecvError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.port.receiving();
        Pin::new(&mut self.recv).poll(context)
    }
}

/// Requests handled together by [`Port::serve`]: bounds how long the first response is held back.
const SERVE_BATCH: usize = 64;

/// A handler that takes less than this is quick.
const QUICK: Duration = Duration::from_micros(5);
