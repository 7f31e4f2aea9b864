//! CUTOFFS with any type byte: a packet that parses, once emitted, parses to the same.

#![no_main]

use apus_wire::{Cutoffs, Header, RpcId};
use libfuzzer_sys::fuzz_target;

const HEADER: Header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(4) };

fuzz_target!(|bytes: &[u8]| {
    let Ok(cutoffs) = Cutoffs::parse(bytes) else { return };
    let mut buffer = [0xA5; Cutoffs::LEN];
    assert_eq!(cutoffs.emit(&HEADER, &mut buffer), Cutoffs::LEN);
    assert_eq!(Cutoffs::parse(&buffer), Ok(cutoffs));
});
