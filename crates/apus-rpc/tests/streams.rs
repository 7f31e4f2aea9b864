//! Calls with streams, in all forms.

use std::future;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use apus::{Client, Flush};
use apus_rpc::envelope::{EnvelopeLimits, RequestHead, ResponseHead};
use apus_rpc::{Bytes, Code, Context, Metadata, ServerBuilder, Status, StreamSender, Streaming};
use futures_lite::future::{block_on, poll_once, zip};
use tokio::sync::Semaphore;

use crate::pair;
use crate::pair::{Served, node, served};

/// Sends as many messages as the request says.
async fn count(
    cx: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    let request = requests.next().await.expect("one request")?;
    assert!(requests.next().await.is_none());
    let number = str::from_utf8(&request).expect("a number").parse().expect("a number");
    cx.set_metadata("server", "s").expect("a pair");
    for number in 0..number {
        let _: u64 = number;
        responses.send(number.to_string()).await?;
    }
    cx.set_trailer("sent", number.to_string()).expect("a pair");
    Ok(())
}

/// Answers with the sum of the lengths.
async fn sum(
    _: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    let mut sum = 0;
    while let Some(request) = requests.next().await {
        sum += request?.len();
    }
    responses.send(sum.to_string()).await
}

/// Answers each request with itself.
async fn echo(
    _: Context,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    while let Some(request) = requests.next().await {
        responses.send(request?).await?;
    }
    Ok(())
}

fn streams() -> Served {
    served(|server| {
        let server = server.stream("/a.B/Count", count).stream("/a.B/Sum", sum);
        server.stream("/a.B/Echo", echo)
    })
}

#[test]
fn a_server_that_ends_during_a_stream_has_failed() {
    let served = streams();
    let (mut requests, mut responses) =
        served.channel.stream("/a.B/Echo").start().expect("a stream");
    block_on(async {
        requests.send("a").await.expect("room");
        assert_eq!(responses.next().await.expect("a message"), Ok("a".into()));
    });
    assert_eq!(served.channel.endpoints()[0].failures, 0);
    let _ = served.node.close(Duration::ZERO);
    let status = block_on(responses.next()).expect("the end").expect_err("no server");
    assert!(status.call_error().is_some(), "{status}");
    assert_eq!(served.channel.endpoints()[0].failures, 1);
}

#[test]
fn a_server_that_ends_with_pushes_under_way_has_failed_once() {
    let (begun, begins) = mpsc::channel();
    let handler = move |_: Context, requests: Streaming, responses: StreamSender| {
        begun.send(()).expect("the test waits");
        async move {
            future::pending::<()>().await;
            drop((requests, responses));
            Ok(())
        }
    };
    let served = served(|server| server.stream("/a.B/Wait", handler));
    let (mut requests, mut responses) =
        served.channel.stream("/a.B/Wait").start().expect("a stream");
    // The handler reads nothing, so that messages wait for room on the way.
    let full = vec![0; 64 << 10];
    while let Some(sent) = block_on(poll_once(requests.send(full.clone()))) {
        sent.expect("room");
    }
    begins.recv().expect("the handler begins");
    let _ = served.node.close(Duration::ZERO);
    block_on(responses.next()).expect("the end").expect_err("no server");
    assert_eq!(served.channel.endpoints()[0].failures, 1);
}

#[test]
fn one_request_and_many_responses() {
    //= docs/rpc-wire.md#E22
    let served = streams();
    for number in [0_u64, 1, 10, 50_000] {
        block_on(async {
            let call = served.channel.stream("/a.B/Count").request(number.to_string());
            let mut responses = call.expect("sent");
            let mut metadata = responses.metadata().await.expect("metadata");
            for expected in 0..number {
                let message = responses.next().await.expect("a message").expect("a message");
                assert_eq!(message, expected.to_string());
            }
            let trailers = responses.trailers().await.expect("the end");
            assert_eq!(trailers.get("sent"), Some(number.to_string().as_str()));
            assert!(responses.next().await.is_none());
            metadata.remove("other");
            assert_eq!(metadata.get("server"), Some("s"));
        });
    }
    assert_eq!(served.counters.succeeded(), 4);
}

#[test]
fn many_requests_and_one_response() {
    //= docs/rpc-wire.md#E24
    let served = streams();
    for (number, length) in [(0, 0), (1, 5), (3, 0), (10_000, 20), (3, 3_000_000)] {
        let sum = block_on(async {
            let (mut requests, mut responses) =
                served.channel.stream("/a.B/Sum").start().expect("begun");
            for _ in 0..number {
                requests.send(vec![7; length]).await.expect("room");
            }
            requests.close();
            let sum = responses.next().await.expect("a response").expect("a response");
            assert!(responses.next().await.is_none());
            sum
        });
        assert_eq!(sum, (number * length).to_string());
    }
}

#[test]
fn many_requests_and_many_responses() {
    let served = streams();
    block_on(async {
        let (mut requests, mut responses) =
            served.channel.stream("/a.B/Echo").start().expect("begun");
        // In turns.
        for number in 0..100 {
            requests.send(number.to_string()).await.expect("room");
            let message = responses.next().await.expect("a message").expect("a message");
            assert_eq!(message, number.to_string());
        }
        // Both directions at once, with long messages between short ones.
        let length = |number: usize| if number.is_multiple_of(50) { 200_000 } else { number };
        let send = async move {
            for number in 0..500 {
                requests.send(vec![number as u8; length(number)]).await.expect("room");
            }
            requests.close();
        };
        let receive = async {
            for number in 0..500 {
                let message = responses.next().await.expect("a message").expect("a message");
                assert_eq!(message, vec![number as u8; length(number)]);
            }
            responses.trailers().await.expect("the end");
        };
        zip(send, receive).await;
    });
}

#[test]
fn the_server_may_speak_first_and_end_first() {
    let served = served(|server| {
        server.stream(
            "/a.B/Hello",
            |_, requests: Streaming, mut responses: StreamSender| async move {
                responses.send("hello").await?;
                drop(requests);
                futures_lite::future::yield_now().await;
                Err(Status::new(Code::OutOfRange, "enough"))
            },
        )
    });
    block_on(async {
        let (mut requests, mut responses) =
            served.channel.stream("/a.B/Hello").start().expect("begun");
        assert_eq!(responses.next().await.expect("a message").expect("a message"), "hello");
        let status = responses.next().await.expect("a status").expect_err("a status");
        assert_eq!((status.code(), status.message()), (Code::OutOfRange, "enough"));
        assert!(responses.next().await.is_none());
        let status = requests.send("x").await.expect_err("the call is over");
        assert_eq!(status.code(), Code::OutOfRange);
    });
    assert_eq!(served.counters.failed(), 1);
}

#[test]
fn a_panic_ends_the_stream() {
    let served = served(|server| {
        server.stream("/a.B/Panic", |_, _: Streaming, mut responses: StreamSender| async move {
            responses.send("hello").await?;
            futures_lite::future::yield_now().await;
            panic!("planted");
        })
    });
    block_on(async {
        let call = served.channel.stream("/a.B/Panic").request("x");
        let mut responses = call.expect("sent");
        assert_eq!(responses.next().await.expect("a message").expect("a message"), "hello");
        let status = responses.next().await.expect("a status").expect_err("a status");
        assert_eq!((status.code(), status.message()), (Code::Internal, "the handler panicked"));
    });
    assert_eq!(served.counters.panics(), 1);
}

#[test]
fn a_refused_stream_has_its_status() {
    //= docs/rpc-wire.md#E11
    let served = served(|server| {
        let server = server.route("/a.B/Unary", |_, body: Bytes| async { Ok(body) });
        server.stream("/a.B/Echo", echo).streams_per_peer(1)
    });
    let first = |path: &'static str| {
        block_on(async {
            let (mut requests, mut responses) = served.channel.stream(path).start().expect("begun");
            let _ = requests.send("x").await;
            let message = responses.next().await.expect("a status");
            message.map(|message| (message, requests, responses))
        })
    };
    let status = first("/a.B/Other").expect_err("no method");
    assert_eq!((status.code(), status.may_have_executed()), (Code::Unimplemented, false));
    let status = first("/a.B/Unary").expect_err("no stream");
    assert_eq!((status.code(), status.may_have_executed()), (Code::Unimplemented, false));
    //= docs/rpc-wire.md#E28
    let open = first("/a.B/Echo").expect("the first stream");
    let status = first("/a.B/Echo").expect_err("the second stream");
    assert_eq!((status.code(), status.may_have_executed()), (Code::ResourceExhausted, false));
    assert!(status.message().contains("streams_per_peer"), "{status}");
    drop(open);
}

#[test]
fn the_metadata_of_a_response_is_asked_for_before_a_request_is_sent() {
    let served = served_first();
    block_on(async {
        let call = served.channel.stream("/a.B/First").start();
        let (requests, mut responses) = call.expect("begun");
        let metadata = responses.metadata().await.expect("metadata");
        assert_eq!(metadata.get("server"), Some("first"));
        requests.close();
        responses.trailers().await.expect("the end");
    });
}

/// A server that sends its metadata before it reads a request.
fn served_first() -> Served {
    served(|server| {
        let first = |cx: Context, mut requests: Streaming, mut responses: StreamSender| async move {
            cx.set_metadata("server", "first").expect("a pair");
            responses.send_head();
            while let Some(request) = requests.next().await {
                request?;
            }
            Ok(())
        };
        server.stream("/a.B/First", first)
    })
}

#[test]
fn a_failed_call_has_no_trailers_but_its_status() {
    let served = served(|server| {
        server.stream("/a.B/Fail", |_, _: Streaming, _: StreamSender| async {
            Err::<(), _>(Status::new(Code::NotFound, "planted"))
        })
    });
    block_on(async {
        let call = served.channel.stream("/a.B/Fail").request("x");
        let mut responses = call.expect("sent");
        let status = responses.next().await.expect("the end").expect_err("planted");
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(responses.next().await, None);
        for _ in 0..2 {
            let status = responses.trailers().await.expect_err("the call has failed");
            assert_eq!((status.code(), status.message()), (Code::NotFound, "planted"));
        }
    });
}

/// Reports its drop.
struct Guard(mpsc::Sender<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A stream that sends a message and then goes on without end; the drops of its handlers, and a permit for each that has begun.
fn endless() -> (Served, mpsc::Receiver<()>, Arc<Semaphore>) {
    endless_with(|server| server)
}

fn endless_with(
    build: impl FnOnce(ServerBuilder<'_>) -> ServerBuilder<'_>,
) -> (Served, mpsc::Receiver<()>, Arc<Semaphore>) {
    let (sender, dropped) = mpsc::channel();
    let (sender, begun) = (Mutex::new(sender), Arc::new(Semaphore::new(0)));
    let announce = Arc::clone(&begun);
    let served = served(|server| {
        build(server).stream("/a.B/Endless", move |_, _: Streaming, mut responses: StreamSender| {
            let guard = Guard(sender.lock().expect("no panic").clone());
            announce.add_permits(1);
            async move {
                let _guard = guard;
                responses.send("hello").await?;
                future::pending::<()>().await;
                Ok(())
            }
        })
    });
    (served, dropped, begun)
}

#[test]
fn a_dropped_stream_drops_its_handler() {
    //= docs/rpc-wire.md#E22
    let (served, dropped, _) = endless();
    block_on(async {
        let mut responses = served.channel.stream("/a.B/Endless").request("x").expect("sent");
        responses.next().await.expect("a message").expect("a message");
    });
    dropped.recv().expect("the handler is dropped");
    // It is counted after its drop.
    let begin = std::time::Instant::now();
    while served.counters.given_up() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the call is counted");
        std::thread::yield_now();
    }
    assert_eq!(served.counters.given_up(), 1);
}

#[test]
fn a_sender_that_is_not_closed_gives_the_call_up() {
    let (served, dropped, _) = endless();
    block_on(async {
        let (requests, mut responses) =
            served.channel.stream("/a.B/Endless").start().expect("begun");
        responses.next().await.expect("a message").expect("a message");
        drop(requests);
        let status = responses.next().await.expect("a status").expect_err("a status");
        assert_eq!(status.code(), Code::Cancelled);
    });
    dropped.recv().expect("the handler is dropped");
}

#[test]
fn a_deadline_ends_a_stream_on_both_sides() {
    let (served, dropped, begun) = endless();
    let mut deadline = Duration::from_millis(30);
    // A short deadline may pass before the handler begins.
    let mut may_have_executed = false;
    while begun.try_acquire().is_err() {
        deadline *= 2;
        let call = served.channel.stream("/a.B/Endless").deadline(deadline);
        let status = block_on(call.request("x").expect("sent").trailers()).expect_err("a status");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        may_have_executed |= status.may_have_executed();
    }
    assert!(may_have_executed);
    dropped.recv().expect("the handler is dropped");
}

#[test]
fn a_response_that_its_client_refuses_ends_the_call() {
    //= docs/rpc-wire.md#E16
    let (served, dropped, _) = endless();
    let limits = EnvelopeLimits::new().frame_max(3);
    let channel = apus_rpc::Channel::builder(&pair::address(&served.node)).node(&node());
    let channel = channel.limits(limits).build().expect("a channel");
    let mut responses = channel.stream("/a.B/Endless").request("x").expect("sent");
    let status = block_on(responses.next()).expect("the end").expect_err("five bytes");
    assert_eq!(status.code(), Code::ResourceExhausted);
    dropped.recv().expect("the handler is dropped");
    let again = block_on(responses.trailers()).expect_err("the call has failed");
    assert_eq!(again, status);
}

#[test]
fn a_slow_reader_stops_the_server() {
    //= docs/rpc-wire.md#E24
    let (begun, sent) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(0)));
    let served = {
        let (begun, sent) = (Arc::clone(&begun), Arc::clone(&sent));
        served(|server| {
            server.stream("/a.B/Flood", move |_, _: Streaming, mut responses: StreamSender| {
                let (begun, sent) = (Arc::clone(&begun), Arc::clone(&sent));
                async move {
                    for _ in 0..10_000 {
                        let mut send = std::pin::pin!(responses.send(vec![7; 1000]));
                        future::poll_fn(|task| {
                            let polled = send.as_mut().poll(task);
                            if polled.is_pending() {
                                // Each wait is reported.
                                begun.add_permits(1);
                            }
                            polled
                        })
                        .await?;
                        *sent.lock().expect("no panic") += 1000;
                    }
                    Ok(())
                }
            })
        })
    };
    block_on(async {
        let mut responses = served.channel.stream("/a.B/Flood").request("x").expect("sent");
        responses.next().await.expect("a message").expect("a message");
        begun.acquire().await.expect("the semaphore stays").forget();
        // The reader has taken one message. Chunks under way and at both ends are all that the server has made.
        let bound = 2 * (64 << 10) + (256 << 10);
        assert!(*sent.lock().expect("no panic") <= bound, "the server waits for its reader");
        let mut count = 1;
        while let Some(message) = responses.next().await {
            assert_eq!(message.expect("a message").len(), 1000);
            count += 1;
        }
        assert_eq!(count, 10_000);
    });
}

/// A client that sends envelopes of its own.
struct Raw {
    client: Client,
    served: Served,
}

impl Raw {
    fn new() -> Self {
        Self::of(streams())
    }

    fn of(served: Served) -> Self {
        Self { client: node().client().expect("a client"), served }
    }

    fn open(&self, path: &str, ends: bool, chunk: &[u8]) -> apus::Call {
        let path = apus_rpc::envelope::MethodPath::new(path.to_owned()).expect("a path");
        let metadata = Metadata::new();
        let opening = apus_rpc::envelope::Opening { id: 5, ends, holds: false, path, metadata };
        self.call(&RequestHead::Open(opening), chunk)
    }

    fn call(&self, head: &RequestHead, chunk: &[u8]) -> apus::Call {
        let message = [head.encode(0), chunk.to_vec()].concat();
        self.client.call(self.served.channel.address(), message).start().expect("sent")
    }
}

fn answer(call: apus::Call) -> (ResponseHead, Bytes) {
    let message = call.wait().expect("an answer");
    ResponseHead::decode(&message, &EnvelopeLimits::new()).expect("an envelope")
}

fn code(call: apus::Call) -> Code {
    answer(call).0.end.expect("an end").code()
}

#[test]
fn pushes_are_taken_in_order_and_once_and_may_come_before_their_call() {
    //= docs/rpc-wire.md#E20
    //= docs/rpc-wire.md#E23
    //= docs/rpc-wire.md#E26
    let raw = Raw::new();
    let push = |seq, ends, chunk: &[u8]| raw.call(&RequestHead::Push { id: 5, ends, seq }, chunk);
    let early = push(2, false, b"\x02bb");
    let open = raw.open("/a.B/Sum", false, b"\0\0\0\x01a\0\0");
    assert_eq!(code(push(17 + 16, false, b"")), Code::ResourceExhausted);
    // Its message begins in the chunk of the OPEN.
    let first = push(1, false, b"\0");
    for call in [first, early, push(1, false, b"again")] {
        assert_eq!(answer(call).0, ResponseHead::default());
    }
    let last = push(3, true, b"\0\0\0\x03ccc");
    let (head, chunk) = answer(open);
    assert_eq!(head.end.map(|end| end.code()), Some(Code::Ok));
    assert_eq!(chunk, &b"\0\0\0\x016"[..]);
    drop(last);
}

#[test]
fn messages_about_calls_that_are_over_have_an_end() {
    //= docs/rpc-wire.md#E25
    let raw = Raw::new();
    assert_eq!(code(raw.call(&RequestHead::Pull { id: 7, seq: 1 }, b"")), Code::Cancelled);
    // A response of several chunks, whose end is pulled.
    let client_speaks = raw.open("/a.B/Count", true, b"\0\0\0\x0530000");
    let (head, _) = answer(client_speaks);
    assert!(head.more && head.end.is_none());
    let hold = raw.call(&RequestHead::Hold { id: 5 }, b"");
    let second = raw.call(&RequestHead::Pull { id: 5, seq: 2 }, b"");
    let first = raw.call(&RequestHead::Pull { id: 5, seq: 1 }, b"");
    assert!(answer(first).0.more);
    let mut seq = 3;
    let mut pulled = answer(second).0;
    while pulled.more {
        pulled = answer(raw.call(&RequestHead::Pull { id: 5, seq }, b"")).0;
        seq += 1;
    }
    let end = pulled.end.expect("the end");
    assert_eq!((end.code(), end.metadata().get("sent")), (Code::Ok, Some("30000")));
    assert!(answer(hold).0.end.is_some());
    assert!(answer(raw.call(&RequestHead::Hold { id: 5 }, b"")).0.end.is_some());
    assert!(answer(raw.call(&RequestHead::Pull { id: 5, seq }, b"")).0.end.is_some());
}

#[test]
fn a_message_beyond_the_limit_ends_the_stream() {
    //= docs/rpc-wire.md#E17
    let raw = Raw::new();
    let call = raw.open("/a.B/Sum", false, &[0xFF; 4]);
    let (head, _) = answer(call);
    let end = head.end.expect("an end");
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert!(end.message().contains("frame_max"), "{end}");
    //= docs/rpc-wire.md#E15
    assert!(end.message().starts_with("the request is refused (frame_too_long)"), "{end}");
    assert!(end.may_have_executed(), "the handler has begun");
    let counted = |refusals: &apus_rpc::envelope::Refusals| {
        refusals.iter().find(|(reason, _)| *reason == "frame_too_long").map(|(_, count)| count)
    };
    assert_eq!(counted(raw.served.counters.refusals()), Some(1));
    // The same of a response, at the client.
    //= docs/rpc-wire.md#E16
    let limits = EnvelopeLimits::new().frame_max(3);
    let channel = apus_rpc::Channel::builder(&pair::address(&raw.served.node)).node(&node());
    let channel = channel.limits(limits).build().expect("a channel");
    block_on(async {
        let (mut requests, mut responses) = channel.stream("/a.B/Sum").start().expect("begun");
        for _ in 0..4000 {
            requests.send("abc").await.expect("room");
        }
        requests.close();
        let status = responses.next().await.expect("the end").expect_err("five digits");
        assert!(status.message().starts_with("the response is refused"), "{status}");
    });
    assert_eq!(counted(channel.refusals()), Some(1));
}

/// A server that refuses all calls before their heads are read.
#[test]
fn messages_about_a_call_that_is_refused_at_once_do_not_wait_for_it() {
    //= docs/rpc-wire.md#E26
    let raw = Raw::of(served(|server| server.stream("/a.B/Echo", echo).concurrency(0)));
    let send = |head: &RequestHead, cookie| {
        let (to, message) = (raw.served.channel.address(), head.encode(0));
        raw.client.send(to, message, cookie, Flush::Now).expect("sent");
    };
    // The first one waits for an OPEN that never comes, until its time is over.
    send(&RequestHead::Hold { id: 100 }, 100);
    // Before and after their OPEN.
    send(&RequestHead::Hold { id: 5 }, 1);
    send(&RequestHead::Push { id: 5, ends: false, seq: 1 }, 2);
    let path = apus_rpc::envelope::MethodPath::new("/a.B/Echo").expect("a path");
    let (ends, holds, metadata) = (false, true, Metadata::new());
    let opening = apus_rpc::envelope::Opening { id: 5, ends, holds, path, metadata };
    send(&RequestHead::Open(opening), 3);
    send(&RequestHead::Push { id: 5, ends: true, seq: 2 }, 4);
    let mut answered: Vec<u64> =
        (0..4).map(|_| raw.client.recv().expect("an answer").cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3, 4], "the other one waits");
}

#[test]
fn pushes_beyond_256_kib_wait_for_the_handler() {
    //= docs/rpc-wire.md#E24
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let served = served(|server| {
        let server = server.route("/a.B/Now", |_, _| async { Ok("") });
        server.stream("/a.B/Late", move |_, mut requests: Streaming, _: StreamSender| {
            let gate = Arc::clone(&opened);
            async move {
                gate.acquire().await.expect("open").forget();
                while let Some(request) = requests.next().await {
                    request?;
                }
                Ok(())
            }
        })
    });
    let raw = Raw::of(served);
    let message = [&(60_u32 << 10).to_be_bytes()[..], &vec![7; 60 << 10]].concat();
    let call = raw.open("/a.B/Late", false, &message);
    let push = |seq, ends| raw.call(&RequestHead::Push { id: 5, ends, seq }, &message);
    // 240 KiB wait for the handler, and there is room for one more.
    for seq in 1..=3 {
        assert!(answer(push(seq, false)).0.end.is_none());
    }
    let mut waits = [push(4, false), push(5, true)];
    // The server has taken both when it answers this.
    let path = apus_rpc::envelope::MethodPath::new("/a.B/Now").expect("a path");
    let (ends, holds, metadata) = (true, false, Metadata::new());
    let opening = apus_rpc::envelope::Opening { id: 9, ends, holds, path, metadata };
    assert_eq!(code(raw.call(&RequestHead::Open(opening), b"")), Code::Ok);
    for wait in &mut waits {
        assert!(block_on(poll_once(wait)).is_none(), "the handler has 256 KiB to take");
    }
    gate.add_permits(1);
    for wait in waits {
        answer(wait);
    }
    assert_eq!(code(call), Code::Ok);
}

#[test]
fn chunks_have_at_most_64_kib_or_one_message() {
    //= docs/rpc-wire.md#E21
    let raw = Raw::new();
    let (head, chunk) = answer(raw.open("/a.B/Count", true, b"\0\0\0\x0530000"));
    assert!(head.more && chunk.len() <= 64 << 10, "{} bytes", chunk.len());
}

/// A stream whose client waits for its response in one message, and gives it up when the first of many is on its way.
#[test]
fn a_call_that_is_given_up_before_its_client_holds_it_ends_at_once() {
    //= docs/rpc-wire.md#E29
    let (sender, dropped) = mpsc::channel();
    let (sender, answered) = (Mutex::new(sender), Arc::new(Semaphore::new(0)));
    let announce = Arc::clone(&answered);
    let served = served(|server| {
        let server = server.stream("/a.B/Endless", move |_, _: Streaming, mut to: StreamSender| {
            let guard = Guard(sender.lock().expect("no panic").clone());
            let announce = Arc::clone(&announce);
            async move {
                let _guard = guard;
                to.send_raw("hello".into()).await?;
                // The end of this poll answers the OPEN.
                futures_lite::future::yield_now().await;
                announce.add_permits(1);
                future::pending::<()>().await;
                Ok(())
            }
        });
        // Nothing but the client ends the call.
        server.hold_within(Duration::from_secs(86_400))
    });
    for is_read in [false, true] {
        let call = served.channel.stream("/a.B/Endless").start_raw("x".into(), true);
        let (none, mut responses) = call.expect("sent");
        assert!(none.is_none());
        block_on(answered.acquire()).expect("open").forget();
        if is_read {
            let chunk = block_on(future::poll_fn(|task| responses.poll_chunk(task)));
            assert_eq!(chunk.expect("a chunk").expect("a chunk"), "hello");
        }
        drop(responses);
        dropped.recv_timeout(Duration::from_secs(60)).expect("the handler is dropped");
    }
}

#[test]
fn a_call_that_was_cancelled_before_it_arrives_does_not_begin() {
    //= docs/rpc-wire.md#E29
    let (served, dropped, begun) = endless();
    let raw = Raw::of(served);
    assert_eq!(code(raw.call(&RequestHead::Cancel { id: 5 }, b"")), Code::Cancelled);
    let head = answer(raw.open("/a.B/Endless", true, b"")).0;
    let end = head.end.expect("an end");
    assert_eq!((end.code(), end.may_have_executed()), (Code::Cancelled, false));
    drop(raw);
    assert_eq!(begun.available_permits(), 0);
    assert!(dropped.try_recv().is_err(), "no handler");
}

#[test]
fn a_call_that_no_request_holds_ends() {
    //= docs/rpc-wire.md#E27
    let (served, dropped, _) = endless_with(|server| server.hold_within(Duration::from_millis(1)));
    let raw = Raw::of(served);
    assert!(answer(raw.open("/a.B/Endless", true, b"")).0.more);
    dropped.recv().expect("the handler is dropped");
    assert!(answer(raw.call(&RequestHead::Pull { id: 5, seq: 1 }, b"")).0.end.is_some());
}
