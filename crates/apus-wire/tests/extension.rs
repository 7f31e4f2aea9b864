//! The extension of DATA.

use apus_wire::{Data, DataFlags, Extension, Header, Packet, RpcId, TraceContext};

const FROM_CLIENT: Header = Header { source_port: 32_768, dest_port: 4_000, sender_id: RpcId(2) };

const REQUEST: Data = Data {
    message_length: 20,
    incoming: 20,
    ack: None,
    cutoff_version: 0,
    retransmit: false,
    flags: DataFlags::INCAST,
    offset: 0,
};

fn trace() -> TraceContext {
    TraceContext::new([0xAB; 16], [0xCD; 8], 1).unwrap()
}

/// Returns a packet with this extension.
fn packet(extension: Extension) -> Vec<u8> {
    let mut buffer = [0xA5; Data::LEN_MAX];
    let length = REQUEST.emit_extended(&FROM_CLIENT, &extension, &mut buffer);
    [&buffer[..length], &[7; 20]].concat()
}

/// Returns a packet with these words between header and payload.
fn with_words(words: &[u8]) -> Vec<u8> {
    let mut packet = packet(Extension::default());
    packet[49] |= DataFlags::EXTENDED.0;
    packet[50] = u8::try_from(words.len() / 4).unwrap();
    packet.splice(56..56, words.iter().copied());
    packet
}

#[test]
fn items_are_sent_beside_the_payload() {
    //= docs/wire.md#W35
    for (deadline, trace, length) in [
        (None, None, 0),
        (Some(1_500_000), None, 8),
        (None, Some(trace()), 28),
        (Some(u32::MAX), Some(trace()), 36),
    ] {
        let extension = Extension { deadline, trace };
        let packet = packet(extension);
        assert_eq!((extension.len(), packet.len()), (length, 76 + length));
        assert_eq!(packet.len() <= 76, extension.is_empty());
        assert_eq!(Data::extension(&packet), extension);
        let Ok(Packet::Data { data, payload, .. }) = Packet::parse(&packet) else { panic!() };
        assert_eq!((data.message_length, payload), (20, &[7; 20][..]));
        assert_eq!(data.flags.contains(DataFlags::EXTENDED), length > 0);
        assert!(data.flags.contains(DataFlags::INCAST));
        for cut in 0..packet.len() {
            let parsed = Data::extension(&packet[..cut]);
            let whole = if cut >= Data::LEN + length { extension } else { Extension::default() };
            assert_eq!(parsed, whole, "{cut}");
        }
    }
}

#[test]
fn the_items_have_the_bytes_of_the_rule() {
    //= docs/wire.md#W35
    let packet = packet(Extension { deadline: Some(5), trace: Some(trace()) });
    let expected =
        [&[1, 4, 0, 0, 0, 5][..], &[2, 25], &[0xAB; 16], &[0xCD; 8], &[1], &[0, 0, 0]].concat();
    assert_eq!((packet[50], &packet[56..92]), (9, &expected[..]));
}

#[test]
fn items_that_are_not_understood_say_nothing() {
    //= docs/wire.md#W35
    let parsed = |words: &[u8]| Data::extension(&with_words(words));
    let deadline = Extension { deadline: Some(5), trace: None };
    let five = [1, 4, 0, 0, 0, 5];
    // After an item of an unknown type, a trace context that is too short, and filler.
    assert_eq!(parsed(&[&[9, 0][..], &five].concat()), deadline);
    assert_eq!(parsed(&[&[2, 4, 1, 1, 1, 1][..], &five].concat()), deadline);
    assert_eq!(parsed(&[&[0, 0][..], &five].concat()), deadline);
    // The first of two items of a type counts; an item of another length does not.
    assert_eq!(parsed(&[&five[..], &[1, 4, 0, 0, 0, 6]].concat()), deadline);
    assert_eq!(parsed(&[1, 2, 0, 9, 1, 4, 0, 0, 0, 5, 0, 0]), deadline);
    // A length beyond the end, alone and after another item.
    assert_eq!(parsed(&[1, 200, 0, 0, 0, 5, 0, 0]), Extension::default());
    assert_eq!(parsed(&[&five[..], &[2, 25]].concat()), deadline);
    // Zeros are no id.
    let item = |context: [u8; 25]| [&[2, 25][..], &context, &[0]].concat();
    let mut context = trace().to_bytes();
    assert_eq!(parsed(&item(context)).trace, Some(trace()));
    context[..16].fill(0);
    assert_eq!(parsed(&item(context)), Extension::default());
    assert_eq!(parsed(&item([0; 25])), Extension::default());
    let mut plain = with_words(&item(trace().to_bytes()));
    plain[49] = 0;
    assert_eq!(Data::extension(&plain), Extension::default());
}
