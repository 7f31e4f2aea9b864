//! RESEND with any type byte: a packet that parses, once emitted, parses to the same.

#![no_main]

use apus_wire::{Header, Resend, RpcId};
use libfuzzer_sys::fuzz_target;

const HEADER: Header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(4) };

fuzz_target!(|bytes: &[u8]| {
    let Ok(resend) = Resend::parse(bytes) else { return };
    let mut buffer = [0xA5; Resend::LEN];
    assert_eq!(resend.emit(&HEADER, &mut buffer), Resend::LEN);
    assert_eq!(Resend::parse(&buffer), Ok(resend));
});
