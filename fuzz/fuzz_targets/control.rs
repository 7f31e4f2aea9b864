//! Packets with little more than a common header: a packet that parses, once emitted, parses to the same.

#![no_main]

use apus_wire::{Busy, Freeze, MAX_HEADER, NeedAck, Packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut buffer = [0xA5; MAX_HEADER];
    let length = match packet {
        Packet::RpcUnknown { header, unknown } => unknown.emit(&header, &mut buffer),
        Packet::Busy { header } => Busy.emit(&header, &mut buffer),
        Packet::Freeze { header } => Freeze.emit(&header, &mut buffer),
        Packet::NeedAck { header } => NeedAck.emit(&header, &mut buffer),
        _ => return,
    };
    assert_eq!(Packet::parse(&buffer[..length]), Ok(packet));
});
