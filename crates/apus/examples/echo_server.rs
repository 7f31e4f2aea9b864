//! Answers every request with its own bytes: `cargo run --example echo_server [IP:UDPPORT]`.

use apus::{Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::server();
    if let Some(address) = std::env::args().nth(1) {
        config.listen(address.parse()?);
    }
    config.apply_environment()?;
    let node = Node::start(&config)?;
    let service = node.bind(4000)?;
    println!("serving port 4000 on {} ({})", node.local_addr(), node.capabilities());
    service.serve(|mut request| {
        let body = request.take_body();
        // The client may have given up: nothing for a server to worry about.
        let _ = request.reply(body);
    });
    Ok(())
}
