//! The same client and server code without a node: deadlines, cancellation, metadata, limits and nested calls.

use std::future;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use apus_rpc::envelope::EnvelopeLimits;
use apus_rpc::{
    Bytes, Channel, Code, Context, Response, ServeError, Server, Status, StreamSender, Streaming,
};
use futures_lite::future::{block_on, or, yield_now};
use tokio::sync::Semaphore;

/// Reports its drop.
struct Guard(mpsc::Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

async fn echo(cx: Context, body: Bytes) -> Result<Bytes, Status> {
    if cx.metadata().get("wait").is_some() {
        yield_now().await;
    }
    cx.set_trailer("cost", "3").expect("a pair");
    Ok(body)
}

async fn broken(_: Context, _: Bytes) -> Result<Bytes, Status> {
    panic!("planted");
}

#[test]
fn a_call_has_its_response_with_metadata() {
    let channel = Channel::in_memory(Server::in_memory().route("/a.B/Echo", echo));
    channel.contact().wait().expect("it is there");
    block_on(channel.contact().into_future()).expect("it is there");
    let response = channel.unary("/a.B/Echo", "x").wait().expect("a response");
    assert_eq!((response.body(), response.trailers().get("cost")), (&Bytes::from("x"), Some("3")));
    let waiting = || channel.unary("/a.B/Echo", "x").metadata("wait", "1");
    assert_eq!(waiting().wait().expect("a response").body(), "x");
    assert_eq!(block_on(waiting().into_future()).expect("a response").body(), "x");
    let long = channel.unary("/a.B/Echo", vec![7; 1 << 20]).wait().expect("a response");
    assert_eq!(long.body().len(), 1 << 20);
    let status = channel.unary("/a.B/Other", "x").wait().expect_err("no method");
    assert_eq!((status.code(), status.may_have_executed()), (Code::Unimplemented, false));
}

#[test]
fn limits_interceptors_and_panics_are_those_of_the_server() {
    let server = Server::in_memory()
        .limits(EnvelopeLimits::new().frame_max(10))
        .interceptor(|call| match call.path().method() {
            "Refused" => Err(Status::new(Code::Unauthenticated, "no token")),
            "Broken" => panic!("planted"),
            _ => Ok(()),
        })
        .route("/a.B/Echo", echo)
        .route("/a.B/Refused", echo)
        .route("/a.B/Broken", echo)
        .route("/a.B/Panic", broken);
    let channel = Channel::in_memory(server);
    let code = |path: &'static str, body: Vec<u8>| {
        channel.unary(path, body).wait().map(Response::into_body).map_err(|status| status.code())
    };
    assert_eq!(code("/a.B/Echo", vec![0; 11]), Err(Code::ResourceExhausted));
    assert_eq!(code("/a.B/Refused", vec![]), Err(Code::Unauthenticated));
    assert_eq!(code("/a.B/Broken", vec![]), Err(Code::Internal));
    assert_eq!(code("/a.B/Panic", vec![]), Err(Code::Internal));
    assert_eq!(code("/a.B/Echo", vec![1]), Ok(Bytes::from_static(b"\x01")));
}

#[test]
fn deadlines_and_drops_reach_the_handler_through_nested_calls() {
    let (sender, dropped) = mpsc::channel();
    let (sender, begun) = (Mutex::new(sender), Arc::new(Semaphore::new(0)));
    let announce = Arc::clone(&begun);
    let last =
        Channel::in_memory(Server::in_memory().route("/a.B/Endless", move |cx: Context, _| {
            let guard = Guard(sender.lock().expect("no panic").clone());
            let has_deadline = cx.remaining().is_some();
            announce.add_permits(1);
            async move {
                let _guard = guard;
                assert!(has_deadline, "the deadline of the first call");
                future::pending::<()>().await;
                Ok("never")
            }
        }));
    let first =
        Channel::in_memory(Server::in_memory().route("/a.B/Forward", move |_, body: Bytes| {
            let last = last.clone();
            async move { last.unary("/a.B/Endless", body).await.map(Response::into_body) }
        }));
    let call = || first.unary("/a.B/Forward", "x");
    for deadline in [Duration::from_millis(20), Duration::from_millis(30)] {
        let status = call().deadline(deadline).wait().expect_err("no time");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        dropped.recv().expect("the last handler is dropped");
        block_on(begun.acquire()).expect("the semaphore stays").forget();
    }
    let awaited = async { call().deadline(Duration::from_secs(600)).await.map(drop) };
    let give_up = async {
        begun.acquire().await.expect("the semaphore stays").forget();
        Err(Status::new(Code::Aborted, "given up"))
    };
    assert_eq!(block_on(or(awaited, give_up)).expect_err("given up").code(), Code::Aborted);
    dropped.recv().expect("the last handler is dropped");
}

#[test]
fn a_channel_without_clones_ends_the_handlers() {
    let (sender, dropped) = mpsc::channel();
    let sender = Mutex::new(sender);
    let channel =
        Channel::in_memory(Server::in_memory().route("/a.B/Spawn", move |cx: Context, _| {
            let guard = Guard(sender.lock().expect("no panic").clone());
            async move {
                cx.spawn(async move {
                    let _guard = guard;
                    yield_now().await;
                });
                Ok("begun")
            }
        }));
    assert_eq!(channel.unary("/a.B/Spawn", "").wait().expect("a response").body(), "begun");
    dropped.recv().expect("the task ends");
}

#[test]
fn misuse_is_named() {
    let served = Server::in_memory().serve(4000, future::pending()).wait();
    assert_eq!(served.err(), Some(ServeError::NoNode));
    let twice = || {
        let server = Server::in_memory().route("/a.B/C", echo).route("/a.B/C", echo);
        let _ = Channel::in_memory(server);
    };
    let panic = std::panic::catch_unwind(twice).expect_err("a fault");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert_eq!(text, "method path '/a.B/C' is given twice");
}

/// Answers each request with its length, and adds a trailer.
async fn lengths(
    cx: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    while let Some(request) = requests.next().await {
        responses.send(request?.len().to_string()).await?;
    }
    cx.set_trailer("cost", "3").expect("a pair");
    Ok(())
}

#[test]
fn streams_go_through_memory_as_well() {
    let channel = Channel::in_memory(Server::in_memory().stream("/a.B/Lengths", lengths));
    block_on(async {
        let (mut requests, mut responses) = channel.stream("/a.B/Lengths").start()?;
        for length in [1, 100_000, 3] {
            requests.send(vec![0; length]).await?;
            let response = responses.next().await.expect("a response")?;
            assert_eq!(response, length.to_string());
        }
        requests.close();
        assert_eq!(responses.next().await, None);
        assert_eq!(responses.trailers().await?.get("cost"), Some("3"));
        Ok::<_, Status>(())
    })
    .expect("a call");
}

#[test]
fn a_stream_without_a_reader_or_time_drops_its_handler() {
    let (sender, dropped) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Server::in_memory().stream("/a.B/Endless", move |_, _, mut responses| {
        let guard = Guard(sender.lock().expect("no panic").clone());
        async move {
            let _guard = guard;
            loop {
                responses.send("x").await?;
            }
        }
    });
    let channel = Channel::in_memory(server);
    let mut responses = channel.stream("/a.B/Endless").request("x").expect("a call");
    assert_eq!(block_on(responses.next()), Some(Ok(Bytes::from("x"))));
    drop(responses);
    dropped.recv().expect("the handler is dropped");
    let call = channel.stream("/a.B/Endless").deadline(Duration::from_millis(30));
    let mut responses = call.request("x").expect("a call");
    let status = block_on(async {
        loop {
            if let Some(Err(status)) = responses.next().await {
                return status;
            }
        }
    });
    assert_eq!(status.code(), Code::DeadlineExceeded);
    dropped.recv().expect("the handler is dropped");
}
