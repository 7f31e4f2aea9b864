//! Makes calls of 100 bytes between two nodes on one thread, over loopback: the path of a call through the library.
//!
//! `call_cost OUTSTANDING CALLS [SHARDS] [together]` makes calls, `OUTSTANDING` at once, to a server with this number of shards, and
//! measures nothing. With `together`, the calls of a batch begin and are answered under one lock. Under callgrind, the difference of two
//! such runs is the number of instructions of a call (`cargo xtask instructions`). A packet over loopback is in its peer's socket when the
//! system call that sent it returns, so every poll of a thread finds a packet, no thread sleeps, and the number hardly depends on time.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::UdpSocket;

use apus::net::shard_of;
use apus::{
    Address, Bytes, Client, Config, Delivery, Flush, Node, Port, RecvError, Request, Response,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let together = arguments.pop_if(|last| last == "together").is_some();
    let numbers = arguments.iter().map(|number| number.parse());
    let numbers: Vec<usize> = numbers.collect::<Result<_, _>>()?;
    let (outstanding, calls, shards) = match numbers[..] {
        [outstanding, calls] => (outstanding, calls, 1),
        [outstanding, calls, shards] => (outstanding, calls, shards),
        _ => return Err("call_cost OUTSTANDING CALLS [SHARDS] [together]".into()),
    };
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?).delivery(Delivery::fullbusy());
    let server = Node::start(config.clone().shards(shards))?;
    let port = server.bind(4000)?;
    let node = node_of_own_shard(&config, &server, &port, shards)?;
    let client = node.client()?;
    let to = Address::new(server.local_addr(), port.number());
    one(&client, &port, to)?;
    let mut batch = Batch::default();
    for _ in 0..calls / outstanding.max(1) {
        match outstanding {
            0 | 1 => one(&client, &port, to)?,
            calls if together => batch.calls(calls, &client, &port, to)?,
            calls => many(calls, &client, &port, to)?,
        }
    }
    Ok(())
}

/// Calls that begin and are answered together, and their messages.
#[derive(Default)]
struct Batch {
    calls: Vec<(Bytes, u64)>,
    requests: Vec<Request>,
    responses: Vec<Response>,
}

impl Batch {
    fn calls(
        &mut self,
        calls: usize,
        client: &Client,
        port: &Port,
        to: Address,
    ) -> Result<(), Box<dyn Error>> {
        let body = Bytes::from_static(&[7; 100]);
        self.calls.extend((0..calls as u64).map(|number| (body.clone(), number)));
        client.send_many(to, &mut self.calls, Flush::Now)?;
        let mut answered = 0;
        while answered < calls {
            port.recv_many(&mut self.requests, calls, None)?;
            for request in &mut self.requests {
                let body = request.take_body();
                request.set_reply(body);
            }
            answered += Request::reply_all(&mut self.requests, Flush::Now);
        }
        let mut received = 0;
        while received < calls {
            received += client.recv_many(&mut self.responses, calls, None)?;
            for response in self.responses.drain(..) {
                assert_eq!(response.result?.len(), 100);
            }
        }
        Ok(())
    }
}

/// Returns a node whose traffic the server's shard of this thread has: that shard needs the fewest turns for a call, because a thread
/// looks at its own shard first.
fn node_of_own_shard(
    config: &Config,
    server: &Node,
    port: &Port,
    shards: usize,
) -> Result<Node, Box<dyn Error>> {
    let to = Address::new(server.local_addr(), port.number());
    let mut nodes: Vec<(u64, Node)> = Vec::new();
    for shard in 0..shards {
        // A free address is looked for by plain sockets: every run starts as many nodes.
        let address = loop {
            let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
            if shard_of(address, shards) == shard {
                break address;
            }
        };
        let node = Node::start(config.clone().listen(address))?;
        let client = node.client()?;
        let turns = || server.stats().delivery.turns;
        one(&client, port, to)?;
        let before = turns();
        one(&client, port, to)?;
        nodes.push((turns() - before, node));
    }
    let best = nodes.into_iter().min_by_key(|(turns, _)| *turns);
    Ok(best.ok_or("a server has shards")?.1)
}

/// Makes one call and waits for its handle.
fn one(client: &Client, port: &Port, to: Address) -> Result<(), Box<dyn Error>> {
    let call = client.call(to, &[7; 100][..]).start()?;
    let mut request = receive(client, port)?;
    let body = request.take_body();
    request.reply(body)?;
    assert_eq!(call.wait()?.len(), 100);
    Ok(())
}

/// Keeps calls outstanding at the same time. Their responses come out of the client's queue.
fn many(calls: usize, client: &Client, port: &Port, to: Address) -> Result<(), Box<dyn Error>> {
    let flush = |n| if n + 1 == calls { Flush::Now } else { Flush::Later };
    for n in 0..calls {
        client.send(to, Bytes::from_static(&[7; 100]), n as u64, flush(n))?;
    }
    for n in 0..calls {
        let mut request = receive(client, port)?;
        let body = request.take_body();
        request.reply_with(body, flush(n))?;
    }
    for _ in 0..calls {
        assert_eq!(client.recv()?.result?.len(), 100);
    }
    Ok(())
}

/// Receives the next request. The first contact takes a turn of each node.
fn receive(client: &Client, port: &Port) -> Result<Request, RecvError> {
    loop {
        match port.try_recv() {
            Err(RecvError::Empty) => assert_eq!(client.try_recv().err(), Some(RecvError::Empty)),
            other => return other,
        }
    }
}
