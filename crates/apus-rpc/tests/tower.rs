//! Layers of tower around methods and around calls.

#![cfg(feature = "tower")]

use std::future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apus_rpc::health::{Health, ServingStatus};
use apus_rpc::tower::{IncomingRequest, LayerError, OutgoingRequest};
use apus_rpc::{
    Bytes, Channel, ChannelBuilder, Code, Context, Response, Server, ServerBuilder, Status,
    StreamSender, Streaming,
};
use futures_lite::future::{block_on, poll_once, zip};
use tokio::sync::{Notify, Semaphore};
use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer};
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::util::MapRequestLayer;
use tower::{ServiceExt, service_fn};

use crate::health_frames::{request, response};
use crate::pair::{PORT, Served, address, node, served};

/// A channel with layers to a server.
fn layered(served: &Served, layers: impl FnOnce(ChannelBuilder) -> ChannelBuilder) -> Channel {
    layers(Channel::builder(&address(&served.node)).node(&node())).build().expect("a channel")
}

async fn echo(_: Context, body: Bytes) -> Result<Bytes, Status> {
    Ok(body)
}

/// Answers each request with itself.
async fn echo_all(
    _: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    while let Some(request) = requests.next().await {
        responses.send(request?).await?;
    }
    Ok(())
}

/// A server in a runtime of tokio, whose layers may have times.
async fn in_runtime(build: impl FnOnce(ServerBuilder<'_>) -> ServerBuilder<'_>) -> Channel {
    let server_node = node();
    apus_rpc::tokio::drive(&server_node).expect("a runtime");
    let server = build(Server::builder(&server_node)).spawner(apus_rpc::tokio::current());
    tokio::spawn(server.serve(PORT, future::pending()));
    Channel::builder(&address(&server_node)).node(&server_node).connect().await.expect("a channel")
}

#[tokio::test]
async fn a_timeout_of_the_server_ends_its_handlers() {
    let dropped = Arc::new(Notify::new());
    struct Sign(Arc<Notify>);
    impl Drop for Sign {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (sign, stream_sign) = (Arc::clone(&dropped), Arc::clone(&dropped));
    let channel = in_runtime(|server| {
        let server = server.route("/a.B/Hang", move |_, _| {
            let sign = Sign(Arc::clone(&sign));
            async move {
                future::pending::<()>().await;
                drop(sign);
                Ok("")
            }
        });
        let server = server.stream("/a.B/Watch", move |_, _, mut responses| {
            let sign = Sign(Arc::clone(&stream_sign));
            async move {
                responses.send("first").await?;
                future::pending::<()>().await;
                drop(sign);
                Ok(())
            }
        });
        server.route("/a.B/Echo", echo).layer(TimeoutLayer::new(Duration::from_millis(50)))
    })
    .await;
    assert_eq!(channel.unary("/a.B/Echo", "x").await.expect("in time").body(), "x");
    let status = channel.unary("/a.B/Hang", "").await.expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.may_have_executed());
    dropped.notified().await;
    let mut responses = channel.stream("/a.B/Watch").request("").expect("sent");
    assert_eq!(responses.next().await, Some(Ok("first".into())));
    let status = responses.next().await.expect("the end").expect_err("too late");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    dropped.notified().await;
}

#[test]
fn a_limit_of_the_server_is_that_of_all_its_methods() {
    let gate = Arc::new(Semaphore::new(0));
    let (inside, begun) = (Arc::clone(&gate), Arc::new(Semaphore::new(0)));
    let begins = Arc::clone(&begun);
    let served = served(|server| {
        let wait = move |_: Context, _: Bytes| {
            let (gate, begins) = (Arc::clone(&inside), Arc::clone(&begins));
            async move {
                begins.add_permits(1);
                gate.acquire().await.expect("open").forget();
                Ok("done")
            }
        };
        let server = server.layer(LoadShedLayer::new()).layer(ConcurrencyLimitLayer::new(1));
        server.route("/a.B/Wait", wait).route("/a.B/Echo", echo).stream("/a.B/All", echo_all)
    });
    let channel = &served.channel;
    block_on(async {
        let waits = async { channel.unary("/a.B/Wait", "").await };
        let others = async {
            begun.acquire().await.expect("open").forget();
            let status = channel.unary("/a.B/Echo", "").await.expect_err("one is inside");
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(!status.may_have_executed());
            let mut responses = channel.stream("/a.B/All").request("x").expect("sent");
            let status = responses.next().await.expect("the end").expect_err("one is inside");
            assert!(!status.may_have_executed(), "{status}");
            gate.add_permits(1);
        };
        assert_eq!(zip(waits, others).await.0.expect("a response").body(), "done");
        assert_eq!(channel.unary("/a.B/Echo", "x").await.expect("room again").body(), "x");
        let mut responses = channel.stream("/a.B/All").request("x").expect("sent");
        assert_eq!(responses.next().await, Some(Ok("x".into())));
        assert_eq!(responses.next().await, None);
    });
}

#[test]
fn the_first_layer_of_a_server_is_the_outermost() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = (Arc::clone(&order), Arc::clone(&order));
    let served = served(|server| {
        let server = server.layer(MapRequestLayer::new(move |mut request: IncomingRequest| {
            first.lock().expect("no panic").push("first");
            assert_eq!(request.path().as_str(), "/a.B/Echo");
            *request.message_mut().expect("no streams") = "changed".into();
            request
        }));
        let server = server.route("/a.B/Echo", |cx: Context, body: Bytes| async move {
            cx.set_metadata("before", "1").expect("a pair");
            cx.set_trailer("after", "2").expect("a pair");
            Ok(body)
        });
        server.layer(tower::layer::layer_fn(move |inner: apus_rpc::tower::IncomingService| {
            let second = Arc::clone(&second);
            service_fn(move |request: IncomingRequest| {
                second.lock().expect("no panic").push("second");
                let inner = inner.clone();
                async move {
                    let mut response: Response = inner.oneshot(request).await?;
                    let (metadata, trailers) = response.metadata_mut();
                    assert_eq!(
                        (metadata.get("before"), trailers.get("after")),
                        (Some("1"), Some("2"))
                    );
                    trailers.append("layer", "3").expect("a pair");
                    Ok::<_, LayerError>(response)
                }
            })
        }))
    });
    let response = served.channel.unary("/a.B/Echo", "x").wait().expect("a response");
    assert_eq!(response.body(), "changed");
    assert_eq!(response.metadata().get("before"), Some("1"));
    assert_eq!(
        (response.trailers().get("after"), response.trailers().get("layer")),
        (Some("2"), Some("3"))
    );
    assert_eq!(*order.lock().expect("no panic"), ["first", "second"]);
}

#[test]
fn a_layer_refuses_with_a_status_and_a_panic_ends_its_request_only() {
    let served = served(|server| {
        let server = server.route("/a.B/Echo", echo);
        server.layer(tower::layer::layer_fn(|inner: apus_rpc::tower::IncomingService| {
            service_fn(move |request: IncomingRequest| {
                let inner = inner.clone();
                async move {
                    match &request.message().expect("no streams")[..] {
                        b"refuse" => Err(Status::new(Code::PermissionDenied, "no").into()),
                        b"panic" => panic!("planted"),
                        _ => inner.oneshot(request).await,
                    }
                }
            })
        }))
    });
    let status = served.channel.unary("/a.B/Echo", "refuse").wait().expect_err("refused");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "no"));
    assert!(!status.may_have_executed());
    let status = served.channel.unary("/a.B/Echo", "panic").wait().expect_err("a panic");
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(served.channel.unary("/a.B/Echo", "x").wait().expect("a response").body(), "x");
}

#[tokio::test]
async fn a_timeout_of_a_channel_gives_the_call_up() {
    let (given_up, begun) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (seen, begins) = (Arc::clone(&given_up), Arc::clone(&begun));
    let served = served(|server| {
        server.route("/a.B/Echo", echo).route("/a.B/Hang", move |cx: Context, _: Bytes| {
            let (cancelled, seen) = (cx.cancelled(), Arc::clone(&seen));
            begins.add_permits(1);
            std::thread::spawn(move || {
                block_on(cancelled);
                seen.notify_one();
            });
            async { future::pending::<Result<Bytes, Status>>().await }
        })
    });
    let timeout = |time| layered(&served, |channel| channel.layer(TimeoutLayer::new(time)));
    let mut time = Duration::from_millis(25);
    // A short time may pass before the handler begins.
    while begun.try_acquire().is_err() {
        time *= 2;
        let status = timeout(time).unary("/a.B/Hang", "").await.expect_err("too late");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(status.may_have_executed());
    }
    given_up.notified().await;
    let channel = timeout(Duration::from_secs(600));
    assert_eq!(channel.unary("/a.B/Echo", "x").await.expect("in time").body(), "x");
}

#[test]
fn a_limit_of_a_channel_holds_calls_back() {
    let gate = Arc::new(Semaphore::new(0));
    let (inside, most) = (Arc::clone(&gate), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))));
    let (counted, begun) = (Arc::clone(&most), Arc::new(Semaphore::new(0)));
    let begins = Arc::clone(&begun);
    let served = served(|server| {
        server.route("/a.B/Wait", move |_, _| {
            let (gate, counted) = (Arc::clone(&inside), Arc::clone(&counted));
            let begins = Arc::clone(&begins);
            async move {
                let now = counted.0.fetch_add(1, Ordering::SeqCst) + 1;
                counted.1.fetch_max(now, Ordering::SeqCst);
                begins.add_permits(1);
                gate.acquire().await.expect("open").forget();
                counted.0.fetch_sub(1, Ordering::SeqCst);
                Ok("")
            }
        })
    });
    let limit = Arc::new(Semaphore::new(2));
    let layer = GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&limit));
    let channel = layered(&served, |channel| channel.layer(layer));
    block_on(async {
        let calls: Vec<_> = (0..5).map(|_| channel.unary("/a.B/Wait", "").into_future()).collect();
        let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
        for call in &mut calls {
            assert!(poll_once(call).await.is_none());
        }
        assert_eq!(limit.available_permits(), 0, "two calls are sent, and three wait");
        begun.acquire_many(2).await.expect("open").forget();
        gate.add_permits(5);
        for call in calls {
            call.await.expect("a response");
        }
    });
    assert_eq!(most.1.load(Ordering::SeqCst), 2);
    // A thread waits in the same way.
    gate.add_permits(1);
    channel.unary("/a.B/Wait", "").wait().expect("a response");
}

#[test]
fn a_layer_of_a_channel_sees_calls_and_may_repeat_them() {
    let (calls, fails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    let served = served(|server| {
        server.route("/a.B/Odd", move |cx: Context, body: Bytes| {
            let odd = count.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
            async move {
                assert_eq!(cx.metadata().get("layer"), Some("1"));
                if odd { Err(Status::new(Code::Aborted, "again")) } else { Ok(body) }
            }
        })
    });
    let seen = Arc::clone(&fails);
    let channel = layered(&served, |channel| {
        channel.layer(tower::layer::layer_fn(move |inner: apus_rpc::tower::OutgoingService| {
            let seen = Arc::clone(&seen);
            service_fn(move |mut request: OutgoingRequest| {
                let (inner, seen) = (inner.clone(), Arc::clone(&seen));
                async move {
                    assert!(request.remaining().is_some() && request.is_idempotent());
                    request.metadata_mut().append("layer", "1").expect("a pair");
                    let first = inner.clone().oneshot(request.clone()).await;
                    let Err(error) = first else { return first };
                    let status = error.downcast::<Status>().expect("a status");
                    assert_eq!(status.code(), Code::Aborted);
                    seen.fetch_add(1, Ordering::SeqCst);
                    inner.oneshot(request).await
                }
            })
        }))
    });
    let call = || channel.unary("/a.B/Odd", "x").idempotent().deadline(Duration::from_secs(60));
    assert_eq!(call().wait().expect("the second attempt").body(), "x");
    assert_eq!(block_on(async { call().await }).expect("the second attempt").body(), "x");
    assert_eq!((calls.load(Ordering::SeqCst), fails.load(Ordering::SeqCst)), (4, 2));
    // A channel within its layers is dropped as any other.
    let before = Arc::strong_count(&fails);
    drop(channel);
    assert!(Arc::strong_count(&fails) < before);
}

#[test]
fn the_time_of_a_call_passes_within_the_layers_of_its_channel() {
    let served = served(|server| server.route("/a.B/Echo", echo));
    // No call passes the layer.
    let closed = GlobalConcurrencyLimitLayer::with_semaphore(Arc::new(Semaphore::new(0)));
    let channel = layered(&served, |channel| channel.layer(closed));
    let call = || channel.unary("/a.B/Echo", "x").deadline(Duration::from_millis(20));
    for status in [call().wait(), block_on(async { call().await })] {
        let status = status.expect_err("no time");
        assert_eq!((status.code(), status.may_have_executed()), (Code::DeadlineExceeded, false));
    }
    // A layer that keeps the response.
    let channel = layered(&served, |channel| {
        channel.layer(tower::layer::layer_fn(|inner: apus_rpc::tower::OutgoingService| {
            service_fn(move |request: OutgoingRequest| {
                let inner = inner.clone();
                async move {
                    let response = inner.oneshot(request).await;
                    future::pending::<()>().await;
                    response
                }
            })
        }))
    });
    let call = channel.unary("/a.B/Echo", "x").deadline(Duration::from_millis(20));
    let status = call.wait().expect_err("no time");
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[apus_rpc::service(name = "a.Small")]
trait Small {
    async fn nothing(&self, cx: &Context) -> Result<(), Status>;
}

struct Nothing;

impl Small for Nothing {
    async fn nothing(&self, _: &Context) -> Result<(), Status> {
        future::pending().await
    }
}

type BuildWith = fn(ServerBuilder<'_>) -> ServerBuilder<'_>;

#[tokio::test]
async fn health_and_schemas_are_outside_of_the_layers_and_the_limit_of_a_server() {
    let layers: [BuildWith; 4] = [
        |server| server.layer(TimeoutLayer::new(Duration::ZERO)),
        |server| server.layer(LoadShedLayer::new()).layer(ConcurrencyLimitLayer::new(0)),
        |server| {
            server.layer(tower::layer::layer_fn(|_: apus_rpc::tower::IncomingService| {
                service_fn(|_: IncomingRequest| async {
                    Err::<Response, LayerError>("refused".into())
                })
            }))
        },
        |server| server.concurrency(0),
    ];
    for layer in layers {
        let health = Health::new();
        let added = health.clone();
        let channel = in_runtime(|server| layer(server).add(added).add(SmallServer::new(Nothing)));
        let channel = channel.await;
        let schema = apus_rpc::schema::Schema::of_server(&channel, "a.Small").await;
        assert_eq!(schema.expect("a schema"), SmallClient::schema());
        let check = channel.unary("/grpc.health.v1.Health/Check", request(""));
        assert_eq!(response(check.await.expect("a status").body()), 1);
        let mut watches = Vec::new();
        for _ in 0..3 {
            let call = channel.stream("/grpc.health.v1.Health/Watch");
            let (_, mut watch) = call.start_raw(request("").into(), true).expect("sent");
            let first = future::poll_fn(|task| watch.poll_chunk(task)).await;
            assert_eq!(first.map(|it| it.map(|it| response(&it))), Some(Ok(1)));
            watches.push(watch);
        }
        health.set("", ServingStatus::NotServing);
        for mut watch in watches {
            let second = future::poll_fn(|task| watch.poll_chunk(task)).await;
            assert_eq!(second.map(|it| it.map(|it| response(&it))), Some(Ok(2)));
        }
        channel.unary("/a.Small/Nothing", "").await.expect_err("refused");
    }
}
