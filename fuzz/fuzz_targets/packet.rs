//! Whole packets: the dispatch, and the agreement of header, type and body.

#![no_main]

use apus_wire::{Header, Packet, ParseError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| match Packet::parse(bytes) {
    Ok(packet) => {
        let parsed = Header::parse(bytes).expect("a packet that parses has a header that does");
        assert_eq!(parsed, (packet.packet_type(), *packet.header()));
        if let Packet::Data { data, payload, .. } = packet {
            assert!(!payload.is_empty());
            assert!(data.incoming <= data.message_length);
            assert!(
                u64::from(data.offset) + payload.len() as u64 <= u64::from(data.message_length)
            );
        }
    }
    Err(error) => {
        assert_eq!(ParseError::NAMES[error.index()], error.name());
        assert!(!error.to_string().is_empty());
    }
});
