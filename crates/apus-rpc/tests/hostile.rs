//! A client that breaks the rules: it costs its own calls, and no others.

use apus::{Client, Flush};
use apus_rpc::envelope::{MethodPath, Opening, RequestHead};
use apus_rpc::{Bytes, Metadata, Status, StreamSender, Streaming};
use futures_lite::future::block_on;

use crate::pair::{Served, node, served};

/// Numbers that are the same in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below
    }

    /// A message about one of four calls of a group, or of the group before it: an id that is over is none of another call. One in eight
    /// has a changed byte, and one in eight is cut.
    fn message(&mut self, group: u64) -> Vec<u8> {
        let id = 4 * (group + u64::from(self.next(8) > 0)) + self.next(4);
        let head = match self.next(7) {
            0 | 1 => {
                let path = ["/a.B/Echo", "/a.B/Unary", "/a.B/None"][self.next(3) as usize];
                let (ends, holds) = (self.next(2) == 0, self.next(2) == 0);
                let path = MethodPath::new(path).expect("a path");
                RequestHead::Open(Opening { id, ends, holds, path, metadata: Metadata::new() })
            }
            2 => RequestHead::Hold { id },
            3 => RequestHead::Pull { id, seq: self.next(6) },
            4 if self.next(4) == 0 => RequestHead::Cancel { id },
            _ => RequestHead::Push { id, ends: self.next(8) == 0, seq: self.next(6) },
        };
        let mut message = head.encode(0);
        for _ in 0..self.next(40) {
            let byte = if self.next(4) == 0 { self.next(256) } else { 0 };
            message.push(byte as u8);
        }
        if self.next(8) == 0 {
            let at = self.next(message.len() as u64) as usize;
            message[at] = self.next(256) as u8;
        }
        if self.next(8) == 0 {
            message.truncate(self.next(message.len() as u64) as usize);
        }
        message
    }
}

async fn echo(mut requests: Streaming, mut responses: StreamSender) -> Result<(), Status> {
    while let Some(request) = requests.next().await {
        responses.send(request?).await?;
    }
    Ok(())
}

fn methods() -> Served {
    served(|server| {
        let server = server.stream("/a.B/Echo", |_, requests, responses| echo(requests, responses));
        let server = server.route("/a.B/Unary", |_, body: Bytes| async { Ok(body) });
        server.streams_per_peer(3)
    })
}

fn check(served: &Served) {
    let response = served.channel.unary("/a.B/Unary", "x").wait().expect("a response");
    assert_eq!(response.body(), "x");
    block_on(async {
        let (mut requests, mut responses) =
            served.channel.stream("/a.B/Echo").start().expect("begun");
        requests.send("hello").await.expect("room");
        requests.close();
        assert_eq!(responses.next().await.expect("a message").expect("a message"), "hello");
        responses.trailers().await.expect("the end");
    });
}

fn send(client: &Client, served: &Served, message: Vec<u8>, cookie: u64) {
    // A budget may be exhausted.
    let _ = client.send(served.channel.address(), message, cookie, Flush::Now);
}

#[test]
fn any_messages_cost_the_sender_its_calls_only() {
    //= docs/rpc-wire.md#E15
    let served = methods();
    for seed in 0..6 {
        let mut numbers = Numbers(seed);
        let client = node().client().expect("a client");
        for cookie in 0..400 {
            send(&client, &served, numbers.message(cookie / 40), cookie);
        }
        check(&served);
        // Its outstanding calls are given up.
        drop(client);
        check(&served);
    }
    assert_eq!(served.counters.panics(), 0);
    assert!(served.counters.refusals().total() > 0);
}

#[test]
fn pushes_without_a_call_are_bounded() {
    //= docs/rpc-wire.md#E26
    let served = methods();
    let client = node().client().expect("a client");
    for cookie in 0..70 {
        let head = RequestHead::Push { id: 100 + cookie, ends: false, seq: 1 };
        send(&client, &served, head.encode(0), cookie);
    }
    // Those beyond the limit are answered, and 64 wait: otherwise the first ones would end first, with their time.
    let answered = |client: &Client| {
        let response = client.recv().expect("a response");
        assert!(response.result.is_ok(), "{response:?}");
        response.cookie
    };
    let mut refused: Vec<_> = (0..6).map(|_| answered(&client)).collect();
    refused.sort_unstable();
    assert_eq!(refused, [64, 65, 66, 67, 68, 69]);
    assert!(client.try_recv().is_err(), "64 wait");
    check(&served);
}

#[test]
fn pushes_without_a_call_of_one_node_are_bounded() {
    //= docs/rpc-wire.md#E26
    let (served, node) = (methods(), node());
    let clients: Vec<_> = (0..5).map(|_| node.client().expect("a client")).collect();
    for client in &clients {
        for cookie in 0..64 {
            let head = RequestHead::Push { id: 100 + cookie, ends: false, seq: 1 };
            send(client, &served, head.encode(0), cookie);
        }
    }
    // Messages of several clients arrive in any order.
    let mut refused = 0;
    while refused < 64 {
        refused += clients.iter().filter(|client| client.try_recv().is_ok()).count();
    }
    assert_eq!(refused, 64, "256 wait");
    check(&served);
}
