//! `--body cp-node` against a model of cp_node, the load generator of the Linux Homa module. The model is written from a
//! description of cp_node rather than from our code: it has its own parser, and dies where cp_node dies.

use std::sync::mpsc::{self, Receiver};
use std::thread;

use apus::{Address, Config, Node};
use serde_json::Value;

use crate::program::{self, Server, stderr};

/// The first 12 bytes of a message, in the byte order of the host.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MessageHeader {
    length: i32,
    client_port: u8,
    client: u8,
    server_port: u8,
    server: u8,
    msg_id: u16,
    freeze: bool,
    short_response: bool,
    response: bool,
}

impl MessageHeader {
    fn read(bytes: &[u8]) -> Self {
        let flags = u16::from_ne_bytes([bytes[10], bytes[11]]);
        Self {
            length: i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            client_port: bytes[4],
            client: bytes[5],
            server_port: bytes[6],
            server: bytes[7],
            msg_id: u16::from_ne_bytes([bytes[8], bytes[9]]),
            freeze: flags & 1 != 0,
            short_response: flags & 2 != 0,
            response: flags & 4 != 0,
        }
    }

    fn write(self, bytes: &mut [u8]) {
        let flags = u16::from(self.freeze)
            | u16::from(self.short_response) << 1
            | u16::from(self.response) << 2;
        bytes[..4].copy_from_slice(&self.length.to_ne_bytes());
        bytes[4..8].copy_from_slice(&[
            self.client_port,
            self.client,
            self.server_port,
            self.server,
        ]);
        bytes[8..10].copy_from_slice(&self.msg_id.to_ne_bytes());
        bytes[10..12].copy_from_slice(&flags.to_ne_bytes());
    }
}

/// The answer of cp_node's server: the first `length` bytes of the request, or 100 of them. An answer of no bytes, or of more than
/// was received, ends cp_node; here it is the error.
fn serve(request: &[u8]) -> Result<Vec<u8>, String> {
    let mut header = MessageHeader::read(request);
    if header.short_response && header.length > 100 {
        header.length = 100;
    }
    if header.length <= 0 || header.length as usize > request.len() {
        return Err(format!("homa_reply failed: {header:?} of {} bytes", request.len()));
    }
    header.response = true;
    let mut response = request[..header.length as usize].to_vec();
    header.write(&mut response);
    Ok(response)
}

/// A running model of cp_node's server, its address, and the reason of its death.
fn model_server() -> (Node, String, Receiver<String>) {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().expect("an address"));
    let node = Node::start(&config).expect("a node");
    let socket = node.bind(4000).expect("a port");
    let address = format!("127.0.0.1:4000@{}", node.local_addr().port());
    let (died, deaths) = mpsc::channel();
    thread::spawn(move || {
        socket.serve(|mut request| match serve(&request.take_body()) {
            Ok(response) => drop(request.reply(response)),
            // The test may be over.
            Err(death) => drop(died.send(death)),
        });
    });
    (node, address, deaths)
}

#[test]
fn the_client_calls_a_server_of_cp_node() {
    let (_node, address, deaths) = model_server();
    for load in [
        "--workload w1",
        "--workload w3 --client-max 8 --port-receivers 0",
        "--workload 1000 --one-way",
        "--unloaded 3",
    ] {
        let client =
            format!("node client --body cp-node --servers {address} {load} --seconds 0.3 --json -");
        let output = program::apus(&client);
        assert!(output.status.success(), "{load}: {}", stderr(&output));
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let row = &result["rows"][0];
        assert!(row["calls"].as_u64() > Some(0), "{load}: {row}");
        assert_eq!(row["errors"], 0, "{load}: {row}");
        assert_eq!(deaths.try_recv().ok(), None, "{load}");
    }
}

#[test]
fn a_format_of_ours_would_end_cp_node() {
    let (_node, address, deaths) = model_server();
    let output =
        program::apus(&format!("node client --servers {address} --seconds 0.1 --fail-fast"));
    assert_eq!(output.status.code(), Some(1));
    assert!(deaths.try_recv().expect("it died").contains("homa_reply failed"));
}

#[test]
fn the_server_answers_a_client_of_cp_node() {
    let server = Server::start("--body cp-node");
    let to: Address = apus::resolve(&server.address).expect("an address");
    let mut config = Config::new();
    let node =
        Node::start(config.listen("127.0.0.1:0".parse().expect("an address"))).expect("a node");
    let client = node.client().expect("a client");
    for (length, short_response, answered) in [
        (12, false, 12),
        (12, true, 12),
        (500, true, 100),
        (500, false, 500),
        (1_000_000, false, 1_000_000),
    ] {
        let header = MessageHeader {
            length,
            client_port: 3,
            client: 200,
            server_port: 1,
            server: 7,
            msg_id: 60_000,
            freeze: false,
            short_response,
            response: false,
        };
        let mut request = vec![0x5a; length as usize];
        header.write(&mut request);
        let response = client.call(to, request).wait().expect("an answer");
        assert_eq!(response.len(), answered);
        let expected = MessageHeader { length: answered as i32, response: true, ..header };
        assert_eq!(MessageHeader::read(&response), expected);
        assert!(response[12..].iter().all(|byte| *byte == 0x5a));
    }
    // A message that is not in cp_node's format gets only a header.
    for garbage in [vec![0; 100], vec![0xff; 100], vec![1; 5]] {
        assert_eq!(client.call(to, garbage).wait().expect("an answer").len(), 12);
    }
    server.signal("TERM");
    let summary = server.finish();
    assert!(summary.contains("3 requests were malformed"), "{summary}");
}
