//! A node that was not run for a while reads the packets that wait for it before it asks for any of them.

use crate::pair::{pattern, wait_until};
use apus::{Address, Config, Delivery, Flush, Links, Node, RecvError};

/// Messages of several long packets.
const LENGTH: usize = 300_000;
const MESSAGES: u64 = 4;

#[test]
fn long_packets_that_wait_are_neither_requested_nor_sent_again() {
    // Only the threads that use them turn these nodes.
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp).delivery(Delivery::fullbusy());
    let (server, node) = (Node::start(&config).unwrap(), Node::start(&config).unwrap());
    let (service, client) = (server.bind(4000).unwrap(), node.client().unwrap());
    let to = Address::new(server.local_addr(), service.number());
    let mut received = 0;
    let mut receive = || match service.try_recv() {
        Ok(request) => {
            assert!(request.body() == &pattern(received, LENGTH));
            received += 1;
            request.reply("").unwrap();
            received
        }
        Err(error) => {
            assert_eq!(error, RecvError::Empty);
            received
        }
    };
    for message in 0..MESSAGES {
        client.send(to, pattern(message, LENGTH), message, Flush::Now).unwrap();
    }
    let bytes_received = || server.stats().protocol.data_bytes_received;
    wait_until("the server has a part of a message", || {
        let _ = client.try_recv();
        receive();
        bytes_received() > 0
    });
    // The server is not run until its RTO has passed, by which the client asks as well.
    let asked = || node.stats().protocol.probes_sent + node.stats().protocol.resends_sent;
    let before = asked();
    wait_until("the client misses an answer", || {
        let _ = client.try_recv();
        asked() > before
    });
    wait_until("all messages are there", || {
        let _ = client.try_recv();
        receive() == MESSAGES
    });
    let protocol = server.stats().protocol;
    assert_eq!((protocol.resends_sent, protocol.duplicate_packets), (0, 0));
}
