//! Counters of a node and of a service. `apus stat` and `apus top` show the counters of every process from outside, and export them
//! to Prometheus.

use std::thread;

use apus::{Address, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let serving = port.clone();
    thread::spawn(move || {
        serving.serve(|mut request| {
            let body = request.take_body();
            let _ = request.reply(body); // The client may have given up.
        });
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    for _ in 0..10 {
        client.call(address, "hello").wait()?;
    }
    let (calls, requests) = (node.stats().protocol.calls, server.stats().protocol.requests);
    println!("the client's node: {calls} calls; the server's node: {requests} requests");
    println!("messages of the service: {}", port.stats().messages);
    // All counters have the same names as in `apus stat`.
    let stats = node.stats();
    let counted = stats.iter().find(|(name, _)| *name == "calls");
    println!("by name: {counted:?}");
    Ok(())
}
