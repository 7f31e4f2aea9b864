//! A handler that calls its own service. With one thread, the call would wait for ever, so it ends with an error; with a second
//! thread, it is served.

use std::thread;

use apus::{Address, Client, Config, Node, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    let node = Node::start(&config)?;
    let client = node.client()?;
    for threads in ["one thread", "two threads"] {
        let (serving, own) = (port.clone(), server.client()?);
        thread::spawn(move || serving.serve(|request| handle(&own, address, request)));
        let response = client.call(address, "outer").wait()?;
        println!("{threads}: {}", String::from_utf8_lossy(&response));
    }
    Ok(())
}

/// Answers the outer request with the response to the inner one.
fn handle(own: &Client, address: Address, mut request: Request) {
    let body = request.take_body();
    let answer = match &body[..] {
        b"outer" => {
            own.call(address, "inner").wait().unwrap_or_else(|error| error.to_string().into())
        }
        _ => body,
    };
    let _ = request.reply(answer); // The client may have given up.
}
