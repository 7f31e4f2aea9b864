//! GRANT with any type byte: a packet that parses, once emitted, parses to the same.

#![no_main]

use apus_wire::{Grant, Header, RpcId};
use libfuzzer_sys::fuzz_target;

const HEADER: Header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(4) };

fuzz_target!(|bytes: &[u8]| {
    let Ok(grant) = Grant::parse(bytes) else { return };
    let mut buffer = [0xA5; Grant::LEN];
    assert_eq!(grant.emit(&HEADER, &mut buffer), Grant::LEN);
    assert_eq!(Grant::parse(&buffer), Ok(grant));
});
