//! An echo server for byte streams, and a client of it: `cargo run --example stream_echo`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

use apus::{Config, Node, Stream, StreamListener};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let listener = StreamListener::bind(&server, 4000)?;
    let address = listener.local_addr();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo(&stream));
        }
    });

    let node = Node::start(&config)?;
    let mut stream = Stream::connect(&node, address)?;
    println!("connected to {} from {}", stream.peer_addr(), stream.local_addr());
    stream.write_all(b"hello")?;
    stream.end(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}

/// Sends back what comes, and ends its half when the client does.
fn echo(mut stream: &Stream) -> io::Result<()> {
    io::copy(&mut { stream }, &mut stream)?;
    stream.end(Shutdown::Write)
}
