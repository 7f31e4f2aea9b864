//! DATA with any type byte: a packet that parses, once emitted, parses to the same, and so does its extension.

#![no_main]

use apus_wire::{DATA_HEADER_LEN, Data, DataFlags, Header, RpcId};
use libfuzzer_sys::fuzz_target;

const HEADER: Header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(4) };

fuzz_target!(|bytes: &[u8]| {
    let Ok((data, payload)) = Data::parse(bytes) else { return };
    let mut buffer = [0xA5; DATA_HEADER_LEN];
    data.emit(&HEADER, &mut buffer);
    let again = [&buffer, payload].concat();
    assert_eq!(Data::parse(&again), Ok((data, payload)));

    let extension = Data::extension(bytes);
    let plain = Data { flags: DataFlags(data.flags.0 & !DataFlags::EXTENDED.0), ..data };
    let mut buffer = [0xA5; Data::LEN_MAX];
    let length = plain.emit_extended(&HEADER, &extension, &mut buffer);
    let again = [&buffer[..length], payload].concat();
    assert_eq!(Data::extension(&again), extension);
    assert_eq!(Data::parse(&again).map(|(_, payload)| payload), Ok(payload));
});
