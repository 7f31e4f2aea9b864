//! Calls through layers of tower (feature `tower`): a client is a `tower::Service`, here behind a limit of eight calls at a time.

use std::thread;
use std::time::Duration;

use apus::{Address, CallOptions, Config, Node};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    thread::spawn(move || {
        port.serve(|request| {
            let text = String::from_utf8_lossy(request.body()).to_uppercase();
            let _ = request.reply(text); // The client may have given up.
        });
    });

    let node = Node::start(&config)?;
    let limited = ServiceBuilder::new().concurrency_limit(8).service(node.client()?);
    let options = CallOptions::new().deadline(Duration::from_secs(10));
    let mut calls = Vec::new();
    for word in ["shortest", "remaining", "time", "first"] {
        calls.push(tokio::spawn(limited.clone().oneshot((address, word.into(), options))));
    }
    for call in calls {
        println!("{}", String::from_utf8_lossy(&call.await??));
    }
    Ok(())
}
