//! A client of `tarpc_server`. `tarpc_client [ADDRESS [NAME]]`; the default is 127.0.0.1:4000.

#![forbid(unsafe_code)]

use std::error::Error;

use apus::{Config, Node};
use tarpc::{client, context};

#[tarpc::service]
trait World {
    /// A greeting for `name`.
    async fn hello(name: String) -> String;
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:4000".to_owned());
    let name = arguments.next().unwrap_or_else(|| "tarpc".to_owned());
    let node = Node::start(&Config::new())?;
    tokio::spawn(node.event_loop()?.drive());
    let transport = apus_tarpc::dial(&node, apus::resolve_async(&address).await?)?;
    let client = WorldClient::new(client::Config::default(), transport).spawn();
    println!("{}", client.hello(context::current(), name).await?);
    Ok(())
}
