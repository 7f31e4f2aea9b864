//! ACK with any type byte: a packet that parses, once emitted, parses to the same.

#![no_main]

use apus_wire::{Ack, Header, RpcId};
use libfuzzer_sys::fuzz_target;

const HEADER: Header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(4) };

fuzz_target!(|bytes: &[u8]| {
    let Ok(ack) = Ack::parse(bytes) else { return };
    let mut buffer = [0xA5; Ack::LEN];
    assert_eq!(ack.emit(&HEADER, &mut buffer), Ack::LEN);
    assert_eq!(Ack::parse(&buffer), Ok(ack));
});
