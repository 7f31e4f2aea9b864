//! A deadline ends a call on time, whatever the server does. The request shows the server its remaining time.

use std::thread;
use std::time::Duration;

use apus::{Address, CallError, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    thread::spawn(move || {
        let mut unanswered = Vec::new();
        port.serve(|request| {
            if request.body() == "slow" {
                // Dropping a request ends its call; this one is kept.
                unanswered.push(request);
                return;
            }
            let answer = match request.remaining() {
                Some(left) if left <= Duration::from_secs(10) => "at most 10 s are left",
                Some(_) => "more than 10 s are left",
                None => "there is no deadline",
            };
            let _ = request.reply(answer); // The client may have given up.
        });
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    for (body, deadline) in [("quick", Some(10_000)), ("quick", None), ("slow", Some(100))] {
        let mut call = client.call(address, body);
        if let Some(millis) = deadline {
            call = call.deadline(Duration::from_millis(millis));
        }
        match call.wait() {
            Ok(response) => println!("{body}: {}", String::from_utf8_lossy(&response)),
            Err(CallError::Deadline { .. }) => println!("{body}: the deadline has passed"),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
