//! Every kind of packet, emitted and parsed, equals itself. No bytes make the parser panic.

use apus_wire::{
    Ack, Acked, Busy, Credentials, Cutoffs, DATA_HEADER_LEN, Data, DataFlags, Extension, Freeze,
    Grant, Header, MAX_HEADER, Meet, NeedAck, Open, Packet, PacketType, ParseError, Priority,
    Proof, Resend, RpcId, RpcUnknown, Token, TraceContext, UnknownReason, bundle,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn headers() -> impl Strategy<Value = Header> {
    (1_u16.., any::<u16>(), any::<u64>()).prop_map(|(source_port, dest_port, id)| Header {
        source_port,
        dest_port,
        sender_id: RpcId(id),
    })
}

fn priorities() -> impl Strategy<Value = Priority> {
    (0_u8..=7).prop_map(Priority::clamped)
}

fn entries() -> impl Strategy<Value = Acked> {
    (1_u64.., any::<u16>())
        .prop_map(|(id, server_port)| Acked { client_id: RpcId(id), server_port })
}

fn resends() -> impl Strategy<Value = Resend> {
    (any::<u32>(), proptest::option::of(0_u32..=i32::MAX.cast_unsigned()), priorities())
        .prop_map(|(offset, length, priority)| Resend { offset, length, priority })
}

/// A piece of a message, within its length.
fn pieces() -> impl Strategy<Value = (Data, Vec<u8>)> {
    let shape = (vec(any::<u8>(), 1..2000), any::<u32>(), any::<u32>(), any::<u32>());
    let rest = (proptest::option::of(entries()), any::<u16>(), any::<bool>(), any::<u8>());
    (shape, rest).prop_map(|((payload, offset, after, incoming), rest)| {
        let (ack, cutoff_version, retransmit, flags) = rest;
        let offset = offset.min(u32::MAX - 2000);
        let message_length = (offset + u32::try_from(payload.len()).unwrap()).saturating_add(after);
        let data = Data {
            message_length,
            incoming: incoming.min(message_length),
            ack,
            cutoff_version,
            retransmit,
            flags: DataFlags(flags),
            offset,
        };
        (data, payload)
    })
}

/// Bytes similar enough to a packet to pass the common header.
fn disguised() -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u8>(), 28..200), 0x10_u8..=0x1D).prop_map(|(mut bytes, packet_type)| {
        bytes[11] = packet_type;
        bytes
    })
}

fn emitted(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut buffer = [0xA5; MAX_HEADER];
    let length = emit(&mut buffer);
    buffer[..length].to_vec()
}

/// Emits the packet.
fn emitted_again(packet: &Packet<'_>) -> Vec<u8> {
    match packet {
        Packet::Data { header, data, payload } => {
            let mut buffer = [0; DATA_HEADER_LEN];
            data.emit(header, &mut buffer);
            [&buffer, *payload].concat()
        }
        Packet::Grant { header, grant } => emitted(|buffer| grant.emit(header, buffer)),
        Packet::Resend { header, resend } => emitted(|buffer| resend.emit(header, buffer)),
        Packet::RpcUnknown { header, unknown } => emitted(|buffer| unknown.emit(header, buffer)),
        Packet::Busy { header } => emitted(|buffer| Busy.emit(header, buffer)),
        Packet::Cutoffs { header, cutoffs } => emitted(|buffer| cutoffs.emit(header, buffer)),
        Packet::Freeze { header } => emitted(|buffer| Freeze.emit(header, buffer)),
        Packet::NeedAck { header } => emitted(|buffer| NeedAck.emit(header, buffer)),
        Packet::Ack { header, ack } => emitted(|buffer| ack.emit(header, buffer)),
        Packet::Open { header, open } => emitted(|buffer| open.emit(header, buffer)),
        Packet::Token { header, credentials } => {
            emitted(|buffer| credentials.emit_token(header, buffer))
        }
        Packet::Confirm { header, credentials } => {
            emitted(|buffer| credentials.emit_confirm(header, buffer))
        }
        Packet::Abort { header } => {
            let mut packet = emitted(|buffer| Busy.emit(header, buffer));
            packet[11] = PacketType::Abort as u8;
            packet
        }
        Packet::Meet { header, meet } => emitted(|buffer| meet.emit(header, buffer)),
    }
}

/// Asserts that the packet, emitted and parsed, equals itself.
fn survives(packet: Packet<'_>) -> Result<(), TestCaseError> {
    let bytes = emitted_again(&packet);
    prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
    Ok(())
}

proptest! {
    #[test]
    fn extensions(
        (data, payload) in pieces(),
        header in headers(),
        deadline in any::<Option<u32>>(),
        ids in any::<Option<([u8; 16], [u8; 8], u8)>>(),
    ) {
        let trace = ids.and_then(|(trace, span, flags)| TraceContext::new(trace, span, flags));
        let extension = Extension { deadline, trace };
        let data = Data { flags: DataFlags(data.flags.0 & !DataFlags::EXTENDED.0), ..data };
        let mut buffer = [0xA5; Data::LEN_MAX];
        let length = data.emit_extended(&header, &extension, &mut buffer);
        let packet = [&buffer[..length], &payload].concat();
        prop_assert_eq!(Data::extension(&packet), extension);
        let flags = DataFlags(packet[49]);
        let expected = Packet::Data { header, data: Data { flags, ..data }, payload: &payload };
        prop_assert_eq!(Packet::parse(&packet), Ok(expected));
        let text = trace.map(|trace| trace.to_string());
        prop_assert_eq!(text.map(|text| text.parse()), trace.map(Ok));
    }

    #[test]
    fn any_words_are_an_extension(mut packet in vec(any::<u8>(), 0..200), text in any::<String>()) {
        if packet.len() > 50 {
            packet[49] |= DataFlags::EXTENDED.0;
            packet[50] %= 40;
        }
        let _ = Data::extension(&packet);
        let _: Result<TraceContext, _> = text.parse();
    }

    #[test]
    fn data((data, payload) in pieces(), header in headers()) {
        survives(Packet::Data { header, data, payload: &payload })?;
    }

    #[test]
    fn first_contact(header in headers(), token in any::<u64>(), code in any::<u64>(), issued in any::<u32>()) {
        survives(Packet::Open { header, open: Open { known: Token(token) } })?;
        let credentials = Credentials { token: Token(token), proof: Proof { code, issued }, compact: code % 2 == 0 };
        survives(Packet::Token { header, credentials })?;
        survives(Packet::Confirm { header, credentials })?;
        survives(Packet::Abort { header })?;
    }

    #[test]
    fn meet(header in headers(), nonce in any::<[u64; 2]>(), place in any::<u64>()) {
        survives(Packet::Meet { header, meet: Meet { nonce, place } })?;
    }

    #[test]
    fn grant(header in headers(), offset in any::<u32>(), priority in priorities()) {
        let packet = Packet::Grant { header, grant: Grant { offset, priority } };
        survives(packet)?;
    }

    #[test]
    fn resend(header in headers(), resend in resends()) {
        let packet = Packet::Resend { header, resend };
        survives(packet)?;
    }

    #[test]
    fn cutoffs(header in headers(), cutoffs in any::<[u32; 8]>(), version in any::<u16>()) {
        let packet = Packet::Cutoffs { header, cutoffs: Cutoffs { cutoffs, version } };
        survives(packet)?;
    }

    #[test]
    fn ack(header in headers(), finished in vec(entries(), 0..=Ack::MAX)) {
        let ack = Ack::new(&finished);
        prop_assert!(ack.iter().eq(finished));
        let packet = Packet::Ack { header, ack };
        survives(packet)?;
    }

    #[test]
    fn control_without_body(header in headers()) {
        let packets = [
            Packet::RpcUnknown { header, unknown: RpcUnknown { reason: UnknownReason::Finished } },
            Packet::Busy { header },
            Packet::Freeze { header },
            Packet::NeedAck { header },
        ];
        for packet in packets {
            survives(packet)?;
        }
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop_oneof![vec(any::<u8>(), 0..200), disguised()]) {
        if let Ok(packet) = Packet::parse(&bytes) {
            survives(packet)?;
        }
    }

    #[test]
    fn a_cut_packet_is_refused_as_such((data, payload) in pieces(), header in headers(), keep in 0_usize..DATA_HEADER_LEN) {
        //= docs/wire.md#W2
        let bytes = emitted_again(&Packet::Data { header, data, payload: &payload });
        let needed = if keep < apus_wire::COMMON_LEN { apus_wire::COMMON_LEN } else { DATA_HEADER_LEN };
        prop_assert_eq!(Packet::parse(&bytes[..keep]), Err(ParseError::TooShort { length: keep, needed }));
    }

    #[test]
    fn bundled_packets(headers in vec(headers(), 1..=bundle::MAX_PACKETS), payload in vec(any::<u8>(), 0..50)) {
        let mut buffer = Vec::new();
        bundle::start(&mut buffer);
        let mut expected = Vec::new();
        for header in &headers {
            let head = emitted(|buffer| Busy.emit(header, buffer));
            prop_assert!(bundle::push(&mut buffer, usize::MAX, &head, &payload));
            expected.push([head, payload.clone()].concat());
        }
        prop_assert_eq!(bundle::count(&buffer), headers.len());
        let found: Result<Vec<_>, _> = bundle::packets(&buffer).collect();
        prop_assert_eq!(found, Ok(expected.iter().map(Vec::as_slice).collect()));
    }

    #[test]
    fn any_bundle_comes_apart_or_is_refused(mut bytes in vec(0_u8..8, 0..200), mark in any::<bool>()) {
        if mark && bytes.len() > bundle::HEADER_LEN {
            bytes[..3].copy_from_slice(&[0, 0, 1]);
        }
        let items: Vec<_> = bundle::packets(&bytes).collect();
        prop_assert!(items.len() <= bundle::MAX_PACKETS + 1);
        let failed_at = items.iter().position(Result::is_err);
        prop_assert!(failed_at.is_none_or(|at| at == items.len() - 1), "something follows an error");
        let taken: usize = items.iter().flatten().map(|packet| bundle::ENTRY_LEN + packet.len()).sum();
        if failed_at.is_none() {
            prop_assert_eq!(bundle::HEADER_LEN + taken, bytes.len());
        }
    }
}

#[test]
fn types_have_the_names_tools_show() {
    let names = PacketType::ALL.map(PacketType::name);
    assert_eq!(
        names.join(" "),
        "data grant resend rpc_unknown busy cutoffs freeze need_ack ack open token confirm abort \
         meet"
    );
    assert_eq!(format!("{:>6}|{}", PacketType::Ack, RpcId(7)), "   ack|7");
}
