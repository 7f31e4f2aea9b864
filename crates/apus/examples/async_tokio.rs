//! A server and a hundred concurrent calls as tokio tasks, in one process.

use apus::{Address, Config, Node};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    tokio::spawn(async move {
        while let Ok(request) = port.recv_async().await {
            let number: u64 = String::from_utf8_lossy(request.body()).parse().unwrap_or(0);
            // The client may have given up; the server need not care.
            let _ = request.reply((number * number).to_string());
        }
    });
    let node = Node::start(&config)?;
    let client = node.client()?;
    let mut calls = Vec::new();
    for number in 0..100_u64 {
        calls.push(client.call(address, number.to_string()).start()?);
    }
    for (number, call) in calls.into_iter().enumerate() {
        println!("{number} squared is {}", String::from_utf8_lossy(&call.await?));
    }
    Ok(())
}
