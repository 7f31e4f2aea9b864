//! Calls with one request and one response.

use std::future;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use apus::{Client, Flush};
use apus_rpc::envelope::{EnvelopeLimits, ResponseHead};
use apus_rpc::{Bytes, Channel, Code, Context, Metadata, Server, Status, StreamSender, Streaming};
use futures_lite::future::{block_on, zip};

use crate::pair;
use crate::pair::{PORT, address, node, served};

async fn echo(_: Context, body: Bytes) -> Result<Bytes, Status> {
    Ok(body)
}

#[test]
fn a_thread_waits_and_a_task_awaits() {
    //= docs/rpc-wire.md#E11
    let served = served(|server| server.route("/a.B/Echo", echo));
    let response = served.channel.unary("/a.B/Echo", "hello").wait().expect("a response");
    assert_eq!(response.body(), "hello");
    let calls = zip(
        served.channel.unary("/a.B/Echo", "one").into_future(),
        served.channel.unary("/a.B/Echo", vec![7; 300_000]).into_future(),
    );
    let (one, long) = block_on(calls);
    assert_eq!(one.expect("a response").into_body(), "one");
    assert_eq!(long.expect("a response").into_body(), vec![7; 300_000]);
    assert_eq!((served.counters.begun(), served.counters.succeeded()), (3, 3));
}

#[test]
fn a_server_may_be_awaited() {
    let server_node = node();
    let serving = Server::builder(&server_node).route("/a.B/Echo", echo);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    // Any future ends a server.
    let shutdown = apus_end(ended);
    let serving = serving.serve(PORT, shutdown);
    let server = thread::spawn(move || block_on(serving));
    let node = node();
    let channel = Channel::builder(&address(&server_node)).node(&node).build().expect("a channel");
    for _ in 0..200 {
        channel.unary("/a.B/Echo", "hello").wait().expect("a response");
    }
    drop(end);
    let drained = server.join().expect("no panic").expect("the port was opened");
    assert_eq!((drained.finished, drained.cancelled), (0, 0));
}

/// Ready when the sender is dropped.
async fn apus_end(ended: std::sync::mpsc::Receiver<()>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut ended = Some(ended);
    future::poll_fn(move |task| {
        if let Some(ended) = ended.take() {
            let (waker, sender) = (task.waker().clone(), sender.clone());
            thread::spawn(move || {
                let _ = ended.recv();
                let _ = sender.send(());
                waker.wake();
            });
        }
        match receiver.try_recv() {
            Ok(()) => std::task::Poll::Ready(()),
            Err(_) => std::task::Poll::Pending,
        }
    })
    .await;
}

#[test]
fn a_handler_that_has_to_wait_goes_on_in_a_task() {
    let served = served(|server| {
        server.route("/a.B/Wait", |cx: Context, body: Bytes| async move {
            let before = thread::current().name().map(str::to_owned);
            let mut polls = 0;
            future::poll_fn(|task| {
                polls += 1;
                task.waker().wake_by_ref();
                if polls > 3 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            assert_ne!(thread::current().name().map(str::to_owned), before, "another thread");
            assert_eq!(Context::current().map(|now| now.path().clone()), Some(cx.path().clone()));
            Ok(body)
        })
    });
    for _ in 0..20 {
        let response = served.channel.unary("/a.B/Wait", "x").wait().expect("a response");
        assert_eq!(response.body(), "x");
    }
}

#[test]
fn metadata_and_trailers_travel() {
    let served = served(|server| {
        server.route("/a.B/Meta", |cx: Context, _: Bytes| async move {
            assert_eq!(cx.metadata().get("x-tenant-id"), Some("7"));
            assert_eq!(cx.metadata().get_bin("a-bin").map(|b| &b[..]), Some(&b"\xFF"[..]));
            cx.set_metadata("server", "s").expect("a pair");
            cx.set_trailer("cost", "3").expect("a pair");
            match cx.metadata().get("fail") {
                Some(text) => Err(Status::new(Code::NotFound, text.to_owned()).with_details("d")),
                None => Ok("ok"),
            }
        })
    });
    let call = || {
        let call = served.channel.unary("/a.B/Meta", "").metadata("x-tenant-id", "7");
        call.metadata_bin("a-bin", &b"\xFF"[..])
    };
    let response = call().wait().expect("a response");
    assert_eq!(response.metadata().get("server"), Some("s"));
    assert_eq!(response.trailers().get("cost"), Some("3"));
    let mut more = Metadata::new();
    more.append("fail", "no such thing").expect("a pair");
    let status = call().all_metadata(more).wait().expect_err("an error");
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such thing"));
    assert_eq!(status.details(), "d");
    assert_eq!(status.metadata().get("cost"), Some("3"));
    assert_eq!(status.metadata().get("server"), Some("s"));
    assert!(status.may_have_executed());
}

#[test]
fn an_unknown_method_was_not_executed() {
    //= docs/rpc-wire.md#E14
    let served = served(|server| server.route("/a.B/Echo", echo));
    let status = served.channel.unary("/a.B/Other", "x").wait().expect_err("no method");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(!status.may_have_executed() && status.message().contains("/a.B/Other"), "{status}");
    assert_eq!(served.counters.unknown_methods(), 1);
}

#[test]
fn a_fallback_has_all_other_methods() {
    let named = async |cx: Context, mut body: Streaming, mut response: StreamSender| {
        let mut length = 0;
        while let Some(chunk) = future::poll_fn(|task| body.poll_chunk(task)).await {
            length += chunk?.len();
        }
        response.send_raw(format!("{} {length}", cx.path()).into()).await
    };
    let served = served(|server| server.route("/a.B/Echo", echo).fallback(named));
    let call = |path| served.channel.unary(path, "xyz").wait().expect("a response").into_body();
    assert_eq!(call("/a.B/Echo"), "xyz");
    assert_eq!(call("/a.B/Other"), "/a.B/Other 3");
    assert_eq!(call("/c/d/e"), "/c/d/e 3");
    assert_eq!(served.counters.unknown_methods(), 0);
    block_on(async {
        let call = || served.channel.stream("/c.D/E");
        let (sender, mut whole) = call().start_raw("xyz".into(), true).expect("a call");
        assert!(sender.is_none());
        let chunk = future::poll_fn(|task| whole.poll_chunk(task)).await;
        assert_eq!(chunk.expect("a chunk").expect("a response"), "/c.D/E 3");
        assert!(future::poll_fn(|task| whole.poll_chunk(task)).await.is_none());
        assert!(whole.trailers().await.expect("a status").is_empty());
        let (sender, mut parts) = call().start_raw(Bytes::new(), false).expect("a call");
        let mut sender = sender.expect("more follows");
        sender.send_raw(vec![7; 100_000].into()).await.expect("room");
        sender.send_raw("x".into()).await.expect("room");
        sender.close();
        let chunk = future::poll_fn(|task| parts.poll_chunk(task)).await;
        assert_eq!(chunk.expect("a chunk").expect("a response"), "/c.D/E 100001");
    });
}

#[test]
fn misuse_is_found_before_anything_is_sent() {
    let served = served(|server| server.route("/a.B/Echo", echo));
    let calls = [
        served.channel.unary("no path", "x"),
        served.channel.unary("/a.B/Echo", "x").metadata("A", "x"),
        served.channel.unary("/a.B/Echo", "x").deadline(Duration::ZERO),
        served.channel.unary("/a.B/Echo", "x").metadata("a", "x".repeat(20_000)),
    ];
    let codes = calls.map(|call| {
        let status = call.wait().expect_err("misuse");
        assert!(!status.may_have_executed(), "{status}");
        status.code()
    });
    let expected = [
        Code::InvalidArgument,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
    ];
    assert_eq!(codes, expected);
    assert_eq!(served.counters.begun(), 0);
}

#[test]
fn a_panic_is_internal_and_the_server_goes_on() {
    async fn later(_: Context, _: Bytes) -> Result<Bytes, Status> {
        futures_lite::future::yield_now().await;
        panic!("planted");
    }
    fn at_once(_: Context, _: Bytes) -> future::Ready<Result<Bytes, Status>> {
        panic!("planted");
    }
    let served = served(|server| {
        let server = server.route("/a.B/Later", later).route("/a.B/AtOnce", at_once);
        let server = server.route("/a.B/Echo", echo).route("/a.B/Refused", echo);
        server.interceptor(|call| match call.path().method() {
            "Refused" => panic!("planted"),
            _ => Ok(()),
        })
    });
    for path in ["/a.B/Later", "/a.B/AtOnce"] {
        let status = served.channel.unary(path, "x").wait().expect_err("a panic");
        assert_eq!((status.code(), status.message()), (Code::Internal, "the handler panicked"));
        assert!(status.may_have_executed());
    }
    // A panic outside of a handler is that of the request's thread.
    let status = served.channel.unary("/a.B/Refused", "x").wait().expect_err("a panic");
    assert_eq!(status.code(), Code::Internal);
    served.channel.unary("/a.B/Echo", "x").wait().expect("a response");
    assert_eq!(served.counters.panics(), 3);
}

#[test]
fn limits_have_their_status() {
    //= docs/rpc-wire.md#E15
    //= docs/rpc-wire.md#E17
    let limits = EnvelopeLimits::new().frame_max(1000).pairs_max(1);
    let served = served(|server| server.route("/a.B/Echo", echo).limits(limits));
    let status = served.channel.unary("/a.B/Echo", vec![0; 1001]).wait().expect_err("too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!status.may_have_executed() && status.message().contains("frame_max"), "{status}");
    let call = served.channel.unary("/a.B/Echo", "x").metadata("a", "1").metadata("b", "2");
    let status = call.wait().expect_err("too many pairs");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(!status.may_have_executed() && status.message().contains("pairs_max"), "{status}");
    let counts: Vec<_> =
        served.counters.refusals().iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [("too_many_pairs", 1), ("frame_too_long", 1)]);
}

#[test]
fn a_client_refuses_long_responses() {
    //= docs/rpc-wire.md#E16
    let served = served(|server| server.route("/a.B/Echo", echo));
    let node = node();
    let limits = EnvelopeLimits::new().frame_max(10);
    let channel = Channel::builder(&address(&served.node)).node(&node).limits(limits);
    let channel = channel.build().expect("a channel");
    let status = channel.unary("/a.B/Echo", vec![0; 11]).wait().expect_err("too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.may_have_executed() && status.message().contains("frame_max"), "{status}");
    assert_eq!(channel.refusals().total(), 1);
}

/// Sends bytes that no channel sends.
fn raw(client: &Client, served: &pair::Served, message: Vec<u8>) -> Status {
    client.send(served.channel.address(), message, 0, Flush::Now).expect("sent");
    let message = client.recv().expect("a response").result.expect("a response");
    let (head, _) = ResponseHead::decode(&message, &EnvelopeLimits::new()).expect("an envelope");
    head.end.expect("a status")
}

#[test]
fn messages_without_a_valid_envelope_get_a_status() {
    //= docs/rpc-wire.md#E1
    //= docs/rpc-wire.md#E11
    //= docs/rpc-wire.md#E15
    let served = served(|server| server.route("/a.B/Echo", echo));
    let node = node();
    let client = node.client().expect("a client");
    let table: [(&[u8], Code); 6] = [
        (b"hello", Code::Unimplemented),
        (b"\xA2", Code::Unimplemented),
        (b"\xA1", Code::Internal),
        (b"\xA1\x09\0\0\0\0\0\0\0\0\0", Code::Unimplemented),
        // OPEN without END.
        (b"\xA1\x01\0\0\0\0\0\0\0\0\0\x09/a.B/Echo\0", Code::Unimplemented),
        (b"\xA1\x01\x01\0\0\0\0\0\0\0\0\x09/a.B/Echo\x05", Code::Internal),
    ];
    for (message, code) in table {
        let status = raw(&client, &served, message.to_vec());
        assert_eq!(status.code(), code, "{message:?}: {status}");
        assert!(!status.may_have_executed(), "{message:?}: {status}");
    }
    assert_eq!(served.counters.begun(), 0);
    served.channel.unary("/a.B/Echo", "x").wait().expect("other calls go on");
}

#[test]
fn interceptors_change_and_refuse() {
    let served = served(|server| {
        let server = server.route("/a.B/Echo", |cx: Context, _: Bytes| async move {
            let user = cx.metadata().get("x-user-id").map(str::to_owned);
            Ok(user.unwrap_or_default())
        });
        server.interceptor(|call| {
            assert!(call.peer().host.ip().is_loopback() && call.identity().is_none());
            match call.metadata().get("authorization") {
                Some("Bearer ada") => {
                    call.metadata_mut().append("x-user-id", "ada").expect("a pair");
                    Ok(())
                }
                _ => Err(Status::new(Code::Unauthenticated, "no token")),
            }
        })
    });
    let status = served.channel.unary("/a.B/Echo", "").wait().expect_err("no token");
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(!status.may_have_executed());
    let node = node();
    let channel = Channel::builder(&address(&served.node)).node(&node);
    let channel = channel.interceptor(|call| {
        assert_eq!(call.path().as_str(), "/a.B/Echo");
        let result = call.metadata_mut().append("authorization", "Bearer ada");
        result.map_err(|error| Status::new(Code::Internal, error.to_string()))
    });
    let response = channel.build().expect("a channel").unary("/a.B/Echo", "").wait();
    assert_eq!(response.expect("a response").body(), "ada");
    assert_eq!(served.counters.intercepted(), 1);
}

#[test]
fn calls_have_ids_that_count_from_a_random_number() {
    //= docs/rpc-wire.md#E7
    let node = node();
    let port = Arc::new(node.bind(PORT).expect("a port"));
    let first = |_: usize| {
        let channel = Channel::builder(&address(&node)).node(&node).build().expect("a channel");
        let ids = [(); 2].map(|()| {
            let call = channel.unary("/a.B/C", "").into_future();
            let take = async {
                let request = port.recv_async().await.expect("a request");
                request.body()[3..11].to_vec()
            };
            let (_, id) = block_on(zip(call, take));
            u64::from_be_bytes(id.try_into().expect("eight bytes"))
        });
        assert_eq!(ids[1], ids[0].wrapping_add(1));
        ids[0]
    };
    let firsts: std::collections::BTreeSet<u64> = (0..4).map(first).collect();
    assert_eq!(firsts.len(), 4);
}

#[test]
fn a_request_has_nothing_of_the_one_before() {
    let kept: Arc<Mutex<Vec<Context>>> = Arc::default();
    let contexts = Arc::clone(&kept);
    let served = served(|server| {
        server.route("/a.B/Keep", move |cx: Context, body: Bytes| {
            if body == "keep" {
                contexts.lock().expect("no panic").push(cx.clone());
            }
            let name = cx.metadata().get("x-tenant-id").unwrap_or("nobody").to_owned();
            let (deadline, trace) = (cx.deadline().is_some(), cx.trace().is_some());
            async move {
                if body == "panic" {
                    cx.set_trailer("x-seen", "lost").expect("a pair");
                    panic!("as the test wants");
                }
                if name != "nobody" {
                    cx.set_metadata("x-seen", name.clone()).expect("a pair");
                    cx.set_trailer("x-seen", name.clone()).expect("a pair");
                }
                Ok(format!("{name} {deadline} {trace}"))
            }
        })
    });
    let call = |body| served.channel.unary("/a.B/Keep", body);
    let text = |response: apus_rpc::Response| {
        let seen = [response.metadata(), response.trailers()].map(|it| it.get("x-seen").is_some());
        (String::from_utf8(response.into_body().to_vec()).expect("a text"), seen)
    };
    for body in ["keep", "drop"] {
        let trace = apus_rpc::TraceContext::new([1; 16], [2; 8], 1).expect("ids");
        let first = call(body).metadata("x-tenant-id", "7").deadline(Duration::from_secs(60));
        let first = first.trace(trace).wait().expect("a response");
        assert_eq!(text(first), ("7 true true".to_owned(), [true; 2]));
        assert_eq!(call("panic").wait().map_err(|status| status.code()), Err(Code::Internal));
        let second = call(body).wait().expect("a response");
        assert_eq!(text(second), ("nobody false false".to_owned(), [false; 2]));
    }
    let kept = kept.lock().expect("no panic");
    let tenants: Vec<_> = kept.iter().map(|cx| cx.metadata().get("x-tenant-id")).collect();
    assert_eq!(tenants, [Some("7"), None]);
    assert!(kept.iter().all(|cx| !cx.is_cancelled() && cx.path().as_str() == "/a.B/Keep"));
}
