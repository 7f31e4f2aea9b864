//! Clients: calls out, responses in.

use std::fmt;
use std::future::Future;
use std::mem;
#[cfg(feature = "tower")]
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::Body;
use bytes::Bytes;

use crate::address::Address;
use crate::call_builder::{CallBuilder, Connect};
use crate::call_options::CallOptions;
use crate::config::PeerRule;
#[cfg(feature = "tower")]
use crate::error::Unusable;
use crate::error::{CallError, RecvError, RuleError};
use crate::flush::{Flush, operate};
use crate::mail::CompletionMode;
use crate::observe::spans::CallSpan;
use crate::observe::stats::PortStats;
use crate::response::Response;
use crate::socket::{Recv, Socket};
use crate::sync::clock;

/// Makes calls from a port of its own. Opened by [`Node::client`](crate::Node::client).
///
/// Clones are the same client; any number of threads and tasks may use it at once. Its port is closed when the last clone and
/// the last [`Call`](crate::Call) are dropped. Outstanding calls of [`send`](Self::send) are then given up.
///
/// A client keeps its node running, even if the [`Node`](crate::Node) is dropped.
///
/// # Calls in batches
///
/// A thread with thousands of outstanding calls uses the client as a queue. [`send`](Self::send) transmits a request with a cookie,
/// and [`recv_many`](Self::recv_many) returns the responses with their cookies, in the order of arrival:
///
/// ```
/// use apus::Flush;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = apus::Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// # let node = apus::Node::start(&config)?;
/// # let port = node.bind(4000)?;
/// # let address = apus::Address::new(node.local_addr(), 4000);
/// # std::thread::spawn(move || {
/// #     port.serve(|request| {
/// #         let body = request.body().clone();
/// #         let _ = request.reply(body);
/// #     });
/// # });
/// # let client = node.client()?;
/// for number in 0..100 {
///     // The last request of the burst transmits all.
///     let flush = if number == 99 { Flush::Now } else { Flush::Later };
///     client.send(address, format!("call {number}"), number, flush)?;
/// }
/// let (mut outstanding, mut batch) = (100, Vec::new());
/// while outstanding > 0 {
///     outstanding -= client.recv_many(&mut batch, 64, None)?;
///     for response in batch.drain(..) {
///         assert_eq!(response.result?, format!("call {}", response.cookie));
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    socket: Socket,
}

impl Client {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket }
    }

    /// The Homa port, from 32768.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.socket.port()
    }

    /// Calls only peers that one of the patterns names, from now on; [`Port::allow`](crate::Port::allow) describes them.
    /// Without this, a client expects the name by which [`Node::resolve`](crate::Node::resolve) found the address, or a certificate with
    /// the address itself, or a server of the setting `tls_servers`. A call to another peer ends with
    /// [`CallError::WrongPeer`] before its first byte leaves.
    ///
    /// # Errors
    ///
    /// [`RuleError`]: a text is not a pattern, or the node has no certificate.
    pub fn expect<'a>(&self, patterns: impl IntoIterator<Item = &'a str>) -> Result<(), RuleError> {
        self.socket.set_rule(&PeerRule::parse(patterns)?)
    }

    /// Counters of the messages delivered to this client and of its wake-ups. Zero once the client is closed, and in a forked
    /// child of the process that opened it.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        self.socket.stats()
    }

    /// Performs first contact with the node at `to`, which takes one round trip. Without it, the first call to a node takes one
    /// round trip longer than later calls. The result is awaited, or [`wait`](Connect::wait) blocks. It is there at once for nodes on a
    /// raw link (`homa://`), which need no first contact, and for nodes that are known, unless a process of this host is being met.
    ///
    /// If a process of this host listens where the node would ([`Node`](crate::Node#within-one-host)), this also waits until
    /// memory is shared with it, or until it is clear that none will be. A process that has shared no memory after 0.5 s is
    /// given up.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let port = node.bind(4000)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # std::thread::spawn(move || {
    /// #     port.serve(|request| {
    /// #         let body = request.body().clone();
    /// #         let _ = request.reply(body);
    /// #     });
    /// # });
    /// # let client = node.client()?;
    /// client.connect(address).deadline(Duration::from_secs(5)).wait()?;
    /// let response = client.call(address, "hello").wait()?; // One round trip.
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(&self, to: Address) -> Connect<'_> {
        Connect::new(&self.socket, to)
    }

    /// A call: `client.call(to, body).await?` in a task, `client.call(to, body).wait()?` in a thread. [`CallBuilder`] has the options
    /// and the other ways.
    ///
    /// The body is not copied: use [`Bytes`], `Vec<u8>` or `&'static [u8]`, or two of them ([`Body::parts`]).
    ///
    /// Without a [deadline](CallBuilder::deadline) a call ends with the response, or when the peer has been silent for the setting
    /// `peer_timeout` (1 s).
    #[inline]
    pub fn call(&self, to: Address, body: impl Into<Body>) -> CallBuilder<'_> {
        CallBuilder::new(&self.socket, to, body.into())
    }

    /// Whether no call of the node waits for room. Otherwise the task is woken when the last call has stopped waiting.
    #[cfg(feature = "tower")]
    pub(crate) fn poll_room(&self, context: &Context<'_>) -> Poll<Result<(), Unusable>> {
        for end in self.socket.ends() {
            let mut engine = end.shared.enter()?;
            let now = clock::now();
            let has_room = engine.has_room(context.waker());
            engine.transmit_due(now);
            if !has_room {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends a request. [`recv`](Self::recv) returns its result, with `cookie`: a completion queue for threads with many
    /// outstanding calls.
    ///
    /// With [`Flush::Later`] the request may stay queued until the next operation on the node, so that several requests share
    /// datagrams and system calls.
    ///
    /// # Errors
    ///
    /// The errors of [`CallError`] that are marked misuse or local. Nothing was sent, and `recv` returns nothing for this call.
    pub fn send(
        &self,
        to: Address,
        body: impl Into<Body>,
        cookie: u64,
        flush: Flush,
    ) -> Result<(), CallError> {
        self.send_with(to, body, cookie, flush, CallOptions::new())
    }

    /// [`send`](Self::send) with options.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with(
        &self,
        to: Address,
        body: impl Into<Body>,
        cookie: u64,
        flush: Flush,
        options: CallOptions,
    ) -> Result<(), CallError> {
        let body = body.into();
        let mut span = CallSpan::begin(to, body.len());
        let trace = span.context(options.given_trace());
        let end = self.socket.end(to.host);
        let sent = end.shared.enter_towards(to).and_then(|(engine, to)| {
            operate(&end.shared, engine, flush, |engine, now| {
                let options = options.with_trace(now, trace);
                if !span.is_wanted() {
                    return engine.send(now, end.key, to, body, cookie, options);
                }
                let completion = CompletionMode::Queue(cookie);
                let call = engine.call(now, end.key, (to, None), body, completion, options)?;
                span.note_id(|| engine.rpc_id(call));
                let span = mem::replace(&mut span, CallSpan::none());
                engine.mail.set_span(call, self.socket.spans.put(span));
                Ok(())
            })
        });
        sent.inspect_err(|error| span.fail(error))
    }

    /// Sends requests to one service as [`send`](Self::send) does, each with a body and a cookie. The lock of the node is taken once for
    /// all of them, and the budgets of a service on this host are looked up once. Requests that were sent are removed from `calls`.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send), for the first request in `calls` then. It and the later ones were not sent.
    ///
    /// ```
    /// use apus::{Bytes, Flush};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let port = node.bind(4000)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # std::thread::spawn(move || {
    /// #     port.serve(|request| {
    /// #         let body = request.body().clone();
    /// #         let _ = request.reply(body);
    /// #     });
    /// # });
    /// # let client = node.client()?;
    /// let mut calls: Vec<_> = (0..64).map(|number| (Bytes::from("question"), number)).collect();
    /// client.send_many(address, &mut calls, Flush::Now)?;
    /// let mut responses = Vec::new();
    /// while responses.len() < 64 {
    ///     client.recv_many(&mut responses, 64, None)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_many(
        &self,
        to: Address,
        calls: &mut Vec<(Bytes, u64)>,
        flush: Flush,
    ) -> Result<(), CallError> {
        if CallSpan::may_be_wanted() {
            return self.send_each(to, calls, flush);
        }
        let end = self.socket.end(to.host);
        let (engine, to) = end.shared.enter_towards(to)?;
        operate(&end.shared, engine, flush, |engine, now| {
            let sent = engine.send_many(now, end.key, to, calls);
            if sent.is_err() {
                // The requests before the refused one.
                engine.transmit(now);
                engine.transmit_due(now);
            }
            sent
        })
    }

    /// Sends requests one by one, each with a span.
    #[cold]
    fn send_each(
        &self,
        to: Address,
        calls: &mut Vec<(Bytes, u64)>,
        flush: Flush,
    ) -> Result<(), CallError> {
        let mut sent = Ok(());
        let mut count = 0;
        for (body, cookie) in &*calls {
            let is_last = count + 1 == calls.len();
            let flush = if is_last { flush } else { Flush::Later };
            sent = self.send(to, body.clone(), *cookie, flush);
            if sent.is_err() {
                break;
            }
            count += 1;
        }
        calls.drain(..count);
        sent
    }

    /// Ends the outstanding calls of [`send`](Self::send) with this cookie. Their results, [`CallError::Cancelled`], are received as
    /// others are. Returns whether there was one. Requests may be executed nevertheless.
    ///
    /// Looks at all outstanding calls of the node, so it takes some microseconds for each thousand of them. A [`Call`](crate::Call) is cancelled
    /// without that.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let port = node.bind(4000)?; // Answers nothing.
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # let client = node.client()?;
    /// client.send(address, "a request that takes long", 7, apus::Flush::Now)?;
    /// assert!(client.cancel(7));
    /// let response = client.recv()?;
    /// assert_eq!((response.cookie, response.result), (7, Err(apus::CallError::Cancelled)));
    /// assert!(!client.cancel(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self, cookie: u64) -> bool {
        let mut cancelled = false;
        for end in self.socket.ends() {
            let Ok(mut engine) = end.shared.enter() else { continue };
            cancelled |= engine.cancel_sent(end.key, cookie);
            let now = clock::now();
            engine.transmit(now);
            engine.transmit_due(now);
        }
        cancelled
    }

    /// Waits for the next response to a [`send`](Self::send). Responses are returned in the order of their arrival.
    ///
    /// # Errors
    ///
    /// [`RecvError::Closed`] if the client was shut down or the node closed.
    pub fn recv(&self) -> Result<Response, RecvError> {
        self.socket.recv(None)
    }

    /// [`recv`](Self::recv) for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvError::Timeout`] if no response arrived, [`RecvError::Closed`] as for `recv`.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Response, RecvError> {
        self.socket.recv(Some(timeout))
    }

    /// The next response if one has arrived. Turns the engine once to find out.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`] if no response has arrived, [`RecvError::Closed`] as for `recv`.
    pub fn try_recv(&self) -> Result<Response, RecvError> {
        self.socket.try_recv()
    }

    /// Waits for the next response, then takes up to `max` responses that have arrived, under one lock. Appends them to `batch`
    /// and returns their number. `timeout` is that of [`recv_timeout`](Self::recv_timeout); `None` waits without end. A `max`
    /// of 0 counts as 1.
    ///
    /// # Errors
    ///
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_many(
        &self,
        batch: &mut Vec<Response>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, RecvError> {
        self.socket.recv_many(batch, max, timeout)
    }

    /// [`recv`](Self::recv) as a future, for any executor. Dropping the future loses no response.
    pub fn recv_async(
        &self,
    ) -> impl Future<Output = Result<Response, RecvError>> + Send + Sync + Unpin {
        Recv::new(&self.socket)
    }

    /// The responses to calls of [`send`](Self::send) as a [`Stream`](futures_core::Stream), for any executor. It ends when the client
    /// is closed or its node is unusable. Needs the feature `stream`.
    ///
    /// ```no_run
    /// # async fn example(client: apus::Client, address: apus::Address) -> Result<(), apus::CallError> {
    /// use futures_util::StreamExt;
    ///
    /// client.send(address, "hello", 7, apus::Flush::Now)?;
    /// let mut responses = client.responses();
    /// while let Some(response) = responses.next().await {
    ///     println!("call {} has ended: {:?}", response.cookie, response.result);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "stream")]
    pub fn responses(&self) -> crate::responses::Responses {
        crate::responses::Responses::new(self.socket.clone())
    }

    /// Closes the port now, even if clones of the client exist. Waiting threads and tasks return with `Closed`, and outstanding
    /// calls end. Does nothing in a forked child of the process that opened the client.
    pub fn shutdown(&self) {
        self.socket.shutdown();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("port", &self.port()).finish_non_exhaustive()
    }
}
