//! Spans for a subscriber of the crate `tracing`. A span that no subscriber wants costs a look at a level.

use std::fmt::Debug;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apus_proto::slab::{Handle, Slab};
use apus_wire::TraceContext;
use bytes::Bytes;
use tracing::{Level, Span, field};

use crate::address::Address;
use crate::error::{CallError, ReplyError};
use crate::observe::events;
use crate::tracing::propagator;

/// The span of a call. `None`: no subscriber wants it.
#[derive(Debug)]
pub(crate) struct CallSpan(Option<Box<Wanted>>);

#[derive(Debug)]
struct Wanted {
    span: Span,
    /// Of the RPC; 0 while it is not known.
    id: AtomicU64,
}

impl CallSpan {
    /// Begins the span of a call with a request of this length in bytes.
    #[inline]
    pub(crate) fn begin(to: Address, length: usize) -> Self {
        if !is_enabled() {
            return Self::none();
        }
        Self::make(to, length)
    }

    /// Whether a subscriber may want spans of calls.
    #[inline]
    pub(crate) fn may_be_wanted() -> bool {
        is_enabled()
    }

    fn make(to: Address, length: usize) -> Self {
        let span = tracing::span!(
            target: "apus",
            LEVEL,
            "call",
            otel.kind = "client",
            rpc.system.name = "apus",
            server.address = %to.host.ip(),
            server.port = int(to.port),
            network.peer.port = udp_port(to),
            rpc.request.size = int(length),
            rpc.response.size = field::Empty,
            apus.rpc_id = field::Empty,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        let wanted = (!span.is_disabled()).then(|| Wanted { span, id: AtomicU64::new(0) });
        Self(wanted.map(Box::new))
    }

    /// Drops the handle of a span that another owner ends, or that no subscriber wants.
    #[inline]
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// The trace context of the request: that of the application, or that of the span.
    #[inline]
    pub(crate) fn context(&self, given: Option<TraceContext>) -> Option<TraceContext> {
        if given.is_none() && propagator().is_some() { self.own_context() } else { given }
    }

    fn own_context(&self) -> Option<TraceContext> {
        match &self.0 {
            Some(wanted) => propagator()?.context(&wanted.span),
            None => propagator()?.context(&Span::current()),
        }
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps the id of the RPC until the call has ended. Other than the methods below, it may be called under the engine's lock.
    #[inline]
    pub(crate) fn note_id(&self, id: impl FnOnce() -> Option<u64>) {
        if let Some(wanted) = &self.0 {
            wanted.id.store(id().unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// The call has ended.
    #[inline]
    pub(crate) fn end(&self, result: &Result<Bytes, CallError>) {
        match (result, &self.0) {
            (Err(error), _) => self.fail(error),
            (Ok(body), Some(wanted)) => wanted.succeed(body.len()),
            (Ok(_), None) => {}
        }
    }

    /// The call has failed, or could not begin.
    #[cold]
    pub(crate) fn fail(&self, error: &CallError) {
        match &self.0 {
            Some(wanted) => wanted.fail(error, || events::call_failed(error)),
            None => events::call_failed(error),
        }
    }

    /// Records that the caller has given the call up.
    #[cold]
    pub(crate) fn give_up(&self) {
        match &self.0 {
            Some(wanted) => wanted.fail(&CallError::Cancelled, events::call_given_up),
            None => events::call_given_up(),
        }
    }
}

impl Wanted {
    fn record_id(&self) {
        let id = self.id.load(Ordering::Relaxed);
        if id > 0 {
            self.span.record("apus.rpc_id", id);
        }
    }

    fn succeed(&self, length: usize) {
        self.record_id();
        self.span.record("rpc.response.size", int(length));
    }

    fn fail(&self, error: &CallError, log: impl FnOnce()) {
        self.record_id();
        self.span.record("error.type", variant(error).as_str());
        self.span.record("otel.status_code", "ERROR");
        self.span.in_scope(log);
    }
}

apus_proto::handle! {
    /// A span in [`QueuedSpans`].
    SpanKey
}

/// The number of the span of a call whose result goes to a queue; it travels with the result. 0: no subscriber wants the span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpanNumber(u64);

impl SpanNumber {
    pub(crate) const NONE: Self = Self(0);
}

/// Spans of calls whose results go to a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueuedSpans(Arc<Mutex<Slab<SpanKey, CallSpan>>>);

impl QueuedSpans {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Slab::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Slab<SpanKey, CallSpan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the span of a call that has begun. May be called under the engine's lock.
    pub(crate) fn put(&self, span: CallSpan) -> SpanNumber {
        SpanNumber(self.lock().insert(span).to_bits() + 1)
    }

    /// The span of a call that has ended.
    #[inline]
    pub(crate) fn take(&self, number: SpanNumber) -> CallSpan {
        match number.0.checked_sub(1) {
            Some(bits) => self.take_known(SpanKey::from_bits(bits)),
            None => CallSpan::none(),
        }
    }

    fn take_known(&self, key: SpanKey) -> CallSpan {
        self.lock().take(key).unwrap_or(CallSpan::none())
    }

    /// The calls will have no results.
    pub(crate) fn give_up_all(&self) {
        let all = mem::replace(&mut *self.lock(), Slab::new());
        all.keys().filter_map(|key| all.get(key)).for_each(CallSpan::give_up);
    }
}

impl Drop for QueuedSpans {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 1 {
            self.give_up_all();
        }
    }
}

/// The place of a request in a distributed trace. `None`: the client sent no context, and no subscriber wants a span.
#[derive(Debug)]
pub(crate) struct RequestTrace(Option<Box<Traced>>);

#[derive(Debug)]
struct Traced {
    context: Option<TraceContext>,
    /// `None`: no subscriber wants it, or the request was not handed out.
    span: Option<Span>,
}

impl RequestTrace {
    #[inline]
    pub(crate) fn new(context: Option<Box<TraceContext>>) -> Self {
        Self(context.map(|context| Box::new(Traced { context: Some(*context), span: None })))
    }

    /// Whether a subscriber may want spans of requests.
    #[inline]
    pub(crate) fn may_be_wanted() -> bool {
        is_enabled()
    }

    /// The trace context of the client.
    #[inline]
    pub(crate) fn context(&self) -> Option<TraceContext> {
        self.0.as_ref()?.context
    }

    /// Begins the span of a request of this length in bytes, which the application gets from the service at `port`.
    pub(crate) fn begin_span(
        &mut self,
        from: Address,
        port: u16,
        length: usize,
        id: impl FnOnce() -> Option<u64>,
    ) {
        let span = make_request_span(from, port, length);
        if !span.is_disabled() {
            self.set_span(span, id());
        }
    }

    fn set_span(&mut self, span: Span, id: Option<u64>) {
        let context = self.context();
        if let (Some(parent), Some(propagator)) = (context, propagator()) {
            propagator.set_parent(&span, parent);
        }
        if let Some(id) = id {
            span.record("apus.rpc_id", id);
        }
        self.0 = Some(Box::new(Traced { context, span: Some(span) }));
    }

    #[inline]
    fn wanted(&self) -> Option<&Span> {
        self.0.as_ref()?.span.as_ref()
    }

    pub(crate) fn span(&self) -> &Span {
        static NONE: Span = Span::none();
        self.wanted().unwrap_or(&NONE)
    }

    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        Scope(self.wanted().cloned())
    }

    /// Records the response, with its length in bytes.
    #[inline]
    pub(crate) fn replied(&self, length: usize) {
        if let Some(span) = self.wanted() {
            span.record("rpc.response.size", int(length));
        }
    }

    /// The node did not accept a response; the request may be answered again.
    #[cold]
    pub(crate) fn reply_failed(&self, error: &ReplyError) {
        self.scope().enter(|| events::reply_failed(error));
    }

    /// The request is dropped without an answer; `failed` if its handler panicked or failed.
    #[cold]
    pub(crate) fn give_up(&self, failed: bool) {
        if let Some(span) = self.wanted() {
            span.record("error.type", if failed { "HandlerPanicked" } else { "Abandoned" });
            span.record("otel.status_code", "ERROR");
        }
        if !failed {
            self.scope().enter(events::request_given_up); // Otherwise the panic or failure is reported.
        }
    }
}

/// The span of a request, to be entered.
#[derive(Debug)]
pub(crate) struct Scope(Option<Span>);

impl Scope {
    #[inline]
    pub(crate) fn enter<T>(&self, action: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(span) => span.in_scope(action),
            None => action(),
        }
    }
}

fn make_request_span(from: Address, port: u16, length: usize) -> Span {
    tracing::span!(
        target: "apus",
        parent: None,
        LEVEL,
        "request",
        otel.kind = "server",
        rpc.system.name = "apus",
        server.port = int(port),
        client.address = %from.host.ip(),
        client.port = int(from.port),
        network.peer.port = udp_port(from),
        rpc.request.size = int(length),
        rpc.response.size = field::Empty,
        apus.rpc_id = field::Empty,
        error.r#type = field::Empty,
        otel.status_code = field::Empty,
    )
}

const LEVEL: Level = Level::INFO;

/// Whether any subscriber may want a span.
#[inline]
fn is_enabled() -> bool {
    LEVEL <= tracing::level_filters::STATIC_MAX_LEVEL
        && LEVEL <= tracing::level_filters::LevelFilter::current()
}

/// A number as OpenTelemetry has them: layers for it make text of unsigned ones.
fn int(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// `None` on a raw link.
fn udp_port(address: Address) -> Option<i64> {
    Some(int(address.host.port())).filter(|&port| port > 0)
}

/// The name of an error's variant, without its fields.
fn variant(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    text[..end].to_owned()
}
