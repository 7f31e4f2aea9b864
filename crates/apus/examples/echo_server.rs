//! A server program: it answers every request with the bytes of the request, until its standard input ends (Ctrl-D).
//!
//! ```sh
//! cargo run --example echo_server              # at UDP port 20146, or at IP:UDPPORT if an argument says so
//! cargo run --example echo_client localhost:4000 hello
//! ```

use std::io;
use std::thread;
use std::time::Duration;

use apus::{Address, Config, Node};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::server();
    if let Some(address) = std::env::args().nth(1) {
        config.listen(address.parse()?);
    }
    config.apply_environment()?;
    let node = Node::start(&config)?;
    let port = node.bind(4000)?;
    println!("serving {}", Address::new(node.local_addr(), 4000));
    let serving = port.clone();
    let thread = thread::spawn(move || {
        serving.serve(|mut request| {
            let body = request.take_body();
            // The client may have given up; the server need not care.
            let _ = request.reply(body);
        });
    });
    io::copy(&mut io::stdin(), &mut io::sink())?;
    port.shutdown();
    thread.join().map_err(|_| "the service panicked")?;
    node.close(Duration::from_secs(5))?;
    Ok(())
}
