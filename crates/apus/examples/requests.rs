//! A service whose requests are a `futures` stream (feature `stream`). Each request becomes a task, so a slow one delays no other.

use std::time::Duration;

use apus::{Address, Config, Node, Request};
use futures_util::StreamExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let serving = port.clone();
    let server_task = tokio::spawn(async move {
        let mut requests = serving.requests();
        while let Some(request) = requests.next().await {
            tokio::spawn(handle(request));
        }
        println!("the stream has ended");
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    let slow = client.call(address, "slow").start()?;
    for text in ["one", "two"] {
        println!("{}", String::from_utf8_lossy(&client.call(address, text).await?));
    }
    println!("{}", String::from_utf8_lossy(&slow.await?));
    port.shutdown();
    server_task.await?;
    Ok(())
}

async fn handle(mut request: Request) {
    let body = request.take_body();
    if body == "slow" {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // The client may have given up; the server need not care.
    let _ = request.reply(body);
}
