//! Spans of calls and requests, and the links between spans of two processes (feature `tracing`).

mod pair;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use apus::tracing::{Propagator, set_propagator};
use apus::{CallError, CallOptions, Delivery, Flush, TraceContext};
use pair::{Pair, pair, serve, wait_until};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Span, Subscriber};

/// A span in the subscriber's table. Its own id is its span id.
#[derive(Clone, Debug, Default)]
struct Known {
    name: &'static str,
    /// The id of its trace: the id of the root span.
    trace: u64,
    parent: Option<u64>,
    fields: HashMap<String, String>,
    events: Vec<String>,
    handles: usize,
}

impl Visit for Known {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.to_string(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.to_string(), value.to_owned());
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

static SPANS: Mutex<Option<HashMap<u64, Known>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn spans() -> MutexGuard<'static, Option<HashMap<u64, Known>>> {
    SPANS.lock().unwrap()
}

fn with<T>(id: u64, change: impl FnOnce(&mut Known) -> T) -> T {
    change(spans().get_or_insert_default().entry(id).or_default())
}

fn current() -> Option<u64> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

struct Spans;

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("apus") || metadata.target().starts_with("spans")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let explicit = attributes.parent().map(Id::into_u64);
        let parent = if attributes.is_contextual() { current() } else { explicit };
        let trace = parent.map_or(id, |parent| with(parent, |parent| parent.trace));
        let name = attributes.metadata().name();
        let mut span = Known { name, trace, parent, handles: 1, ..Known::default() };
        attributes.record(&mut span);
        with(id, |known| *known = span);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        with(id.into_u64(), |span| values.record(span));
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if let Some(current) = current() {
            with(current, |span| span.events.push(message.0));
        }
    }

    fn clone_span(&self, id: &Id) -> Id {
        with(id.into_u64(), |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        with(id.into_u64(), |span| span.handles -= 1);
        false
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.pop());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

struct Ids;

impl Propagator for Ids {
    fn context(&self, span: &Span) -> Option<TraceContext> {
        let id = span.id()?.into_u64();
        let trace = u128::from(with(id, |span| span.trace));
        TraceContext::new(trace.to_be_bytes(), id.to_be_bytes(), TraceContext::SAMPLED)
    }

    fn set_parent(&self, span: &Span, parent: TraceContext) {
        let Some(id) = span.id() else { return };
        with(id.into_u64(), |span| {
            span.trace = u128::from_be_bytes(parent.trace_id()) as u64;
            span.parent = Some(u64::from_be_bytes(parent.span_id()));
        });
    }
}

/// The closed spans with this name in the trace of `root`, with their ids, the oldest first.
fn closed(root: &Span, name: &str) -> Vec<(u64, Known)> {
    let root = root.id().unwrap().into_u64();
    let all = spans().clone().unwrap_or_default();
    let of_root = |span: &Known| span.trace == root && span.name == name && span.handles == 0;
    let mut found: Vec<_> = all.into_iter().filter(|(_, span)| of_root(span)).collect();
    found.sort_by_key(|(id, _)| *id);
    found
}

/// The only such span, once it is closed.
fn only(root: &Span, name: &str) -> (u64, Known) {
    wait_until("the span is closed", || !closed(root, name).is_empty());
    let [span] = &closed(root, name)[..] else { panic!("{:#?}", closed(root, name)) };
    span.clone()
}

fn setup() -> Pair {
    let _ = tracing::subscriber::set_global_default(Spans);
    let _ = set_propagator(Ids);
    assert!(set_propagator(Ids).is_err(), "there is one");
    pair(Delivery::suspend())
}

fn root() -> Span {
    tracing::info_span!(target: "spans", parent: None, "root")
}

#[test]
fn a_call_and_its_request_are_spans_of_one_trace() {
    let Pair { client_node, service, address, .. } = &setup();
    let serving = serve(service, |request| request.reply("three").unwrap());
    let client = client_node.client().unwrap();
    let root = root();
    root.in_scope(|| client.call(*address, "four").wait().unwrap());
    let (id, call) = only(&root, "call");
    let (_, request) = only(&root, "request");
    assert_eq!((call.parent, request.parent), (root.id().map(|id| id.into_u64()), Some(id)));
    let expected = |fields: &[(&str, String)], span: &Known| {
        for (name, value) in fields {
            assert_eq!(span.fields.get(*name), Some(value), "{name}: {span:#?}");
        }
        assert!(!span.fields.contains_key("error.type"));
    };
    let of_both = [
        ("rpc.system.name", "apus".into()),
        ("server.port", "4000".into()),
        ("rpc.request.size", "4".into()),
        ("rpc.response.size", "5".into()),
    ];
    [&call, &request].into_iter().for_each(|span| expected(&of_both, span));
    let (host, port) = (address.host.ip().to_string(), address.host.port().to_string());
    expected(
        &[
            ("otel.kind", "client".into()),
            ("server.address", host.clone()),
            ("network.peer.port", port),
        ],
        &call,
    );
    let of_request = [
        ("otel.kind", "server".into()),
        ("client.address", host),
        ("client.port", client.port().to_string()),
    ];
    expected(&of_request, &request);
    if !pair::shares_engine() {
        assert!(call.fields.contains_key("apus.rpc_id"));
        assert_eq!(call.fields.get("apus.rpc_id"), request.fields.get("apus.rpc_id"));
    }
    service.shutdown();
    serving.join().unwrap();
}

#[test]
fn calls_of_all_kinds_have_spans() {
    let Pair { client_node, service, address, .. } = &setup();
    let serving = serve(service, |request| request.reply("ok").unwrap());
    let client = client_node.client().unwrap();
    let root = root();
    let entered = root.enter();
    client.call(*address, "a handle").start().unwrap().wait().unwrap();
    client.call(*address, "at once").wait().unwrap();
    let mut call = client.call(*address, "looked at").start().unwrap();
    while let Err(waiting) = call.try_take() {
        call = waiting;
    }
    let tasks = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tasks.block_on(client.call(*address, "a future").into_future()).unwrap();
    tasks.block_on(client.call(*address, "awaited").start().unwrap()).unwrap();
    for cookie in [7, 8, 9] {
        client.send(*address, "queued", cookie, Flush::Now).unwrap();
    }
    let mut cookies = vec![client.recv().unwrap().cookie];
    let mut batch = Vec::new();
    while cookies.len() < 3 {
        client.recv_many(&mut batch, 8, None).unwrap();
        cookies.extend(batch.drain(..).map(|response| response.cookie));
    }
    cookies.sort_unstable();
    assert_eq!(cookies, [7, 8, 9], "the application's own");
    drop(entered);
    wait_until("all are closed", || closed(&root, "request").len() == 8);
    let calls = closed(&root, "call");
    assert_eq!(calls.len(), 8);
    for (_, call) in &calls {
        assert_eq!(call.fields.get("rpc.response.size").map(String::as_str), Some("2"));
    }
    service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_handler_is_within_the_span_of_its_request() {
    let Pair { client_node, server_node, service, address } = &setup();
    let behind = server_node.bind(4001).unwrap();
    let serving_behind = serve(&behind, |request| request.reply("behind").unwrap());
    let (client, onward) = (client_node.client().unwrap(), server_node.client().unwrap());
    let next = apus::Address::new(address.host, 4001);
    let serving = serve(service, move |request| {
        tracing::info!(target: "spans", "in the handler");
        request.reply(onward.call(next, "onward").wait().unwrap()).unwrap();
    });
    let root = root();
    if !pair::skips("a node of an engine does not call itself here") {
        assert_eq!(root.in_scope(|| client.call(*address, "x").wait().unwrap()), "behind");
        wait_until("all are closed", || closed(&root, "request").len() == 2);
        let [first, second] = &closed(&root, "call")[..] else { panic!("two calls") };
        let [of_first, of_second] = &closed(&root, "request")[..] else { panic!("two requests") };
        assert_eq!(of_first.1.parent, Some(first.0));
        assert_eq!(second.1.parent, Some(of_first.0), "made by the handler");
        assert_eq!(of_second.1.parent, Some(second.0));
        assert_eq!(of_first.1.events, ["in the handler"]);
    }
    [service, &behind].into_iter().for_each(apus::Port::shutdown);
    [serving, serving_behind].into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_fails_is_an_error_of_its_span() {
    let Pair { client_node, service, address, .. } = &setup();
    let client = client_node.client().unwrap();
    let fails = |begin: &dyn Fn(), error: &str, event: &str| {
        let root = root();
        root.in_scope(begin);
        let (_, call) = only(&root, "call");
        let field = |name| call.fields.get(name).map(String::as_str);
        assert_eq!((field("error.type"), field("otel.status_code")), (Some(error), Some("ERROR")));
        assert_eq!(call.events, [event]);
        closed(&root, "request")
    };
    let nobody = apus::Address::new(address.host, 4_444);
    let options = || CallOptions::new().deadline(Duration::from_millis(5));
    fails(&|| drop(client.call(nobody, "x").wait()), "NoSuchPort", "call failed");
    let wrong = apus::Address::new(([0; 4], 1).into(), 1);
    fails(&|| drop(client.call(wrong, "x").wait()), "UnspecifiedAddress", "call failed");
    fails(
        &|| assert!(client.send(wrong, "x", 1, Flush::Now).is_err()),
        "UnspecifiedAddress",
        "call failed",
    );
    fails(
        &|| drop(client.call(*address, "x").options(options()).wait()),
        "Deadline",
        "call failed",
    );
    fails(&|| drop(client.call(*address, "x").start().unwrap()), "Cancelled", "call given up");
    let cancel = || {
        let call = client.call(*address, "x").start().unwrap();
        call.cancel();
        assert_eq!(call.wait(), Err(CallError::Cancelled));
    };
    fails(&cancel, "Cancelled", "call failed");
    let queued = || {
        let client = client_node.client().unwrap();
        client.send(*address, "x", 1, Flush::Now).unwrap();
    };
    fails(&queued, "Cancelled", "call given up");
    while service.try_recv().is_ok() {}
    let root = root();
    let call = root.in_scope(|| client.call(*address, "y").start().unwrap());
    let mine = |request: &apus::Request| request.body() == "y";
    while !mine(&service.recv().unwrap()) {}
    assert!(call.wait().is_err());
    let (_, request) = only(&root, "request");
    assert_eq!(request.fields.get("error.type").map(String::as_str), Some("Abandoned"));
    assert_eq!(request.events, ["request given up"]);
}

#[test]
fn a_context_that_is_given_goes_before_that_of_the_span() {
    let Pair { client_node, service, address, .. } = &setup();
    let client = client_node.client().unwrap();
    let given = TraceContext::new([9; 16], [8; 8], 0).unwrap();
    let options = CallOptions::new().trace_context(given);
    let call = root().in_scope(|| client.call(*address, "x").options(options).start().unwrap());
    let request = service.recv().unwrap();
    assert_eq!(request.trace_context(), Some(given));
    let parent = with(request.span().id().unwrap().into_u64(), |span| span.parent);
    assert_eq!(parent, Some(u64::from_be_bytes([8; 8])));
    request.reply("x").unwrap();
    call.wait().unwrap();
}
