//! A call or a first contact that has not begun: it is awaited, waited for, or started.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::{Body, Time};
use apus_wire::TraceContext;
use bytes::Bytes;

use crate::address::Address;
use crate::call::{AwaitCall, Call};
use crate::call_options::CallOptions;
use crate::delivery::{parker, serving};
use crate::engine::lock::Guard;
use crate::error::CallError;
use crate::mail::{CallKey, CompletionMode};
use crate::observe::spans::CallSpan;
use crate::socket::{Socket, SocketInner};
use crate::sync::clock;

/// A call that has not begun. Made by [`Client::call`](crate::Client::call).
///
/// | the call | |
/// |---|---|
/// | `.await` | sends the request and awaits the response, on any executor |
/// | [`.wait()`](Self::wait) | sends the request and blocks the thread until the response is there |
/// | [`.start()`](Self::start) | sends the request and returns the [`Call`], which is awaited, waited for or dropped later |
///
/// Nothing is sent before. A future that is dropped gives its call up, as a dropped [`Call`] does.
///
/// ```
/// use std::time::Duration;
/// use apus::CallError;
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
/// match client.call(address, "hello").deadline(Duration::from_secs(5)).wait() {
///     Ok(response) => assert_eq!(response, "hello"),
///     Err(CallError::Deadline { story, .. }) => eprintln!("no response in time: {story}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
///
/// The same in a task:
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example(client: apus::Client, address: apus::Address) -> Result<(), apus::CallError> {
/// let response = client.call(address, "hello").deadline(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a call begins when it is awaited, or by `wait` or `start`"]
pub struct CallBuilder<'c> {
    socket: &'c Socket,
    to: Address,
    body: Body,
    options: CallOptions,
}

/// A call whose request was sent as far as may be. The lock is still held.
struct BegunCall<'c> {
    end: &'c Arc<SocketInner>,
    engine: Guard<'c>,
    now: Time,
    key: CallKey,
}

impl<'c> CallBuilder<'c> {
    #[inline]
    pub(crate) fn new(socket: &'c Socket, to: Address, body: Body) -> Self {
        Self { socket, to, body, options: CallOptions::new() }
    }

    /// Ends the call after this time; see [`CallOptions::deadline`]. Default: no deadline.
    #[inline]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.options = self.options.deadline(deadline);
        self
    }

    /// Sends this place in a distributed trace; see [`CallOptions::trace_context`]. Default: that of the span with the feature
    /// `tracing`, otherwise none.
    #[inline]
    pub const fn trace_context(mut self, context: TraceContext) -> Self {
        self.options = self.options.trace_context(context);
        self
    }

    /// Whether the call waits for room; see [`CallOptions::wait_for_room`]. Default `true`.
    #[inline]
    pub const fn wait_for_room(mut self, waits: bool) -> Self {
        self.options = self.options.wait_for_room(waits);
        self
    }

    /// Sets all options. Those that were set before are replaced.
    #[inline]
    pub const fn options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Sends the request and blocks the thread until the call has ended. Allocates nothing but the response.
    ///
    /// A task awaits the call instead: a blocked thread of its executor runs no other task.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    #[inline]
    pub fn wait(self) -> Result<Bytes, CallError> {
        let span = CallSpan::begin(self.to, self.body.len());
        let result = self.wait_for_response(&span);
        span.end(&result);
        result
    }

    #[inline]
    fn wait_for_response(self, span: &CallSpan) -> Result<Bytes, CallError> {
        let to = self.to;
        let BegunCall { end, mut engine, mut now, key } = self.begin(span)?;
        let mut awaited = AwaitCall { call: key, socket: end.key };
        if let Some(takers) = serving::serves_itself(end, &mut *engine.link, to) {
            let result = end.shared.wait(engine, &mut awaited, now, Some(now + OWN_SERVICE))?;
            if let Some(result) = result {
                return result;
            }
            if takers.is_only_this_thread() {
                drop(Call::new(Arc::clone(end), key, CallSpan::none()));
                return Err(CallError::OwnService { after: OWN_SERVICE });
            }
            engine = end.shared.lock()?;
            now = clock::now();
        }
        end.shared.wait(engine, &mut awaited, now, None)?.expect("a wait without end has a result")
    }

    /// Sends the request. A thread waits for the [`Call`], or a task awaits it. Dropping the [`Call`] gives the call up.
    ///
    /// The part of the request that may be sent without a grant is transmitted before this returns. The rest is transmitted while any
    /// thread waits, or in the background (see [`Delivery`](crate::Delivery)).
    ///
    /// # Errors
    ///
    /// The errors of [`CallError`] that are marked misuse or local. Nothing was sent.
    pub fn start(self) -> Result<Call, CallError> {
        let span = CallSpan::begin(self.to, self.body.len());
        let begun = self.begin(&span).inspect_err(|error| span.fail(error));
        let BegunCall { end, mut engine, now, key } = begun?;
        engine.transmit_due(now);
        drop(engine);
        Ok(Call::new(Arc::clone(end), key, span))
    }

    /// Sends the request and polls the call, under one lock.
    fn begin_and_poll(
        self,
        context: &Context<'_>,
    ) -> Result<(Call, Poll<Result<Bytes, CallError>>), CallError> {
        let span = CallSpan::begin(self.to, self.body.len());
        let begun = self.begin(&span).inspect_err(|error| span.fail(error));
        let BegunCall { end, engine, now, key } = begun?;
        let mut call = Call::new(Arc::clone(end), key, span);
        let polled = call.poll_locked(end, engine, now, context);
        Ok((call, polled))
    }

    #[inline]
    fn begin(self, span: &CallSpan) -> Result<BegunCall<'c>, CallError> {
        let Self { socket, to: address, body, options } = self;
        let trace = span.context(options.given_trace());
        let end = socket.end(address.host);
        let waits = options.waits().then_some(&address);
        let (mut engine, to) = end.shared.enter_towards(address)?;
        let now = clock::now();
        let options = options.with_trace(now, trace);
        let key = engine.call(now, end.key, (to, waits), body, CompletionMode::Handle, options)?;
        span.note_id(|| engine.rpc_id(key));
        engine.transmit(now);
        Ok(BegunCall { end, engine, now, key })
    }
}

impl<'c> IntoFuture for CallBuilder<'c> {
    type Output = Result<Bytes, CallError>;
    type IntoFuture = CallFuture<'c>;

    #[inline]
    fn into_future(self) -> CallFuture<'c> {
        CallFuture { state: FutureState::Unsent(self) }
    }
}

impl fmt::Debug for CallBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallBuilder")
            .field("to", &format_args!("{}", self.to))
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// An awaited call. Its request is sent when it is first polled. Dropping it gives the call up.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct CallFuture<'c> {
    state: FutureState<'c>,
}

#[derive(Debug)]
enum FutureState<'c> {
    Unsent(CallBuilder<'c>),
    UnderWay(Call),
    /// The call could not begin. [`Service::call`](tower_service::Service::call) finds that before the first poll.
    #[cfg(feature = "tower")]
    Refused(CallError),
    Over,
}

#[cfg(feature = "tower")]
impl CallFuture<'static> {
    /// The future of a call that has begun or was refused.
    pub(crate) fn begun(call: Result<Call, CallError>) -> Self {
        let state = call.map_or_else(FutureState::Refused, FutureState::UnderWay);
        Self { state }
    }
}

impl Future for CallFuture<'_> {
    type Output = Result<Bytes, CallError>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let FutureState::UnderWay(call) = &mut self.state {
            return Pin::new(call).poll(context);
        }
        match mem::replace(&mut self.state, FutureState::Over) {
            FutureState::Unsent(call) => {
                parker::count_task_poll();
                let (call, polled) = call.begin_and_poll(context)?;
                self.state = FutureState::UnderWay(call);
                polled
            }
            #[cfg(feature = "tower")]
            FutureState::Refused(error) => Poll::Ready(Err(error)),
            FutureState::UnderWay(_) | FutureState::Over => panic!("a call has one result"),
        }
    }
}

/// A first contact that has not begun. Made by [`Client::connect`](crate::Client::connect). A task awaits it, and a thread calls [`wait`](Self::wait).
#[derive(Clone, Copy)]
#[must_use = "a node is contacted when this is awaited, or by `wait`"]
pub struct Connect<'c> {
    socket: &'c Socket,
    to: Address,
    deadline: Option<Duration>,
}

impl<'c> Connect<'c> {
    pub(crate) fn new(socket: &'c Socket, to: Address) -> Self {
        Self { socket, to, deadline: None }
    }

    /// Ends the wait after this time: with [`CallError::Deadline`], or without an error if the node is known by then and only
    /// no memory is shared with it yet. Default: no deadline. The wait then ends with an error when the node has been silent for the
    /// setting `peer_timeout` (1 s).
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Contacts the node and blocks the thread until it is known.
    ///
    /// # Errors
    ///
    /// See [`CallError`]. [`CallError::NoSuchPort`] is reported only by a first contact, not by a node that is known.
    pub fn wait(self) -> Result<(), CallError> {
        self.start()?.wait().map(drop)
    }

    fn start(self) -> Result<Call, CallError> {
        let end = self.socket.end(self.to.host);
        let (mut engine, to) = end.shared.enter_towards(self.to)?;
        let now = clock::now();
        let deadline = self.deadline.map(|deadline| now + deadline);
        let call = engine.connect(now, end.key, to, deadline)?;
        engine.transmit(now);
        engine.transmit_due(now);
        drop(engine);
        Ok(Call::new(Arc::clone(end), call, CallSpan::none()))
    }
}

impl<'c> IntoFuture for Connect<'c> {
    type Output = Result<(), CallError>;
    type IntoFuture = ConnectFuture<'c>;

    fn into_future(self) -> ConnectFuture<'c> {
        ConnectFuture { state: ConnectState::Unsent(self) }
    }
}

impl fmt::Debug for Connect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("to", &format_args!("{}", self.to))
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// An awaited first contact. It begins when it is first polled.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct ConnectFuture<'c> {
    state: ConnectState<'c>,
}

#[derive(Debug)]
enum ConnectState<'c> {
    Unsent(Connect<'c>),
    UnderWay(Call),
}

impl Future for ConnectFuture<'_> {
    type Output = Result<(), CallError>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let ConnectState::Unsent(connect) = self.state {
            self.state = ConnectState::UnderWay(connect.start()?);
        }
        let ConnectState::UnderWay(call) = &mut self.state else { unreachable!() };
        Pin::new(call).poll(context).map_ok(drop)
    }
}

/// Time after which a call of a handler to its own service checks whether another thread serves it: another thread may be about to
/// begin.
const OWN_SERVICE: Duration = Duration::from_secs(1);
