//! Bytes of streams that wait at a server: each host has a share of the room for them, whatever its ports.

use std::future;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use apus::Client;
use apus_rpc::envelope::{EnvelopeLimits, MethodPath, Opening, RequestHead, ResponseHead};
use apus_rpc::{Code, Context, Metadata, StreamSender, Streaming};
use futures_lite::future::{block_on, poll_once};
use tokio::sync::Semaphore;

use crate::pair::{Served, node, served};

/// Bytes of a message with its length.
const LENGTH: usize = 60 << 10;

fn message() -> Vec<u8> {
    let length = u32::try_from(LENGTH - 4).expect("a short message");
    [&length.to_be_bytes()[..], &vec![7; LENGTH - 4]].concat()
}

/// A client at a port of its own.
struct Raw<'s> {
    client: Client,
    served: &'s Served,
}

impl<'s> Raw<'s> {
    fn new(served: &'s Served) -> Self {
        Self { client: node().client().expect("a client"), served }
    }

    fn open(&self, path: &str, id: u64, ends: bool, chunk: &[u8]) -> apus::Call {
        let path = MethodPath::new(path.to_owned()).expect("a path");
        let (holds, metadata) = (false, Metadata::new());
        self.call(&RequestHead::Open(Opening { id, ends, holds, path, metadata }), chunk)
    }

    fn push(&self, seq: u64, ends: bool) -> apus::Call {
        self.call(&RequestHead::Push { id: 5, ends, seq }, &message())
    }

    fn call(&self, head: &RequestHead, chunk: &[u8]) -> apus::Call {
        let message = [head.encode(0), chunk.to_vec()].concat();
        self.client.call(self.served.channel.address(), message).start().expect("sent")
    }
}

fn answer(call: apus::Call) -> ResponseHead {
    let message = call.wait().expect("an answer");
    ResponseHead::decode(&message, &EnvelopeLimits::new()).expect("an envelope").0
}

fn wait_until(is_it: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_it() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the server is as far");
        thread::yield_now();
    }
}

fn server(gate: &Arc<Semaphore>) -> Served {
    let gate = Arc::clone(gate);
    served(|server| {
        let late = move |_: Context, mut requests: Streaming, _: StreamSender| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("open").forget();
                while let Some(request) = requests.next().await {
                    request?;
                }
                Ok(())
            }
        };
        // It answers before it reads.
        let early = |_: Context, requests: Streaming, mut responses: StreamSender| async move {
            responses.send_head();
            future::pending::<()>().await;
            drop(requests);
            Ok(())
        };
        let server = server.stream("/a.B/Late", late).stream("/a.B/Early", early);
        server.stream_buffer(1 << 20).stream_buffer_per_host(100 << 10)
    })
}

#[test]
fn messages_beyond_the_room_of_a_host_wait_for_their_handler() {
    //= docs/rpc-wire.md#E24
    let gate = Arc::new(Semaphore::new(0));
    let served = server(&gate);
    let (first, second) = (Raw::new(&served), Raw::new(&served));
    let opens = [first.open("/a.B/Late", 5, false, b""), second.open("/a.B/Late", 5, false, b"")];
    assert_eq!(answer(first.push(1, false)), ResponseHead::default());
    // 60 KiB of the host wait, and there is room for 100 KiB.
    let (mut third, mut fourth) = (second.push(1, false), first.push(2, true));
    wait_until(|| served.counters.withheld() == 2);
    assert!(block_on(poll_once(&mut third)).is_none());
    assert!(block_on(poll_once(&mut fourth)).is_none());
    gate.add_permits(2);
    for push in [third, fourth] {
        answer(push);
    }
    assert_eq!(answer(second.push(2, true)).end.map(|end| end.code()), None);
    for open in opens {
        assert_eq!(answer(open).end.expect("the end").code(), Code::Ok);
    }
}

#[test]
fn a_call_whose_first_message_has_no_room_fails_when_it_is_answered() {
    //= docs/rpc-wire.md#E24
    let served = server(&Arc::new(Semaphore::new(0)));
    let (first, second) = (Raw::new(&served), Raw::new(&served));
    assert!(answer(first.open("/a.B/Early", 5, false, &message())).more);
    let end = answer(second.open("/a.B/Early", 5, false, &message())).end.expect("no room");
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert!(end.message().contains("stream_buffer_per_host") && end.may_have_executed(), "{end}");
    assert_eq!(served.counters.withheld(), 1);
    // The answer goes before the handler is dropped.
    wait_until(|| served.counters.failed() + served.counters.given_up() > 0);
    assert_eq!((served.counters.failed(), served.counters.given_up()), (1, 0));
}
