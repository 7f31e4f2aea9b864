//! Interceptors: the client's adds a token to each call, and the server's checks it before a method sees the request.
//!
//! Metadata goes in the clear unless both nodes have certificates; with them, `IncomingCall::identity` is the name of the client's
//! certificate, which cannot be read or copied on the way.
//!
//! ```text
//! with the token: 3
//! without: UNAUTHENTICATED: a token is needed
//! ```

use std::{future, thread};

use apus_rpc::{
    Address, Channel, Code, Config, Context, IncomingCall, Node, OutgoingCall, Server, Status,
};

#[apus_rpc::service(name = "shop.Calc")]
trait Calc {
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
}

struct MyCalc;

impl Calc for MyCalc {
    async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
        Ok(a + b)
    }
}

/// Admits requests with the token.
fn admit(call: &mut IncomingCall<'_>) -> Result<(), Status> {
    match call.metadata().get("authorization") {
        Some("Bearer secret") => Ok(()),
        _ => Err(Status::new(Code::Unauthenticated, "a token is needed")),
    }
}

/// Adds the token.
fn add_token(call: &mut OutgoingCall<'_>) -> Result<(), Status> {
    let added = call.metadata_mut().append("authorization", "Bearer secret");
    added.map_err(|error| Status::new(Code::Internal, error.to_string()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let serving = Server::builder(&node).add(CalcServer::new(MyCalc)).interceptor(admit);
    let serving = serving.serve(4000, future::pending());
    thread::spawn(move || serving.wait());

    let address = Address::new(node.local_addr(), 4000).to_string();
    let known = CalcClient::new(Channel::builder(&address).interceptor(add_token).build()?);
    println!("with the token: {}", known.add(1, 2).wait()?);
    let unknown = CalcClient::new(Channel::builder(&address).build()?);
    println!("without: {}", unknown.add(1, 2).wait().expect_err("it is refused"));
    Ok(())
}
