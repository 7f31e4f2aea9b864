//! Spans and histograms of calls and requests, as a subscriber and a recorder of the program get them.

#![cfg(all(feature = "metrics", feature = "tower", feature = "tracing"))]

mod pair;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::future;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use apus::tracing::{Propagator, set_propagator};
use apus_rpc::health::Health;
use apus_rpc::{
    Bytes, Channel, Code, Context, Server, Status, StreamSender, Streaming, TraceContext,
};
use futures_lite::future::block_on;
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Span, Subscriber};
use tracing_subscriber::layer::{self, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use pair::{Served, served};

/// A span: its fields, and its parent.
#[derive(Clone, Default, Debug)]
struct Seen {
    name: &'static str,
    target: String,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    is_closed: bool,
    /// The span of another process that the propagator has made the parent.
    remote: Option<u64>,
}

/// All that the program has seen of spans and histograms.
#[derive(Default)]
struct Recorded {
    spans: BTreeMap<u64, Seen>,
    /// Names and labels of histograms, with the values.
    values: BTreeMap<String, Vec<f64>>,
    units: BTreeMap<String, Option<Unit>>,
}

static RECORDED: LazyLock<Mutex<Recorded>> = LazyLock::new(Mutex::default);

/// The number of values so far, and the threads that wait for another.
static VALUES: Mutex<u64> = Mutex::new(0);
static RECORDED_ONE: Condvar = Condvar::new();

fn recorded() -> MutexGuard<'static, Recorded> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Collect;

struct Fields<'s>(&'s mut Seen);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.fields.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> layer::Layer<S> for Collect {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: layer::Context<'_, S>) {
        let span = cx.span(id).expect("a new span");
        let parent = span.parent().map(|parent| parent.id().into_u64());
        let (name, target) = (span.name(), attributes.metadata().target().to_owned());
        let mut seen = Seen { name, target, parent, ..Seen::default() };
        attributes.record(&mut Fields(&mut seen));
        recorded().spans.insert(id.into_u64(), seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: layer::Context<'_, S>) {
        if let Some(seen) = recorded().spans.get_mut(&id.into_u64()) {
            values.record(&mut Fields(seen));
        }
    }

    fn on_close(&self, id: Id, _: layer::Context<'_, S>) {
        // The registry gives a number to several spans, one after the other.
        let mut recorded = recorded();
        if let Some(mut seen) = recorded.spans.remove(&id.into_u64()) {
            seen.is_closed = true;
            let key = (1 << 63) + recorded.spans.len() as u64;
            let free = (key..).find(|key| !recorded.spans.contains_key(key)).expect("a number");
            recorded.spans.insert(free, seen);
        }
    }
}

/// The ids of spans in one trace.
struct Ids;

impl Propagator for Ids {
    fn context(&self, span: &Span) -> Option<TraceContext> {
        TraceContext::new([7; 16], span.id()?.into_u64().to_be_bytes(), TraceContext::SAMPLED)
    }

    fn set_parent(&self, span: &Span, parent: TraceContext) {
        let Some(id) = span.id() else { return };
        if let Some(seen) = recorded().spans.get_mut(&id.into_u64()) {
            seen.remote = Some(u64::from_be_bytes(parent.span_id()));
        }
    }
}

struct Values;

struct Append(String);

impl HistogramFn for Append {
    fn record(&self, value: f64) {
        recorded().values.entry(self.0.clone()).or_default().push(value);
        *VALUES.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        RECORDED_ONE.notify_all();
    }
}

impl Recorder for Values {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        recorded().units.insert(name.as_str().to_owned(), unit);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut text = key.name().to_owned();
        let mut labels: Vec<_> = key.labels().map(|it| (it.key(), it.value())).collect();
        labels.sort_unstable();
        for (name, value) in labels.into_iter().filter(|(name, _)| !name.starts_with("server.")) {
            write!(text, " {name}={value}").expect("a text");
        }
        Histogram::from_arc(Arc::new(Append(text)))
    }
}

/// Installs both for the process, once.
fn install() {
    static INSTALLED: LazyLock<()> = LazyLock::new(|| {
        let subscriber = tracing_subscriber::registry().with(Collect);
        tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
        set_propagator(Ids).expect("the only propagator");
        metrics::set_global_recorder(Values).expect("the only recorder");
    });
    *INSTALLED;
}

/// The number of values of a histogram whose text has these parts.
fn count(parts: &[&str]) -> usize {
    let recorded = recorded();
    let matching = recorded
        .values
        .iter()
        .filter(|(text, _)| parts.iter().all(|part| text.split(' ').any(|word| word == *part)));
    matching.map(|(_, values)| values.len()).sum()
}

/// Spans of the services with this kind and method.
fn spans(kind: &str, method: &str) -> Vec<Seen> {
    let recorded = recorded();
    let is_it = |seen: &&Seen| {
        seen.target == "apus_rpc"
            && seen.fields.get("otel.kind").is_some_and(|it| it == kind)
            && seen.fields.get("rpc.method").is_some_and(|it| it == method)
    };
    recorded.spans.values().filter(is_it).cloned().collect()
}

fn service(name: &'static str) -> Served {
    install();
    served(move |server| {
        let server = server.route(&format!("/{name}/Echo"), |_: Context, body: Bytes| async {
            futures_lite::future::yield_now().await;
            tracing::info_span!("inside").in_scope(|| Ok::<_, Status>(body))
        });
        let server = server.route(&format!("/{name}/NotFound"), |_, _| async {
            Err::<Bytes, _>(Status::new(Code::NotFound, "planted"))
        });
        let server = server.route(&format!("/{name}/Panic"), |_, _| async {
            if true {
                panic!("planted");
            }
            Ok("")
        });
        let server = server.route(&format!("/{name}/Hang"), |_, _| async {
            future::pending::<Result<Bytes, Status>>().await
        });
        server.stream(&format!("/{name}/Lengths"), lengths)
    })
}

async fn lengths(
    _: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    while let Some(request) = requests.next().await {
        responses.send(request?.len().to_string()).await?;
    }
    Ok(())
}

/// Waits until the server has recorded a request: its response is sent before.
#[track_caller]
fn assert_recorded(parts: &[&str], expected: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    let mut number = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
    while count(parts) != expected && Instant::now() < until {
        let waited = RECORDED_ONE.wait_timeout(number, Duration::from_secs(1));
        number = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    assert_eq!(count(parts), expected, "{parts:?}");
}

const CLIENT: &str = "rpc.client.call.duration";
const SERVER: &str = "rpc.server.call.duration";

#[test]
fn calls_are_measured_with_the_labels_of_the_convention() {
    let served = service("m.Calls");
    let channel = &served.channel;
    for waits in [false, true] {
        for method in ["Echo", "NotFound", "Panic", "Other"] {
            let call = channel.unary(format!("/m.Calls/{method}"), "x");
            let _ = if waits { call.wait() } else { block_on(call.into_future()) };
        }
    }
    let call = channel.unary("/m.Calls/Hang", "").deadline(Duration::from_millis(20));
    call.wait().expect_err("no time");
    let code = |name: &str| format!("rpc.response.status_code={name}");
    let table = [
        (CLIENT, "m.Calls/Echo", "OK", false, 2),
        (SERVER, "m.Calls/Echo", "OK", false, 2),
        (CLIENT, "m.Calls/NotFound", "NOT_FOUND", true, 2),
        // The client's mistake is no error of the server.
        (SERVER, "m.Calls/NotFound", "NOT_FOUND", false, 2),
        (CLIENT, "m.Calls/Panic", "INTERNAL", true, 2),
        (SERVER, "m.Calls/Panic", "INTERNAL", true, 2),
        (CLIENT, "m.Calls/Hang", "DEADLINE_EXCEEDED", true, 1),
        (CLIENT, "m.Calls/Other", "UNIMPLEMENTED", true, 2),
        // The path is the client's word, which has no bound.
        (SERVER, "m.Calls/Other", "UNIMPLEMENTED", true, 0),
    ];
    for (histogram, method, status, is_error, expected) in table {
        let method = format!("rpc.method={method}");
        let (status, error) = (code(status), format!("error.type={status}"));
        assert_recorded(&[histogram, "rpc.system.name=apus", &method, &status], expected);
        let with_error = if is_error { expected } else { 0 };
        assert_eq!(count(&[histogram, &method, &status, &error]), with_error, "{method} {status}");
    }
    assert!(count(&[SERVER, "rpc.method=_OTHER", &code("UNIMPLEMENTED")]) >= 2);
    assert_eq!(recorded().units.get(SERVER), Some(&Some(Unit::Seconds)));
    let recorded = recorded();
    let all = || recorded.values.values().flatten();
    assert!(all().all(|&seconds| (0.0..60.0).contains(&seconds)));
}

#[test]
fn a_call_that_is_dropped_is_cancelled() {
    let served = service("m.Drops");
    let mut call = Box::pin(served.channel.unary("/m.Drops/Hang", "").into_future());
    assert!(block_on(futures_lite::future::poll_once(&mut call)).is_none());
    drop(call);
    let method = "rpc.method=m.Drops/Hang";
    let code = "rpc.response.status_code=CANCELLED";
    assert_recorded(&[CLIENT, method, code, "error.type=CANCELLED"], 1);
    // A call that was never begun is none.
    drop(served.channel.unary("/m.Drops/Echo", ""));
    assert_eq!(count(&[CLIENT, "rpc.method=m.Drops/Echo"]), 0);
}

#[test]
fn streams_are_measured_to_their_end() {
    let served = service("m.Streams");
    block_on(async {
        let (mut requests, mut responses) =
            served.channel.stream("/m.Streams/Lengths").start().expect("a call");
        requests.send("abc").await.expect("room");
        assert_eq!(responses.next().await, Some(Ok("3".into())));
        assert_eq!(count(&[CLIENT, "rpc.method=m.Streams/Lengths"]), 0, "it goes on");
        requests.close();
        assert_eq!(responses.next().await, None);
    });
    let (method, ok) = ("rpc.method=m.Streams/Lengths", "rpc.response.status_code=OK");
    assert_recorded(&[CLIENT, method, ok], 1);
    assert_recorded(&[SERVER, method, ok], 1);
    let responses = served.channel.stream("/m.Streams/Lengths").request("a").expect("sent");
    drop(responses);
    assert_recorded(&[CLIENT, method, "rpc.response.status_code=CANCELLED"], 1);
    assert_eq!(spans("client", "m.Streams/Lengths").len(), 2);
}

#[test]
fn spans_have_names_and_codes_and_are_one_trace() {
    let served = service("m.Spans");
    let outer = tracing::info_span!("outer");
    outer.in_scope(|| {
        block_on(served.channel.unary("/m.Spans/Echo", "x").into_future()).expect("a response")
    });
    served.channel.unary("/m.Spans/NotFound", "").wait().expect_err("planted");
    assert_recorded(&[SERVER, "rpc.method=m.Spans/Echo"], 1);
    assert_recorded(&[SERVER, "rpc.method=m.Spans/NotFound"], 1);
    let client = &spans("client", "m.Spans/Echo")[0];
    let fields = |seen: &Seen, name: &str| seen.fields.get(name).cloned().unwrap_or_default();
    assert_eq!(client.parent, outer.id().map(|id| id.into_u64()));
    assert!(client.is_closed);
    let expected = [
        ("otel.name", "m.Spans/Echo"),
        ("rpc.system.name", "apus"),
        ("rpc.response.status_code", "OK"),
        ("server.address", "127.0.0.1"),
        ("server.port", "4000"),
        ("error.type", ""),
    ];
    for (name, value) in expected {
        assert_eq!(fields(client, name), value, "{name}");
    }
    let failed = &spans("client", "m.Spans/NotFound")[0];
    assert_eq!(fields(failed, "otel.status_code"), "ERROR");
    assert_eq!(fields(failed, "error.type"), "NOT_FOUND");
    let server = &spans("server", "m.Spans/NotFound")[0];
    assert_eq!(fields(server, "otel.status_code"), "");
    assert_eq!(fields(server, "rpc.response.status_code"), "NOT_FOUND");
    // The span of the server is a child of the transport's, and that is a child of the client's over the network.
    let server = &spans("server", "m.Spans/Echo")[0];
    assert!(server.parent.is_some());
    let recorded = recorded();
    let transport = recorded.spans.values().filter(|seen| seen.target == "apus");
    assert!(transport.filter(|seen| seen.name == "request").any(|seen| seen.remote.is_some()));
    assert!(recorded.spans.values().any(|seen| seen.name == "inside" && seen.parent.is_some()));
}

#[test]
fn calls_within_memory_are_observed_as_well() {
    install();
    let echo = |_: Context, body: Bytes| async move { Ok(body) };
    let channel = Channel::in_memory(Server::in_memory().route("/m.Memory/Echo", echo));
    channel.unary("/m.Memory/Echo", "x").wait().expect("a response");
    for histogram in [CLIENT, SERVER] {
        assert_recorded(&[histogram, "rpc.method=m.Memory/Echo"], 1);
    }
    assert_eq!(spans("server", "m.Memory/Echo").len(), 1);
}

#[test]
fn requests_of_a_fallback_have_no_names_of_clients() {
    install();
    let served = served(|server| {
        server.fallback(|cx: Context, _: Streaming, mut responses: StreamSender| async move {
            if cx.path().as_str() == "/m.Fallback/Known" {
                cx.note_known_method();
            }
            responses.send(cx.path().as_str().to_owned()).await
        })
    });
    for path in ["Any0", "Any1", "Any2", "Known"] {
        let path = format!("/m.Fallback/{path}");
        let mut responses = served.channel.stream(path).request("x").expect("sent");
        block_on(responses.next()).expect("a message").expect("a message");
        block_on(responses.trailers()).expect("the end");
    }
    assert_recorded(&[SERVER, "rpc.method=_OTHER", "rpc.response.status_code=OK"], 3);
    for number in 0..3 {
        assert_eq!(count(&[SERVER, &format!("rpc.method=m.Fallback/Any{number}")]), 0);
    }
    let ok = "rpc.response.status_code=OK";
    assert_recorded(&[SERVER, "rpc.method=m.Fallback/Known", ok], 1);
}

#[test]
fn the_watches_of_a_channel_are_no_calls_of_the_program() {
    install();
    let health = Health::new();
    let served = served(|server| server.add(health.clone()));
    let channel = Channel::builder(&pair::address(&served.node)).node(&pair::node());
    let channel = channel.health("").build().expect("a channel");
    while health.watchers() == 0 {
        thread::yield_now();
    }
    drop(channel);
    // The server's figures have them: another program may be the client.
    assert_recorded(&[SERVER, "rpc.method=grpc.health.v1.Health/Watch"], 1);
    assert_eq!(count(&[CLIENT, "rpc.method=grpc.health.v1.Health/Watch"]), 0);
    assert!(spans("client", "grpc.health.v1.Health/Watch").is_empty());
}

#[test]
fn requests_beyond_a_limit_have_the_name_of_their_method() {
    install();
    let served = served(|server| {
        let server = server.route("/m.Limited/Any", |_, _| async { Ok("") });
        server.fallback(|_, _, _| async { Ok(()) }).concurrency(0)
    });
    for (path, metadata) in [("Any", None), ("Any", Some("a")), ("Other", None)] {
        let mut call = served.channel.unary(format!("/m.Limited/{path}"), "");
        if let Some(value) = metadata {
            call = call.metadata("name", value);
        }
        assert_eq!(call.wait().expect_err("no room").code(), Code::ResourceExhausted);
    }
    let code = "rpc.response.status_code=RESOURCE_EXHAUSTED";
    assert_recorded(&[SERVER, "rpc.method=m.Limited/Any", code], 2);
    assert_recorded(&[SERVER, "rpc.method=_OTHER", code], 1);
    assert_eq!(served.counters.over_limits(), 3);
}

#[test]
fn a_stream_that_the_server_ends_for_a_limit_has_the_code_of_its_client() {
    install();
    let served = served(|server| {
        let early = |_: Context, requests: Streaming, mut responses: StreamSender| async move {
            responses.send_head();
            future::pending::<()>().await;
            drop(requests);
            Ok(())
        };
        let long = |cx: Context, _: Streaming, mut responses: StreamSender| async move {
            cx.set_metadata("long", "x".repeat(100_000)).expect("a pair");
            responses.send_head();
            future::pending().await
        };
        let server = server.stream("/m.Limits/Early", early).stream("/m.Limits/Long", long);
        server.stream_buffer_per_host(1 << 10)
    });
    let code = "rpc.response.status_code=RESOURCE_EXHAUSTED";
    for (method, length) in [("Early", 2 << 10), ("Long", 0)] {
        let call = served.channel.stream(format!("/m.Limits/{method}"));
        let mut responses = call.request(vec![7; length]).expect("sent");
        let status = block_on(responses.next()).expect("the end").expect_err("a limit");
        assert_eq!(status.code(), Code::ResourceExhausted);
        for histogram in [CLIENT, SERVER] {
            assert_recorded(&[histogram, &format!("rpc.method=m.Limits/{method}"), code], 1);
        }
    }
}

#[test]
fn a_call_through_layers_has_the_address_of_its_server() {
    let served = service("m.Layers");
    let channel = Channel::builder(&pair::address(&served.node)).node(&pair::node());
    let layer = tower::limit::ConcurrencyLimitLayer::new(10);
    let channel = channel.layer(layer).build().expect("a channel");
    channel.unary("/m.Layers/Echo", "x").wait().expect("a response");
    block_on(channel.unary("/m.Layers/Echo", "x").into_future()).expect("a response");
    let calls = spans("client", "m.Layers/Echo");
    assert_eq!(calls.len(), 2, "one span for each call");
    for call in calls {
        assert_eq!(call.fields.get("server.address").map(String::as_str), Some("127.0.0.1"));
        assert_eq!(call.fields.get("server.port").map(String::as_str), Some("4000"));
    }
    let parts = [CLIENT, "rpc.method=m.Layers/Echo", "rpc.response.status_code=OK"];
    assert_recorded(&parts, 2);
}

#[test]
fn a_detached_call_has_no_parent_and_keeps_its_own_context() {
    let served = service("m.Detached");
    let outer = tracing::info_span!("handler");
    outer.in_scope(|| {
        let call = served.channel.unary("/m.Detached/Echo", "x").detached();
        call.wait().expect("a response");
    });
    assert_eq!(spans("client", "m.Detached/Echo")[0].parent, None);
}

#[test]
fn a_response_that_is_refused_is_recorded_with_its_code() {
    install();
    let served = served(|server| {
        server.stream(
            "/m.Refused/Long",
            |_, _: Streaming, mut responses: StreamSender| async move {
                responses.send("four").await?;
                future::pending::<Result<(), Status>>().await
            },
        )
    });
    let limits = apus_rpc::envelope::EnvelopeLimits::new().frame_max(3);
    let channel = Channel::builder(&pair::address(&served.node)).node(&pair::node());
    let channel = channel.limits(limits).build().expect("a channel");
    let mut responses = channel.stream("/m.Refused/Long").request("x").expect("sent");
    block_on(responses.next()).expect("the end").expect_err("four bytes");
    drop(responses);
    let method = "rpc.method=m.Refused/Long";
    assert_recorded(&[CLIENT, method, "rpc.response.status_code=RESOURCE_EXHAUSTED"], 1);
    assert_eq!(count(&[CLIENT, method, "rpc.response.status_code=CANCELLED"]), 0);
}
