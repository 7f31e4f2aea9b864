//! Thousands of calls from one thread: `send` starts them, `recv_many` takes the responses that have arrived. A cookie identifies
//! the call of a response. Both sides handle messages in batches, which share datagrams and system calls.

use std::thread;
use std::time::Duration;

use apus::{Address, Config, Flush, Node};

const CALLS: u64 = 10_000;

/// Number of calls outstanding at a time.
const WINDOW: u64 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let address = Address::new(server.local_addr(), 4000);
    thread::spawn(move || {
        let mut batch = Vec::new();
        while port.recv_many(&mut batch, 64, None).is_ok() {
            for mut request in batch.drain(..) {
                let body = request.take_body();
                let _ = request.reply(body); // The client may have given up.
            }
        }
    });

    let node = Node::start(&config)?;
    let client = node.client()?;
    let (mut sent, mut done, mut sum) = (0, 0, 0);
    let mut batch = Vec::new();
    while done < CALLS {
        while sent < CALLS && sent - done < WINDOW {
            // The last call of a burst transmits all of it.
            let is_last = sent + 1 == CALLS || sent + 1 - done == WINDOW;
            let flush = if is_last { Flush::Now } else { Flush::Later };
            client.send(address, sent.to_le_bytes().to_vec(), sent, flush)?;
            sent += 1;
        }
        client.recv_many(&mut batch, WINDOW as usize, Some(Duration::from_secs(10)))?;
        for response in batch.drain(..) {
            let number = u64::from_le_bytes(response.result?[..].try_into()?);
            assert_eq!(number, response.cookie, "each response belongs to its call");
            sum += number;
            done += 1;
        }
    }
    println!("{done} calls answered; the sum of their numbers is {sum}");
    Ok(())
}
