//! Makes calls of 100 bytes, or of 1 MB, between two nodes on one thread: the path of a call through this library, or through `apus` alone.
//!
//! `rpc_cost KIND CALLS` makes calls of a kind, one after the other, and measures nothing. Under callgrind, the difference of two such
//! runs is the number of instructions of a call (`cargo xtask instructions`), and the difference of two kinds is the cost of a layer.
//!
//! | kind | call |
//! |---|---|
//! | `apus` | bytes, without this library |
//! | `untyped` | bytes, to a path of a server |
//! | `typed` | two numbers and their sum, of a typed service: values that allocate nothing |
//! | `text` | a text of 100 bytes, of a typed service: each side makes a `String` of it |
//! | `long` | 1 MB, to a path of a server that answers with the same bytes |
//!
//! Both sides are futures that the thread polls in turn, as tasks of a runtime are polled. Every poll finds the message that it is for.

#![forbid(unsafe_code)]

use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use apus::{Address, Config, Delivery, Node, Port};
use apus_rpc::{Bytes, Channel, Server, Status};
use futures_core::Stream;

#[apus_rpc::service(name = "cost.Cost")]
trait Cost {
    async fn sum(&self, cx: &apus_rpc::Context, a: i64, b: i64) -> Result<i64, Status>;
    async fn text(&self, cx: &apus_rpc::Context, text: String) -> Result<String, Status>;
}

struct Served;

impl Cost for Served {
    async fn sum(&self, _: &apus_rpc::Context, a: i64, b: i64) -> Result<i64, Status> {
        Ok(a.wrapping_add(b))
    }

    async fn text(&self, _: &apus_rpc::Context, text: String) -> Result<String, Status> {
        Ok(text)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("rpc_cost KIND CALLS");
    let (kind, calls): (String, usize) = (next()?, next()?.parse()?);
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?).delivery(Delivery::fullbusy());
    let (server, node) = (Node::start(&config)?, Node::start(&config)?);
    let to = Address::new(server.local_addr(), 4000);
    if kind == "apus" {
        let (port, client) = (server.bind(4000)?, node.client()?);
        let mut echo = pin!(echo(port));
        for _ in 0..=calls {
            let response = until(client.call(to, &[7; 100][..]).into_future(), echo.as_mut());
            assert_eq!(response?.len(), 100);
        }
        return Ok(());
    }
    let served = Server::builder(&server)
        .route("/cost.Cost/Bytes", |_, body| async move { Ok(body) })
        .add(CostServer::new(Served))
        .serve(4000, std::future::pending());
    let mut served = pin!(served);
    let channel = Channel::builder(&to.to_string()).node(&node).build()?;
    let client = CostClient::new(channel.clone());
    let (text, long) = ("x".repeat(100), Bytes::from(vec![7; 1_000_000]));
    for number in 0..=calls as i64 {
        match kind.as_str() {
            "untyped" => {
                let body = Bytes::from_static(&[7; 100]);
                let call = channel.unary("/cost.Cost/Bytes", body).into_future();
                assert_eq!(until(call, served.as_mut())?.body().len(), 100);
            }
            "long" => {
                let call = channel.unary("/cost.Cost/Bytes", long.clone()).into_future();
                assert_eq!(until(call, served.as_mut())?.body().len(), long.len());
            }
            "typed" => {
                let call = client.sum(number, 1).into_future();
                assert_eq!(until(call, served.as_mut())?, number + 1);
            }
            "text" => {
                let call = client.text(text.as_str()).into_future();
                assert_eq!(until(call, served.as_mut())?.len(), 100);
            }
            _ => return Err("KIND: apus, untyped, typed, text or long".into()),
        }
    }
    Ok(())
}

/// Polls a call and the server in turn until the call has ended.
fn until<C: Future>(call: C, mut server: Pin<&mut impl Future>) -> C::Output {
    let mut call = pin!(call);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = call.as_mut().poll(&mut context) {
            return output;
        }
        assert!(server.as_mut().poll(&mut context).is_pending(), "the server serves");
    }
}

/// Answers requests with their own bytes.
async fn echo(port: Port) {
    let mut requests = port.requests();
    while let Some(mut request) = poll_fn(|task| Pin::new(&mut requests).poll_next(task)).await {
        let body = request.take_body();
        let _ = request.reply(body);
    }
}
