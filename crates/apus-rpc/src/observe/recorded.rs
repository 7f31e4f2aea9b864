//! Spans and histograms of calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use apus::{Address, TraceContext};

use crate::code::Code;
use crate::envelope::MethodPath;
use crate::transport::Incoming;

/// A call of a channel. It is given up if it is dropped before its end.
#[derive(Debug)]
pub(crate) struct ClientCall {
    observed: Option<Arc<Observed>>,
    /// The call as its layers have it, which does not end it.
    is_part: bool,
}

/// A call of a channel on its way through layers.
#[cfg(feature = "tower")]
#[derive(Clone, Debug)]
pub(crate) struct PassingCall(Option<Arc<Observed>>);

/// A request of a server with its handler.
#[derive(Debug)]
pub(crate) struct ServerCall(Observed);

#[derive(Debug)]
struct Observed {
    path: MethodPath,
    begun: Instant,
    side: Side,
    has_ended: AtomicBool,
    /// The method exists: its path is a label of the histogram.
    is_named: AtomicBool,
    open: Mutex<Open>,
}

/// The parts of a call that has not ended.
#[derive(Clone, Debug)]
struct Open {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
    server: Option<Address>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Client,
    Server,
}

/// The name of a method that is not served, or of which that is not known: clients can send any.
const OTHER: &str = "_OTHER";

impl Side {
    /// Whether a call with this code is an error of the side. A client's wrong request is none of the server.
    fn is_error(self, code: Code) -> bool {
        match self {
            Self::Client => code != Code::Ok,
            Self::Server => matches!(
                code,
                Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Unimplemented
                    | Code::Internal
                    | Code::Unavailable
                    | Code::DataLoss
            ),
        }
    }
}

impl Observed {
    fn new(path: &MethodPath, side: Side, open: Open) -> Self {
        let (has_ended, is_named) = (AtomicBool::new(false), AtomicBool::new(true));
        let (path, begun, open) = (path.clone(), Instant::now(), Mutex::new(open));
        Self { path, begun, side, has_ended, is_named, open }
    }

    fn scope(&self) -> Scope {
        Scope {
            #[cfg(feature = "tracing")]
            span: self.open.lock().unwrap_or_else(PoisonError::into_inner).span.clone(),
        }
    }

    /// Records the end, once.
    fn end(&self, code: Code) {
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let open = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            // Contexts may outlive their call, and the span ends with it.
            std::mem::replace(&mut *open, Open::none())
        };
        let error = self.side.is_error(code).then_some(code.name());
        #[cfg(feature = "tracing")]
        spans::end(&open, self.side, code, error);
        let is_named = self.is_named.load(Ordering::Relaxed);
        let method = if is_named { method(&self.path) } else { OTHER };
        record(self.side, method, code, error, open.server, self.begun.elapsed());
    }
}

/// The span of a call, to be entered.
pub(crate) struct Scope {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Scope {
    const fn none() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: tracing::Span::none(),
        }
    }

    pub(crate) fn enter<T>(self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        let _entered = self.span.entered();
        run()
    }
}

impl Open {
    fn none() -> Self {
        Self {
            #[cfg(feature = "tracing")]
            span: tracing::Span::none(),
            server: None,
        }
    }
}

/// `shop.Calc/Add`.
fn method(path: &MethodPath) -> &str {
    path.as_str().trim_start_matches('/')
}

impl ClientCall {
    /// A part of another call.
    pub(crate) const fn none() -> Self {
        Self { observed: None, is_part: false }
    }

    /// A detached call belongs to no span.
    pub(crate) fn begin(path: &MethodPath, is_detached: bool) -> Self {
        #[cfg(not(feature = "tracing"))]
        let _ = is_detached;
        let open = Open {
            #[cfg(feature = "tracing")]
            span: spans::client(method(path), is_detached),
            ..Open::none()
        };
        let observed = Some(Arc::new(Observed::new(path, Side::Client, open)));
        Self { observed, is_part: false }
    }

    /// For the attempts of the call within layers.
    #[cfg(feature = "tower")]
    pub(crate) fn passing(&self) -> PassingCall {
        PassingCall(self.observed.clone())
    }

    #[cfg(feature = "tower")]
    pub(crate) fn of_passing(call: PassingCall) -> Self {
        Self { observed: call.0, is_part: true }
    }

    pub(crate) fn scope(&self) -> Scope {
        self.observed.as_ref().map_or_else(Scope::none, |observed| observed.scope())
    }

    /// The trace context of the messages: `None` leaves it to the spans.
    #[cfg(feature = "tracing")]
    pub(crate) fn trace(&self, inherited: Option<TraceContext>) -> Option<TraceContext> {
        let own = || self.scope().enter(|| apus::tracing::context_of(&tracing::Span::current()));
        inherited.filter(|_| own().is_none())
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn trace(&self, inherited: Option<TraceContext>) -> Option<TraceContext> {
        inherited
    }

    /// The call has an attempt at this server.
    pub(crate) fn note_server(&self, server: Address) {
        if let Some(observed) = &self.observed {
            let mut open = observed.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.server = Some(server);
        }
    }

    pub(crate) fn end(&self, code: Code) {
        if let Some(observed) = self.observed.as_ref().filter(|_| !self.is_part) {
            observed.end(code);
        }
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

impl ServerCall {
    pub(crate) fn begin(path: &MethodPath, request: &Incoming) -> Self {
        #[cfg(not(feature = "tracing"))]
        let _ = request;
        let open = Open {
            #[cfg(feature = "tracing")]
            span: spans::server(method(path), request),
            ..Open::none()
        };
        Self(Observed::new(path, Side::Server, open))
    }

    /// Whether the path is that of a method that exists.
    pub(crate) fn set_named(&self, is_named: bool) {
        self.0.is_named.store(is_named, Ordering::Relaxed);
    }

    pub(crate) fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        self.0.scope().enter(run)
    }

    pub(crate) fn end(&self, code: Code) {
        self.0.end(code);
    }
}

/// A request was refused before its handler. `None`: its method is not known.
pub(crate) fn refused(path: Option<&MethodPath>, code: Code) {
    let error = Side::Server.is_error(code).then_some(code.name());
    record(Side::Server, path.map_or(OTHER, method), code, error, None, Duration::ZERO);
}

/// Names the unit of the histograms, for recorders that show it.
#[cfg(feature = "metrics")]
pub(crate) fn describe() {
    use metrics::{Unit, describe_histogram};
    describe_histogram!(CLIENT, Unit::Seconds, "Duration of calls of channels.");
    describe_histogram!(SERVER, Unit::Seconds, "Duration of requests of servers.");
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn describe() {}

#[cfg(feature = "metrics")]
const CLIENT: &str = "rpc.client.call.duration";
#[cfg(feature = "metrics")]
const SERVER: &str = "rpc.server.call.duration";

#[cfg(feature = "metrics")]
fn record(
    side: Side,
    method: &str,
    code: Code,
    error: Option<&'static str>,
    server: Option<Address>,
    duration: Duration,
) {
    use metrics::Label;
    let mut labels = vec![
        Label::from_static_parts("rpc.system.name", "apus"),
        Label::new("rpc.method", method.to_owned()),
        Label::from_static_parts("rpc.response.status_code", code.name()),
    ];
    labels.extend(error.map(|error| Label::from_static_parts("error.type", error)));
    if let Some(server) = server {
        labels.push(Label::new("server.address", server.host.ip().to_string()));
        labels.push(Label::new("server.port", server.port.to_string()));
    }
    let name = if side == Side::Client { CLIENT } else { SERVER };
    metrics::histogram!(name, labels).record(duration.as_secs_f64());
}

#[cfg(not(feature = "metrics"))]
fn record(_: Side, _: &str, _: Code, _: Option<&'static str>, _: Option<Address>, _: Duration) {}

#[cfg(feature = "tracing")]
mod spans {
    use tracing::span::Id;
    use tracing::{Span, field};

    use super::{Open, Side};
    use crate::code::Code;
    use crate::transport::Incoming;

    /// The span of a client with the parent that is given, or the current span.
    macro_rules! client_span {
        ($method:expr $(, $parent:expr)?) => {
            tracing::info_span!(
                target: "apus_rpc",
                $(parent: $parent,)?
                "rpc",
                otel.name = $method,
                otel.kind = "client",
                rpc.system.name = "apus",
                rpc.method = $method,
                rpc.response.status_code = field::Empty,
                server.address = field::Empty,
                server.port = field::Empty,
                error.r#type = field::Empty,
                otel.status_code = field::Empty,
            )
        };
    }

    pub(super) fn client(method: &str, is_detached: bool) -> Span {
        if is_detached { client_span!(method, None::<Id>) } else { client_span!(method) }
    }

    pub(super) fn server(method: &str, request: &Incoming) -> Span {
        let from = request.from();
        let parent = request.span();
        let span = tracing::info_span!(
            target: "apus_rpc",
            parent: parent.id(),
            "rpc",
            otel.name = method,
            otel.kind = "server",
            rpc.system.name = "apus",
            rpc.method = method,
            rpc.response.status_code = field::Empty,
            client.address = %from.host.ip(),
            client.port = i64::from(from.port),
            error.r#type = field::Empty,
            otel.status_code = field::Empty,
        );
        // Otherwise it is the parent of the transport's span.
        if parent.is_none()
            && !span.is_none()
            && let Some(context) = request.trace_context()
        {
            apus::tracing::set_parent(&span, context);
        }
        span
    }

    pub(super) fn end(open: &Open, side: Side, code: Code, error: Option<&'static str>) {
        let span = &open.span;
        span.record("rpc.response.status_code", code.name());
        if let (Side::Client, Some(server)) = (side, open.server) {
            span.record("server.address", field::display(server.host.ip()));
            span.record("server.port", i64::from(server.port));
        }
        if let Some(error) = error {
            span.record("error.type", error);
            span.record("otel.status_code", "ERROR");
        }
    }
}
