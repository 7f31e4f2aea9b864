//! Errors, and the calls that may be repeated: a call that cannot have been executed may always be repeated, any other call only if
//! its request may be executed twice.

use std::thread;

use apus::{Address, Bytes, CallError, Client, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let address = Address::new(server.local_addr(), 4000);
    let node = Node::start(&config)?;
    let client = node.client()?;

    // The port is not served yet. A real program waits a little between its attempts.
    let response = repeated(&client, address, "book a seat", || {
        let port = server.bind(4000).expect("nothing else serves the port");
        thread::spawn(move || {
            port.serve(|request| {
                if request.body() == "book two seats" {
                    panic!("there is one seat only");
                }
                let _ = request.reply("booked"); // The client may have given up.
            });
        });
    });
    println!("the first call: {}", String::from_utf8_lossy(&response?));

    // The handler has begun, and its progress is unknown.
    let error = repeated(&client, address, "book two seats", || ()).unwrap_err();
    println!("the second call: {error}");
    Ok(())
}

/// Makes a call up to three times, while it is certain that the request was not executed.
fn repeated(
    client: &Client,
    to: Address,
    body: &'static str,
    mut between: impl FnMut(),
) -> Result<Bytes, CallError> {
    for _ in 1..3 {
        match client.call(to, body).wait() {
            Err(error) if !error.may_have_executed() => {
                println!("not executed, so it is repeated: {error}");
                between();
            }
            result => return result,
        }
    }
    client.call(to, body).wait()
}
