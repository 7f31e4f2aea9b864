//! The methods of generated services in the histogram of requests, as a recorder of the program gets it.

#![cfg(feature = "metrics")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use apus_rpc::{Channel, Code, Server, Status};
use apus_tonic::AddTower;
use http::{Request, Response};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tonic::body::Body;
use tower::service_fn;

/// Methods of a server that have names.
const METHODS_MAX: usize = 1_000;

/// The number of requests by method and status.
static RECORDED: LazyLock<Mutex<BTreeMap<String, usize>>> = LazyLock::new(Mutex::default);

fn recorded() -> MutexGuard<'static, BTreeMap<String, usize>> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Requests;

struct Count(String);

impl HistogramFn for Count {
    fn record(&self, _: f64) {
        *recorded().entry(self.0.clone()).or_default() += 1;
    }
}

impl Recorder for Requests {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if key.name() != "rpc.server.call.duration" {
            return Histogram::noop();
        }
        let label = |name| key.labels().find(|it| it.key() == name).map_or("", |it| it.value());
        let text = format!("{} {}", label("rpc.method"), label("rpc.response.status_code"));
        Histogram::from_arc(Arc::new(Count(text)))
    }
}

/// A service that answers any path. Paths that contain "Fails" and requests with metadata "fails" are refused.
async fn any(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let fails = request.uri().path().contains("Fails") || request.headers().contains_key("fails");
    let response = Response::builder().header("grpc-status", if fails { "5" } else { "0" });
    Ok(response.body(Body::empty()).expect("a response"))
}

fn channel() -> Channel {
    static INSTALLED: LazyLock<()> =
        LazyLock::new(|| metrics::set_global_recorder(Requests).expect("the only recorder"));
    *INSTALLED;
    Channel::in_memory(Server::in_memory().add_tower(service_fn(any)))
}

/// Calls a method, and returns the status of the call.
fn call(channel: &Channel, path: &str, metadata: Option<&str>) -> Result<(), Status> {
    let mut call = channel.stream(path.to_owned());
    if let Some(name) = metadata {
        call = call.metadata(name, "1");
    }
    let mut responses = call.request("")?;
    futures_util::FutureExt::now_or_never(responses.trailers()).expect("answered at once").map(drop)
}

/// Waits until requests are recorded.
#[track_caller]
fn assert_recorded(method_and_status: &str, expected: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let number = recorded().get(method_and_status).copied().unwrap_or_default();
        if number == expected {
            return;
        }
        assert!(number < expected && Instant::now() < until, "{method_and_status}: {number}");
        thread::yield_now();
    }
}

#[test]
fn a_method_has_its_name_once_it_has_answered() {
    let channel = channel();
    let not_found = |path: &str, metadata| {
        let status = call(&channel, path, metadata).expect_err("refused");
        assert_eq!(status.code(), Code::NotFound);
    };
    not_found("/a.Some/Good", Some("fails"));
    assert_recorded("_OTHER NOT_FOUND", 1);
    for number in 1..=2 {
        call(&channel, "/a.Some/Good", None).expect("a response");
        assert_recorded("a.Some/Good OK", number);
    }
    not_found("/a.Some/Good", Some("fails"));
    assert_recorded("a.Some/Good NOT_FOUND", 1);
    for number in 2..=3 {
        not_found("/a.Some/Fails", None);
        assert_recorded("_OTHER NOT_FOUND", number);
    }
    assert!(recorded().keys().all(|text| !text.starts_with("a.Some/Fails")));
}

#[test]
fn a_server_names_a_thousand_methods() {
    let channel = channel();
    for number in 1..=METHODS_MAX {
        call(&channel, &format!("/a.Many/{number}"), None).expect("a response");
    }
    for number in 1..=2 {
        call(&channel, "/a.Many/More", None).expect("a response");
        assert_recorded("_OTHER OK", number);
    }
    call(&channel, "/a.Many/1", None).expect("a response");
    assert_recorded("a.Many/1 OK", 2);
    assert_recorded(&format!("a.Many/{METHODS_MAX} OK"), 1);
}
