//! The shortest complete program: a node with a service, and another node that calls it, in one process.

use std::thread;

use apus::{Address, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    thread::spawn(move || {
        port.serve(|mut request| {
            let body = request.take_body();
            // The client may have given up; the server need not care.
            let _ = request.reply(body);
        });
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    let response = client.call(address, "hello").wait()?;
    println!("{}", String::from_utf8_lossy(&response));
    Ok(())
}
