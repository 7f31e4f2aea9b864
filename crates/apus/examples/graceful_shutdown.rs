//! A server that ends without losing a request: `Node::close` accepts no further calls, and waits for the requests in service.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use apus::{Address, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let (progress, received) = mpsc::channel();
    let serving = thread::spawn(move || {
        port.serve(|request| {
            let _ = progress.send("a request is executed");
            thread::sleep(Duration::from_millis(100)); // The work.
            let _ = request.reply("done"); // The client may have given up.
        });
        // `serve` returns when the node is closed.
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    let call = client.call(address, "work").start()?;
    println!("{}", received.recv()?);
    // A real program does so on SIGTERM.
    server.close(Duration::from_secs(10))?;
    serving.join().map_err(|_| "the service panicked")?;
    println!("the server has ended, and nothing was left");
    println!("the response: {}", String::from_utf8_lossy(&call.wait()?));
    node.close(Duration::from_secs(10))?;
    Ok(())
}
