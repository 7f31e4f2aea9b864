//! The context of a distributed trace accompanies the first byte of a request only.

use crate::pair::{
    CLIENT, Fate, Faults, PORT, Pair, Random, SERVER, body, micros, native_path, secs,
};
use apus_proto::{CallOptions, Cookie, Remote};
use apus_wire::{DATA_HEADER_LEN, Data, DataFlags, Extension, PacketType, TraceContext};

fn context(number: u8) -> TraceContext {
    TraceContext::new([number; 16], [0xCD; 8], number).unwrap()
}

fn traced(number: u8) -> CallOptions {
    CallOptions {
        cookie: Cookie::Key(7),
        trace: Some(Box::new(context(number))),
        ..CallOptions::default()
    }
}

/// Returns the extension of each DATA packet of the client, by its offset.
fn extensions(pair: &Pair) -> Vec<(u32, Extension)> {
    let offset = |bytes: &[u8]| Data::parse(bytes).unwrap().0.offset;
    let data = pair.sent_by(CLIENT, PacketType::Data);
    data.iter().map(|sent| (offset(&sent.bytes), Data::extension(&sent.bytes))).collect()
}

//= docs/protocol.md#life-10
#[test]
fn a_request_of_any_length_has_its_trace_once() {
    // Lengths around the payload that fits one packet: 1,472 less 56 bytes of header, and 28 bytes of extension, or 36 with a
    // deadline.
    for deadline in [None, Some(secs(50))] {
        for length in [1, 100, 1_380, 1_381, 1_388, 1_389, 1_416, 1_417, 2_000, 300_000] {
            let mut pair = Pair::new();
            pair.hold();
            let deadline = deadline.map(|deadline| pair.now + deadline);
            let options = CallOptions { deadline, ..traced(1) };
            let request = body(length, 1);
            pair.try_call(CLIENT, SERVER, request.clone(), options).unwrap();
            pair.drive_for(secs(1));
            let [held] = &pair.nodes[SERVER].requests[..] else { panic!("one request") };
            assert_eq!((held.trace, &held.body), (Some(context(1)), &request), "{length}");
            let extensions = extensions(&pair);
            let present = extensions.iter().filter(|(_, extension)| !extension.is_empty());
            assert!(
                present.clone().all(|(offset, it)| *offset == 0 && it.trace == Some(context(1)))
            );
            assert_eq!(present.count(), 1, "{length}");
            assert!(pair.sent.iter().all(|sent| sent.bytes.len() <= pair.mtu));
        }
    }
}

//= docs/protocol.md#life-10
#[test]
fn a_trace_survives_the_loss_of_the_first_packet() {
    for length in [100, 5_000, 300_000] {
        let mut pair = Pair::new();
        pair.hold();
        pair.lose_first(|passing| passing.data(CLIENT).is_some_and(|data| data.offset == 0));
        pair.try_call(CLIENT, SERVER, body(length, 1), traced(1)).unwrap();
        pair.drive_for(secs(1));
        let traces: Vec<_> = pair.nodes[SERVER].requests.iter().map(|it| it.trace).collect();
        assert_eq!(traces, [Some(context(1))], "{length}");
        assert_eq!(extensions(&pair).iter().filter(|(_, it)| !it.is_empty()).count(), 2);
    }
}

//= docs/protocol.md#life-10
#[test]
fn every_request_has_its_own_trace_whatever_the_network_does() {
    let mut pair = Pair::new();
    pair.hold();
    let random = Random::new(5);
    let (loss, duplicate, late) = (100, 100, 100);
    pair.faults = Some(Faults { loss, duplicate, late, lateness: micros(200), random });
    let lengths = [1, 1_400, 3_000, 40_000, 200_000];
    for number in 1..=100_u8 {
        let length = lengths[usize::from(number) % lengths.len()];
        let body = vec![number; length].into();
        let trace = traced(number).trace.filter(|_| number % 3 > 0);
        pair.try_call(CLIENT, SERVER, body, CallOptions { trace, ..traced(number) }).unwrap();
    }
    // A held request is not answered, so the test stops the clock.
    pair.drive_for(secs(2));
    let requests = &pair.nodes[SERVER].requests;
    assert_eq!(requests.len(), 100);
    for request in requests {
        let number = request.body[0];
        assert_eq!(request.trace, (number % 3 > 0).then(|| context(number)), "{number}");
    }
}

#[test]
fn a_call_without_a_trace_sends_no_byte_more() {
    let mut pair = Pair::new();
    pair.call(100);
    pair.drive();
    let data = pair.sent_by(CLIENT, PacketType::Data);
    assert_eq!(data[0].bytes.len(), DATA_HEADER_LEN + 100);
    assert_eq!(extensions(&pair), [(0, Extension::default())]);
}

#[test]
fn a_response_has_no_trace() {
    let mut pair = Pair::new();
    pair.try_call(CLIENT, SERVER, body(2_000, 1), traced(1)).unwrap();
    pair.drive();
    let data = pair.sent_by(SERVER, PacketType::Data);
    assert!(!data.is_empty());
    assert!(data.iter().all(|sent| Data::extension(&sent.bytes).is_empty()));
    pair.assert_clean();
}

//= docs/protocol.md#linux-2
#[test]
fn a_linux_host_receives_no_trace() {
    let mut pair = Pair::new();
    let (now, socket) = (pair.now, pair.nodes[CLIENT].socket);
    let to = Remote::new(native_path(SERVER), PORT);
    pair.endpoint(CLIENT).call(now, socket, to, body(100, 1), traced(1)).unwrap();
    pair.hook = Some(Box::new(|_| Fate::Drop));
    pair.drive_for(micros(100));
    let data = pair.sent_by(CLIENT, PacketType::Data);
    assert_eq!(data.len(), 1);
    assert_eq!(data[0].bytes.len(), DATA_HEADER_LEN + 100);
    assert_eq!(data[0].bytes[49], DataFlags::NONE.0);
}

//= docs/protocol.md#life-10
#[test]
fn a_call_that_begins_anew_keeps_its_trace() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    pair.restart(SERVER);
    pair.hold();
    pair.try_call(CLIENT, SERVER, body(300_000, 1), traced(1)).unwrap();
    pair.drive_for(secs(1));
    let [held] = &pair.nodes[SERVER].requests[..] else { panic!("one request") };
    assert_eq!(held.trace, Some(context(1)));
    assert_eq!(pair.counters(CLIENT).calls_begun_anew, 1);
}
