//! A stream of bytes in each direction, with the interface of `std::net::TcpStream`: an echo server and its client.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::thread;

use apus::{Config, Node, Stream, StreamListener};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
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
    println!("connected to port {}", stream.peer_addr().port);
    stream.write_all(b"hello")?;
    stream.end(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}

/// Sends received bytes back, and ends its half when the client ends its own.
fn echo(mut stream: &Stream) -> io::Result<()> {
    io::copy(&mut { stream }, &mut stream)?;
    stream.end(Shutdown::Write)
}
