//! OPEN, TOKEN, CONFIRM and MEET, and the stamp of any packet: a packet that parses, once emitted, parses to the same.

#![no_main]

use apus_wire::{MAX_HEADER, Packet, Stamp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let stamp = Stamp::read(bytes).expect("a packet that parses has a common header");
    let mut buffer = [0xA5; MAX_HEADER];
    let length = match packet {
        Packet::Open { header, open } => open.emit(&header, &mut buffer),
        Packet::Token { header, credentials } => credentials.emit_token(&header, &mut buffer),
        Packet::Confirm { header, credentials } => credentials.emit_confirm(&header, &mut buffer),
        Packet::Meet { header, meet } => meet.emit(&header, &mut buffer),
        _ => return,
    };
    let stamp = Stamp::new(stamp.token);
    stamp.write(&mut buffer);
    assert_eq!(Packet::parse(&buffer[..length]), Ok(packet));
    assert_eq!(Stamp::read(&buffer), Some(stamp));
});
