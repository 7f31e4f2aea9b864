//! Makes calls of 100 bytes between two nodes on one thread, over loopback: the path of a call through the library.
//!
//! `call_cost N` makes N calls and measures nothing: under callgrind, the difference of two such runs is the number of
//! instructions of a call (`.ci/instructions`). A packet over loopback is in its peer's socket when the system call that sent it
//! returns, so no thread polls in vain or sleeps, and the number hardly depends on time.

#![forbid(unsafe_code)]

use std::error::Error;

use apus::{Address, Config, Delivery, Node, RecvError};

fn main() -> Result<(), Box<dyn Error>> {
    let calls: u32 = std::env::args().nth(1).ok_or("call_cost N")?.parse()?;
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?).delivery(Delivery::fullbusy());
    let (server, node) = (Node::start(&config)?, Node::start(&config)?);
    let service = server.bind(4000)?;
    let client = node.client()?;
    let to = Address::new(server.local_addr(), service.port());
    for _ in 0..calls {
        let call = client.start(to, &[7; 100][..])?;
        let mut request = loop {
            // The first contact takes a turn of each node.
            match service.try_recv() {
                Ok(request) => break request,
                Err(RecvError::Empty) => assert_eq!(client.try_recv(), Err(RecvError::Empty)),
                Err(error) => return Err(error.into()),
            }
        };
        let body = request.take_body();
        request.reply(body)?;
        assert_eq!(call.wait()?.len(), 100);
    }
    Ok(())
}
