//! Calls the echo server with each text: `cargo run --example echo_client HOST:4000[@UDPPORT] TEXT...`.

use std::time::{Duration, Instant};

use apus::{CallOptions, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = apus::resolve(&arguments.next().unwrap_or_else(|| "127.0.0.1:4000".to_owned()))?;
    let node = Node::start(Config::new().apply_environment()?)?;
    let client = node.client()?;
    let mut options = CallOptions::new();
    options.deadline(Duration::from_secs(1));
    for text in arguments {
        let start = Instant::now();
        let response = client.call_with(server, text, &options)?;
        println!("{} ({:?})", String::from_utf8_lossy(&response), start.elapsed());
    }
    node.close(Duration::from_secs(1))?;
    Ok(())
}
