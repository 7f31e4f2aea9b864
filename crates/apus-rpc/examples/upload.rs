//! A file that is sent in pieces. A slow server holds up the client, and not the other calls.
//!
//! ```text
//! 1000000 bytes in 16 pieces have arrived, with the sum 127493856
//! ```

use std::io::{Cursor, Read};
use std::{future, thread};

use apus_rpc::{Address, Bytes, Channel, Config, Context, Node, Server, Status, Streaming};
use serde::{Deserialize, Serialize};

/// The contents of a file, as far as they have come.
#[derive(Serialize, Deserialize, Default)]
struct Stored {
    bytes: u64,
    pieces: u64,
    sum: u64,
}

#[apus_rpc::service(name = "shop.Files")]
trait Files {
    /// Stores a file, whose pieces come in order.
    async fn store(&self, cx: &Context, pieces: Streaming<Bytes>) -> Result<Stored, Status>;
}

struct MyFiles;

impl Files for MyFiles {
    async fn store(&self, _: &Context, mut pieces: Streaming<Bytes>) -> Result<Stored, Status> {
        let mut stored = Stored::default();
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            stored.bytes += piece.len() as u64;
            stored.pieces += 1;
            stored.sum += piece.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        }
        Ok(stored)
    }
}

/// Sends all of a reader.
async fn send(
    files: &FilesClient,
    mut from: impl Read,
) -> Result<Stored, Box<dyn std::error::Error>> {
    let (mut pieces, stored) = files.store().start()?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            bytes => pieces.send(Bytes::copy_from_slice(&buffer[..bytes])).await?,
        }
    }
    pieces.close();
    Ok(stored.await?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let serving = Server::builder(&node).add(FilesServer::new(MyFiles));
    let serving = serving.serve(4000, future::pending());
    thread::spawn(move || serving.wait());

    let address = Address::new(node.local_addr(), 4000).to_string();
    let files = FilesClient::new(Channel::builder(&address).build()?);
    let file: Vec<u8> = (0..=u8::MAX).cycle().take(1_000_000).collect();
    let stored = futures_lite::future::block_on(send(&files, Cursor::new(file)))?;
    let Stored { bytes, pieces, sum } = stored;
    println!("{bytes} bytes in {pieces} pieces have arrived, with the sum {sum}");
    Ok(())
}
