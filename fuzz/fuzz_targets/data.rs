//! DATA without regard to the type byte: what parses is emitted and parses to the same.

#![no_main]

use apus_wire::{DATA_HEADER_LEN, Data, Header, RpcId};
use libfuzzer_sys::fuzz_target;

const HEADER: Header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(4) };

fuzz_target!(|bytes: &[u8]| {
    let Ok((data, payload)) = Data::parse(bytes) else { return };
    let mut buffer = [0xA5; DATA_HEADER_LEN];
    data.emit(&HEADER, &mut buffer);
    let again = [&buffer, payload].concat();
    assert_eq!(Data::parse(&again), Ok((data, payload)));
});
