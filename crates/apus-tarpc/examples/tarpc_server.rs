//! A service of tarpc on an Apus port. `tarpc_server [LISTEN]`; the default is 127.0.0.1:20146.

#![forbid(unsafe_code)]

use std::error::Error;

use apus::{Config, Node};
use futures_util::StreamExt;
use tarpc::context::Context;
use tarpc::server::{BaseChannel, Channel};

#[tarpc::service]
trait World {
    /// A greeting for `name`.
    async fn hello(name: String) -> String;
}

#[derive(Clone)]
struct HelloServer;

impl World for HelloServer {
    async fn hello(self, _: Context, name: String) -> String {
        format!("hello, {name}")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:20146".to_owned());
    let mut config = Config::server();
    config.listen(listen.parse()?);
    let node = Node::start(&config)?;
    tokio::spawn(node.event_loop()?.drive());
    println!("apus://{}:4000", node.local_addr().ip());
    let transport = apus_tarpc::accept(node.bind(4000)?);
    let handlers = BaseChannel::with_defaults(transport).execute(HelloServer.serve());
    handlers.for_each(async |handler| drop(tokio::spawn(handler))).await;
    Ok(())
}
