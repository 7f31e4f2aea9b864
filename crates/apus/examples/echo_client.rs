//! Calls the echo server with each text: `cargo run --example echo_client HOST:4000[@UDPPORT] TEXT...`.

use std::time::{Duration, Instant};

use apus::{Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = apus::resolve(&arguments.next().unwrap_or_else(|| "127.0.0.1:4000".to_owned()))?;
    let node = Node::start(Config::new().apply_environment()?)?;
    let client = node.client()?;
    for text in arguments {
        let start = Instant::now();
        let response = client.call(server, text).deadline(Duration::from_secs(1)).wait()?;
        println!("{} ({:?})", String::from_utf8_lossy(&response), start.elapsed());
    }
    node.close(Duration::from_secs(1))?;
    Ok(())
}
