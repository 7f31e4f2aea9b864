//! Makes calls between two endpoints of one host, and measures nothing: under callgrind, the difference of two runs is the number of
//! instructions of a call within the host, both ends together.
//!
//! ```sh
//! cargo run --release -p apus-proto --example local_cost CALLS
//! ```

use std::time::Duration;

use apus_proto::{
    Body, CallOptions, Config, Endpoint, Event, MessageSink, Remote, SpentBodies, Time, Words,
};
use apus_wire::PathId;
use bytes::Bytes;

#[derive(Default)]
struct Wire(Vec<(Words, Bytes)>);

impl MessageSink for Wire {
    fn send(&mut self, _: PathId, words: Words, body: &Body) {
        self.0.push((words, body.clone().into_bytes()));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let calls: u64 = std::env::args().nth(1).ok_or("how many calls?")?.parse()?;
    let (mut client, mut server) =
        (Endpoint::new(Config::default(), 1), Endpoint::new(Config::default(), 2));
    let path = PathId::new(0, 1).local();
    let mut now = Time::ZERO + Duration::from_secs(1);
    client.add_local(now, path);
    server.add_local(now, path);
    server.open(Some(4000))?;
    let socket = client.open(None)?;
    let body = Bytes::from_static(&[1; 100]);
    let mut wire = Wire::default();
    let mut spent = SpentBodies::default();
    for _ in 0..calls {
        now = now + Duration::from_micros(1);
        client.call(now, socket, Remote::new(path, 4000), body.clone(), CallOptions::default())?;
        client.poll_messages(now, &mut wire);
        for (words, body) in wire.0.drain(..) {
            server.handle_message(now, path, words, body);
        }
        let Some(Event::Request { rpc, body, .. }) = server.poll_event() else {
            return Err("no request".into());
        };
        server.reply(now, rpc, body)?;
        server.poll_messages(now, &mut wire);
        for (words, body) in wire.0.drain(..) {
            client.handle_message(now, path, words, body);
        }
        client.poll_event().ok_or("no response")?;
        for node in [&mut client, &mut server] {
            node.take_spent(&mut spent);
            spent.clear();
        }
    }
    Ok(())
}
