//! Spans for a subscriber of the crate `tracing`.

use std::fmt::Debug;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use apus_proto::slab::{Handle, Slab};
use apus_wire::TraceContext;
use bytes::Bytes;
use tracing::{Level, Span, field};

use crate::address::Address;
use crate::error::{CallError, ReplyError};
use crate::trace;
use crate::tracing::propagator;

/// The span of a call.
#[derive(Debug)]
pub(crate) struct CallSpan {
    span: Span,
    /// Of the RPC; 0 while it is not known.
    id: AtomicU64,
}

impl CallSpan {
    /// A call begins, with a request of so many bytes.
    pub(crate) fn begin(to: Address, length: usize) -> Self {
        let span = tracing::span!(
            target: "apus",
            Level::INFO,
            "call",
            otel.kind = "client",
            rpc.system = "apus",
            server.address = %to.host.ip(),
            server.port = to.port,
            network.peer.port = udp_port(to),
            rpc.request.size = length,
            rpc.response.size = field::Empty,
            apus.rpc_id = field::Empty,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        Self { span, id: AtomicU64::new(0) }
    }

    fn none() -> Self {
        Self { span: Span::none(), id: AtomicU64::new(0) }
    }

    /// What goes with the request: the context that the application has given, or that of the span.
    pub(crate) fn context(&self, given: Option<TraceContext>) -> Option<TraceContext> {
        given.or_else(|| match self.span.is_disabled() {
            true => propagator()?.context(&Span::current()),
            false => propagator()?.context(&self.span),
        })
    }

    /// Whether to ask for the id of the RPC.
    pub(crate) fn wants_id(&self) -> bool {
        !self.span.is_disabled()
    }

    /// Keeps the id of the RPC until the call has ended. Other than the methods below, it may be called under the engine's lock.
    pub(crate) fn note_id(&self, id: Option<u64>) {
        self.id.store(id.unwrap_or(0), Ordering::Relaxed);
    }

    fn record_id(&self) {
        let id = self.id.load(Ordering::Relaxed);
        if id > 0 {
            self.span.record("apus.rpc_id", id);
        }
    }

    /// The call has ended.
    pub(crate) fn end(&self, result: &Result<Bytes, CallError>) {
        let body = match result {
            Ok(body) => body,
            Err(error) => return self.fail(error),
        };
        self.record_id();
        self.span.record("rpc.response.size", body.len());
    }

    /// The call has failed, or could not begin.
    pub(crate) fn fail(&self, error: &CallError) {
        self.record_id();
        set_error(&self.span, error);
        self.span.in_scope(|| trace::call_failed(error));
    }

    /// Nobody waits for the call any more.
    pub(crate) fn give_up(&self) {
        self.record_id();
        set_error(&self.span, &CallError::Cancelled);
        self.span.in_scope(trace::call_given_up);
    }
}

apus_proto::handle! {
    /// A span in [`QueuedSpans`].
    SpanKey
}

/// Spans of calls whose results go to a queue. Each stands in place of the call's cookie, and has it.
#[derive(Clone, Debug)]
pub(crate) struct QueuedSpans(Arc<Mutex<Slab<SpanKey, (CallSpan, u64)>>>);

impl QueuedSpans {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Slab::new())))
    }

    fn lock(&self) -> MutexGuard<'_, Slab<SpanKey, (CallSpan, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the span of a call. Returns what stands for its cookie.
    pub(crate) fn put(&self, span: CallSpan, cookie: u64) -> u64 {
        self.lock().insert((span, cookie)).to_bits()
    }

    /// The span of a call, and the cookie that it was given.
    pub(crate) fn take(&self, number: u64) -> (CallSpan, u64) {
        let taken = self.lock().take(SpanKey::from_bits(number));
        taken.unwrap_or_else(|| (CallSpan::none(), number))
    }

    /// Keeps the id of an RPC until its call has ended. May be called under the engine's lock.
    pub(crate) fn note_id(&self, number: u64, id: impl FnOnce() -> Option<u64>) {
        if let Some((span, _)) = self.lock().get(SpanKey::from_bits(number))
            && span.wants_id()
        {
            span.note_id(id());
        }
    }

    /// The calls will have no results.
    pub(crate) fn give_up_all(&self) {
        let all = mem::replace(&mut *self.lock(), Slab::new());
        for key in all.keys() {
            if let Some((span, _)) = all.get(key) {
                span.give_up();
            }
        }
    }
}

impl Drop for QueuedSpans {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 1 {
            self.give_up_all();
        }
    }
}

/// The span of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpan(Span);

impl RequestSpan {
    /// None yet: the request is not handed out.
    pub(crate) fn none() -> Self {
        Self(Span::none())
    }

    /// A request of so many bytes to the service at `port` is handed to the application.
    pub(crate) fn begin(
        from: Address,
        port: u16,
        length: usize,
        parent: Option<TraceContext>,
    ) -> Self {
        let span = tracing::span!(
            target: "apus",
            parent: None,
            Level::INFO,
            "request",
            otel.kind = "server",
            rpc.system = "apus",
            server.port = port,
            client.address = %from.host.ip(),
            client.port = from.port,
            network.peer.port = udp_port(from),
            rpc.request.size = length,
            rpc.response.size = field::Empty,
            apus.rpc_id = field::Empty,
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        if let (Some(parent), Some(propagator), false) = (parent, propagator(), span.is_disabled())
        {
            propagator.set_parent(&span, parent);
        }
        Self(span)
    }

    /// Whether to ask for the id of the RPC.
    pub(crate) fn wants_id(&self) -> bool {
        !self.0.is_disabled()
    }

    pub(crate) fn set_id(&self, id: Option<u64>) {
        if let Some(id) = id {
            self.0.record("apus.rpc_id", id);
        }
    }

    pub(crate) fn in_scope<T>(&self, action: impl FnOnce() -> T) -> T {
        self.0.in_scope(action)
    }

    pub(crate) fn span(&self) -> &Span {
        &self.0
    }

    /// The request is answered, with so many bytes.
    pub(crate) fn replied(&self, length: usize) {
        self.0.record("rpc.response.size", length);
    }

    /// The node did not accept a response; the request may be answered again.
    pub(crate) fn reply_failed(&self, error: &ReplyError) {
        self.0.in_scope(|| trace::reply_failed(error));
    }

    /// The request is dropped without an answer.
    pub(crate) fn give_up(&self) {
        let panics = thread::panicking();
        let why = if panics { "HandlerPanicked" } else { "Abandoned" };
        self.0.record("error.type", why);
        self.0.record("otel.status_code", "ERROR");
        if !panics {
            self.0.in_scope(trace::request_given_up); // Otherwise the panic is told.
        }
    }
}

/// `None` on a raw link.
fn udp_port(address: Address) -> Option<u16> {
    Some(address.host.port()).filter(|&port| port > 0)
}

fn set_error(span: &Span, error: &CallError) {
    if span.is_disabled() {
        return;
    }
    span.record("error.type", variant(error).as_str());
    span.record("otel.status_code", "ERROR");
}

/// The name of an error, without what it says of this one.
fn variant(error: &impl Debug) -> String {
    let text = format!("{error:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    text[..end].to_owned()
}
