//! Messages of a call with streams that overtake its OPEN.

use std::future::{self, Future};
use std::task::Poll;
use std::thread;

use apus::Flush;
use apus_rpc::envelope::{EnvelopeLimits, RequestHead, ResponseHead};
use apus_rpc::{Channel, Code, Context, Status, StreamSender, Streaming};
use futures_lite::future::{block_on, zip};

use crate::pair::{PORT, address, node, served};

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

#[test]
fn a_server_keeps_64_early_messages_of_a_client_and_others_come_again() {
    //= docs/rpc-wire.md#E26
    let served = served(|server| server.stream("/a.B/Sum", sum));
    let client = node().client().expect("a client");
    for id in 0..65 {
        let message = RequestHead::Hold { id }.encode(0);
        client.send(served.channel.address(), message, id, Flush::Now).expect("sent");
    }
    let answered = client.recv().expect("the answer to the last one");
    let message = answered.result.expect("an answer");
    let (head, _) = ResponseHead::decode(&message, &EnvelopeLimits::new()).expect("an envelope");
    let end = head.end.expect("an end");
    assert_eq!((end.code(), end.may_have_executed()), (Code::Unavailable, false), "{end}");
}

/// The answer to an early message for which the server has no room: END, NOT_EXECUTED, UNAVAILABLE.
const NO_ROOM: &[u8] = b"\xA1\x0A\x0E\0\0\0";

#[test]
fn a_client_sends_early_messages_again_that_the_server_has_no_room_for() {
    //= docs/rpc-wire.md#E26
    let server_node = node();
    let port = server_node.bind(PORT).expect("a port");
    // A server that takes the OPEN and the end, and refuses the HOLD and the first PUSH twice.
    let server = thread::spawn(move || {
        let (mut open, mut hold) = (None, None);
        let (mut holds, mut pushes, mut ends) = (0, 0, 2);
        while let Ok(request) = port.recv() {
            let limits = EnvelopeLimits::new();
            let (head, _) = RequestHead::decode(request.body(), &limits).expect("an envelope");
            let times = match head {
                RequestHead::Open(_) => {
                    open = Some(request);
                    continue;
                }
                RequestHead::Hold { .. } => &mut holds,
                RequestHead::Push { seq: 1, .. } => &mut pushes,
                _ => &mut ends,
            };
            *times += 1;
            if *times <= 2 {
                request.reply(NO_ROOM).expect("the client waits");
            } else if matches!(head, RequestHead::Hold { .. }) {
                hold = Some(request);
            } else {
                let credit = ResponseHead::default().encode(0);
                request.reply(credit).expect("the client waits");
            }
            if (holds, pushes, ends) == (3, 3, 3) {
                break;
            }
        }
        let end = Some(Status::new(Code::Ok, ""));
        let end = ResponseHead { end, ..ResponseHead::default() }.encode(0);
        open.expect("an OPEN").reply(end).expect("the client waits");
        drop(hold);
    });
    let channel = Channel::builder(&address(&server_node)).node(&node()).build();
    let channel = channel.expect("a channel");
    block_on(async {
        let (mut requests, mut responses) = channel.stream("/a.B/Sum").start().expect("begun");
        requests.send("a").await.expect("room");
        requests.send("b").await.expect("room");
        requests.close();
        assert_eq!(responses.next().await, None);
    });
    server.join().expect("no panic");
    assert_eq!(channel.endpoints()[0].failures, 0, "the server has answered");
}

#[test]
fn a_push_that_follows_an_answer_is_not_sent_again() {
    //= docs/rpc-wire.md#E26
    let server_node = node();
    let port = server_node.bind(PORT).expect("a port");
    // A server that takes the PUSHes, and says of the third one that it has overtaken the OPEN and finds no room.
    let server = thread::spawn(move || {
        let (mut unanswered, mut is_refused) = (Vec::new(), false);
        while let Ok(request) = port.recv() {
            let limits = EnvelopeLimits::new();
            let (head, _) = RequestHead::decode(request.body(), &limits).expect("an envelope");
            let credit = ResponseHead::default().encode(0);
            match head {
                RequestHead::Push { seq: 3, .. } if !is_refused => {
                    is_refused = true;
                    request.reply(NO_ROOM).expect("the client waits");
                }
                RequestHead::Push { .. } => request.reply(credit).expect("the client waits"),
                RequestHead::Open(opening) if opening.path.as_str() == "/a.B/End" => {
                    let end = Some(Status::new(Code::Ok, ""));
                    let end = ResponseHead { end, ..ResponseHead::default() }.encode(0);
                    request.reply(end).expect("the client waits");
                    break;
                }
                _ => unanswered.push(request),
            }
        }
    });
    let channel = Channel::builder(&address(&server_node)).node(&node()).build();
    let channel = channel.expect("a channel");
    let (mut requests, responses) = channel.stream("/a.B/Sum").start().expect("begun");
    // Two PUSHes are under way at a time, so the third one is sent after an answer.
    let mut send = || block_on(requests.send(vec![7; 64 << 10]));
    let refused = (0..100).find_map(|_| send().err()).expect("the server takes no more");
    assert_eq!(refused.code(), Code::Cancelled, "{refused}");
    channel.unary("/a.B/End", "").wait().expect("a response");
    server.join().expect("no panic");
    drop(responses);
}

#[test]
fn many_calls_that_begin_with_long_messages_end() {
    let served = served(|server| server.stream("/a.B/Sum", sum));
    let upload = || async {
        let (mut requests, mut responses) =
            served.channel.stream("/a.B/Sum").start().expect("begun");
        let send = async move {
            requests.send(vec![7; 64 << 10]).await.expect("room");
            requests.send("x").await.expect("room");
            requests.close();
        };
        let ((), sum) = zip(send, responses.next()).await;
        assert_eq!(sum.expect("a sum").expect("a sum"), ((64 << 10) + 1).to_string());
    };
    let mut uploads: Vec<_> = (0..100).map(|_| Some(Box::pin(upload()))).collect();
    // All of them are under way at the same time.
    block_on(future::poll_fn(|task| {
        for upload in &mut uploads {
            if upload.as_mut().is_some_and(|it| it.as_mut().poll(task).is_ready()) {
                *upload = None;
            }
        }
        if uploads.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    }));
}
