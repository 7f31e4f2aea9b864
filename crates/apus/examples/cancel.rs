//! A call is given up while its request is executed. The handler detects that and stops its work.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use apus::{Address, CallError, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let (progress, received) = mpsc::channel();
    thread::spawn(move || {
        port.serve(|request| {
            let _ = progress.send("the handler works");
            while !request.is_cancelled() {
                thread::sleep(Duration::from_millis(1)); // A piece of the work.
            }
            let _ = progress.send("the handler has stopped");
        });
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    let call = client.call(address, "a long computation").start()?;
    println!("{}", received.recv()?);
    // Dropping the call gives it up as well. A `Canceller` does so from another thread.
    call.cancel();
    match call.wait() {
        Err(CallError::Cancelled) => println!("the call was cancelled"),
        other => println!("unexpected: {other:?}"),
    }
    println!("{}", received.recv()?);
    Ok(())
}
