//! Tests that the dissector (`wireshark/homa.lua`) reads the files of a capture link.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use apus_wire::compact::{self, AckRange, Entry, Envelope, Message};
use apus_wire::{
    Abort, Ack, Acked, Busy, Credentials, Cutoffs, DATA_HEADER_LEN, Data, DataFlags, Extension,
    Freeze, Grant, Header, MAX_HEADER, Meet, NeedAck, Open, PacketSink, PacketType, Priority,
    Proof, Resend, RpcId, RpcUnknown, Stamp, Token, TraceContext, Transmit, UnknownReason, bundle,
};

use super::CaptureLink;
use crate::link::Link;
use crate::recorder::{PEER, Recorder};
use crate::skipped::skipped;

#[cfg(feature = "secure")]
mod sealed;

/// A capture file of these packets; those of a server are received ones. Removed at the end.
struct Capture(PathBuf);

impl Capture {
    /// Writes the capture, between these addresses; port 0 is a native link.
    fn new(name: &str, [local, peer]: [&str; 2], packets: &[Vec<u8>]) -> Self {
        let path = env::temp_dir().join(format!("apus-wireshark-{name}-{}.pcapng", process::id()));
        let [local, peer] = [local, peer].map(|address| Some(address.parse().unwrap()));
        let link = Recorder { local, peer, ..Recorder::default() };
        let mut link = CaptureLink::new(link, fs::File::create(&path).unwrap()).unwrap();
        for packet in packets {
            if packet.get(27).is_some_and(|byte| byte % 2 == 1) {
                link.link.arriving.push_back(packet.clone());
                assert_eq!(link.recv(&mut |_, _: &[u8]| {}), 1);
            } else {
                link.send(Transmit::control(PEER, Priority::HIGHEST, packet));
            }
        }
        link.finish().unwrap();
        Self(path)
    }

    fn udp(name: &str, packets: &[Vec<u8>]) -> Self {
        let stamped: Vec<Vec<u8>> = packets.iter().map(|packet| stamped(packet)).collect();
        Self::new(name, ["10.0.0.1:7000", "10.0.0.2:7001"], &stamped)
    }

    /// Runs tshark with these further arguments. Returns its output, or `None`, with a message, if it is not installed.
    fn shown(&self, arguments: &[&str]) -> Option<String> {
        self.shown_after(&[], arguments)
    }

    /// The same, with arguments before the dissector is loaded.
    fn shown_after(&self, first: &[&str], arguments: &[&str]) -> Option<String> {
        let dissector = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wireshark/homa.lua");
        if !dissector.exists() {
            skipped("wireshark/homa.lua is not part of this package");
            return None;
        }
        let mut tshark = Command::new("tshark");
        tshark.args(["-n", "-2"]).args(first);
        tshark.args(["-X", &format!("lua_script:{}", dissector.display()), "-r"]);
        let Ok(output) = tshark.arg(&self.0).args(arguments).output() else {
            skipped("tshark is not installed");
            return None;
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("Lua Error"), "{text}");
        Some(text)
    }

    /// Returns these fields of each packet, one line per packet.
    fn fields(&self, fields: &[&str]) -> Option<String> {
        let mut arguments = vec!["-T", "fields", "-E", "separator=|"];
        arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
        self.shown(&arguments)
    }

    /// Returns the number of matching packets.
    fn matching(&self, filter: &str) -> Option<usize> {
        self.shown(&["-Y", filter]).map(|text| text.lines().count())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const REQUEST: Data = Data {
    message_length: 200,
    incoming: 200,
    ack: None,
    cutoff_version: 1,
    retransmit: false,
    flags: DataFlags::NONE,
    offset: 0,
};

fn client(id: u64) -> Header {
    Header { source_port: 32768, dest_port: 4000, sender_id: RpcId(id) }
}

fn server(id: u64) -> Header {
    Header { source_port: 4000, dest_port: 32768, sender_id: RpcId(id + 1) }
}

fn control(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut buffer = [0; MAX_HEADER];
    let length = emit(&mut buffer);
    buffer[..length].to_vec()
}

/// Returns DATA with `payload` bytes of payload.
fn data(header: Header, data: Data, payload: usize) -> Vec<u8> {
    let mut head = [0; DATA_HEADER_LEN];
    data.emit(&header, &mut head);
    [&head[..], &vec![7; payload]].concat()
}

/// Stamps a packet: over UDP every packet has a token and a version. Bundles and truncated packets stay unchanged.
fn stamped(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet.len() >= 28 && packet[..2] != [0, 0] {
        Stamp::new(Token(0xA5A5_0000_5A5A_0001)).write(&mut packet);
    }
    packet
}

/// Returns a packet of each type that both links have.
fn of_each_type() -> Vec<Vec<u8>> {
    let acked = Acked { client_id: RpcId(6), server_port: 4000 };
    let cutoffs = Cutoffs { cutoffs: [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200], version: 1 };
    let (all, some) = (None, Some(9));
    let resend = |length| Resend { offset: 100, length, priority: Priority::HIGHEST };
    let grant = Grant { offset: 200, priority: Priority::LOWEST };
    vec![
        data(client(6), REQUEST, 200),
        data(client(8), Data { ack: Some(acked), ..REQUEST }, 100),
        data(client(8), Data { offset: 100, retransmit: true, ..REQUEST }, 100),
        control(|buffer| grant.emit(&server(8), buffer)),
        control(|buffer| resend(all).emit(&client(8), buffer)),
        control(|buffer| resend(some).emit(&server(8), buffer)),
        control(|buffer| Busy.emit(&server(8), buffer)),
        data(server(8), REQUEST, 200),
        control(|buffer| RpcUnknown { reason: UnknownReason::Finished }.emit(&server(8), buffer)),
        control(|buffer| cutoffs.emit(&server(8), buffer)),
        control(|buffer| NeedAck.emit(&server(8), buffer)),
        control(|buffer| Ack::new(&[acked, acked]).emit(&client(8), buffer)),
        control(|buffer| Freeze.emit(&Header { dest_port: 0, ..client(0) }, buffer)),
    ]
}

/// Returns a packet of each type that only UDP has.
fn of_apus() -> Vec<Vec<u8>> {
    let credentials =
        Credentials { token: Token(5), proof: Proof { code: 6, issued: 7 }, compact: true };
    let trace = TraceContext::new([0x4b; 16], [0xf0; 8], TraceContext::SAMPLED);
    let extended = |deadline, trace| {
        let mut head = [0; Data::LEN_MAX];
        let extension = Extension { deadline, trace };
        let length = REQUEST.emit_extended(&client(10), &extension, &mut head);
        [&head[..length], &[7; 200]].concat()
    };
    vec![
        control(|buffer| Open { known: Token::NONE }.emit(&client(10), buffer)),
        control(|buffer| credentials.emit_token(&server(10), buffer)),
        control(|buffer| credentials.emit_confirm(&client(10), buffer)),
        extended(Some(1_500_000), None),
        extended(None, trace),
        extended(Some(1_500_000), trace),
        control(|buffer| Abort.emit(&client(10), buffer)),
        control(|buffer| Meet { nonce: [1, 2], place: 3 }.emit(&client(0), buffer)),
    ]
}

#[test]
fn no_field_of_any_type_is_unknown() {
    let all = [of_each_type(), of_apus()].concat();
    for (capture, packets) in [
        (Capture::udp("udp", &all), &all),
        (Capture::new("ip", ["10.0.0.1:0", "10.0.0.2:0"], &of_each_type()), &of_each_type()),
        (
            Capture::new("ipv6", ["[2001:db8::1]:0", "[2001:db8::2]:0"], &of_each_type()),
            &of_each_type(),
        ),
    ] {
        let Some(types) = capture.fields(&["homa.type"]) else { return };
        let expected: String =
            packets.iter().map(|packet| format!("0x{:02x}\n", packet[11])).collect();
        assert_eq!(types, expected);
        let unknown =
            "homa.unknown || apus.unknown || _ws.malformed || _ws.expert.severity == error";
        assert_eq!(capture.matching(unknown), Some(0));
    }
    let types: BTreeSet<u8> = all.iter().map(|packet| packet[11]).collect();
    assert_eq!(types, PacketType::ALL.map(|it| it as u8).into());
}

#[test]
fn a_deadline_and_a_trace_context_are_shown() {
    let capture = Capture::udp("extension", &of_apus());
    let fields = ["deadline", "trace_id", "span_id", "trace_flags"];
    let fields = fields.map(|field| format!("homa.extension.{field}"));
    let Some(text) = capture.fields(&fields.each_ref().map(String::as_str)) else { return };
    let (trace, span) = ("4b".repeat(16), "f0".repeat(8));
    let both = format!("{trace}|{span}|0x01");
    let expected = format!("|||\n|||\n|||\n1500000|||\n|{both}\n1500000|{both}\n|||\n|||\n");
    assert_eq!(text, expected);
    assert_eq!(capture.matching("homa.expert.bad_extension"), Some(0));
}

#[test]
fn an_empty_message_is_shown_as_such() {
    let message = Data { message_length: 1, incoming: 1, ..REQUEST };
    let empty = Data { flags: DataFlags::EMPTY, ..message };
    let packets = [data(client(2), empty, 1), data(client(4), message, 1)];
    let capture = Capture::udp("empty", &packets);
    let Some(text) = capture.fields(&["homa.rpc.id", "homa.data_flags.empty"]) else { return };
    assert_eq!(text, "2|1\n4|0\n");
}

#[test]
fn packets_of_a_call_belong_together() {
    let capture = Capture::udp("call", &of_each_type());
    let fields =
        ["homa.rpc", "homa.rpc.id", "homa.message", "homa.request_in", "homa.reassembled.length"];
    let Some(text) = capture.fields(&fields) else { return };
    let expected = "0|6|request|1|200
1|8|request|2|
1|8|request|2|200
1|8|request|2|
1|8|response|2|
1|8|request|2|
1|8|response|2|
1|8|response|2|200
1|8|response|2|
1|8|response|2|
1|8|response|2|
1|8|request|2|
||||
";
    assert_eq!(text, expected);
    assert_eq!(capture.matching("homa.rpc == 1"), Some(11));
    assert_eq!(capture.matching("homa.ack.rpc == 0"), Some(2));
    assert_eq!(capture.matching("homa.rpc == 1 && homa.response_in == 8"), Some(11));
}

/// A restarted client uses the ids of its previous run, with another token.
#[test]
fn requests_of_two_runs_of_a_client_are_two_calls_although_no_response_was_captured() {
    let request = |length: u32, token| {
        let (message_length, incoming) = (length, length);
        let request = Data { message_length, incoming, ..REQUEST };
        let mut packet = data(client(8), request, length as usize);
        Stamp::new(Token(token)).write(&mut packet);
        packet
    };
    let packets = [request(200, 5), request(200, 5), request(100, 6)];
    let capture = Capture::new("runs", ["10.0.0.1:7000", "10.0.0.2:7001"], &packets);
    let Some(text) = capture.fields(&["homa.rpc", "homa.rpc.id"]) else { return };
    assert_eq!(text, "0|8\n0|8\n1|8\n");
}

#[test]
fn long_packets_in_any_order_make_a_message() {
    let piece = |offset, length| {
        data(client(2), Data { message_length: 3000, incoming: 3000, offset, ..REQUEST }, length)
    };
    let packets =
        [piece(2000, 1000), piece(0, 1000), piece(0, 1000), piece(500, 1000), piece(1500, 500)];
    let capture = Capture::udp("order", &packets);
    let fields = ["homa.reassembled.length", "homa.fragment"];
    let Some(text) = capture.fields(&fields) else { return };
    let expected = "|\n|\n|\n|\n3000|1,2,3,4,5\n";
    assert_eq!(text, expected);
    let filter = "frame.number == 1 && homa.expert.gap \
        || frame.number == 3 && homa.expert.duplicate || frame.number == 4 && homa.expert.overlap";
    assert_eq!(capture.matching(filter), Some(3));
    let bytes = capture.shown(&["-T", "fields", "-e", "homa.reassembled.data"]).unwrap();
    assert_eq!(bytes.trim().len(), 2 * 3000);
    assert!(bytes.trim().bytes().enumerate().all(|(at, digit)| digit == b"07"[at % 2]));
}

#[test]
fn what_is_remarkable_is_said() {
    let of = |packet: Vec<u8>, at: usize, byte: u8| {
        let mut packet = stamped(&packet);
        packet[at] = byte;
        packet
    };
    let request = || data(client(2), REQUEST, 200);
    let grant = |offset| {
        control(|buffer| Grant { offset, priority: Priority::LOWEST }.emit(&server(2), buffer))
    };
    let resend = || {
        let all = Resend { offset: 0, length: None, priority: Priority::HIGHEST };
        control(|buffer| all.emit(&client(2), buffer))
    };
    let unknown = |reason| control(|buffer| RpcUnknown { reason }.emit(&server(2), buffer));
    let longer = Data { message_length: 900, ..REQUEST };
    let cases: [(Vec<u8>, &str); 20] = [
        (resend(), "homa.expert.resend && homa.expert.unseen_request"),
        (request()[..40].to_vec(), "homa.expert.too_short && homa.unknown"),
        (request()[..20].to_vec(), "homa.expert.too_short && homa.unknown"),
        (of(request(), 11, 0x1E), "homa.expert.unknown_type"),
        (data(client(2), REQUEST, 201), "homa.expert.past_end"),
        (data(client(2), REQUEST, 0), "homa.expert.empty_payload"),
        (
            data(client(2), Data { message_length: 0, ..REQUEST }, 9),
            "homa.expert.zero_length_message",
        ),
        (of(grant(9), 32, 8), "homa.expert.bad_priority"),
        (of(resend(), 35, 0xFE), "homa.expert.negative_length"),
        (of(request(), 8, 2), "homa.expert.other_version && homa.unknown"),
        (of(request(), 9, 2), "homa.expert.reserved"),
        (request(), "homa && !_ws.expert || homa.expert.duplicate"),
        (
            data(client(2), Data { retransmit: true, ..REQUEST }, 200),
            "homa.expert.retransmission && homa.expert.duplicate",
        ),
        (data(client(2), longer, 200), "homa.expert.length_changed"),
        (grant(100), "homa.expert.repeated_grant"),
        (grant(201), "homa.expert.grant_past_end"),
        (
            data(server(2), Data { incoming: 100, offset: 100, ..REQUEST }, 100),
            "homa.expert.beyond_grant",
        ),
        (control(|buffer| Busy.emit(&server(2), buffer)), "homa.expert.busy"),
        (unknown(UnknownReason::OverBudget), "homa.expert.rpc_unknown && homa.reason == 4"),
        (control(|buffer| Abort.emit(&client(2), buffer)), "homa.expert.abort"),
    ];
    let packets: Vec<Vec<u8>> = cases.iter().map(|(packet, _)| stamped_once(packet)).collect();
    let capture = Capture::new("experts", ["10.0.0.1:20146", "10.0.0.2:20146"], &packets);
    let of_frame = |(index, (_, filter)): (usize, &(Vec<u8>, &str))| {
        format!("(frame.number == {} && ({filter}))", index + 1)
    };
    let filters: Vec<String> = cases.iter().enumerate().map(of_frame).collect();
    let filter = filters.join(" || ");
    let arguments = ["-Y", &filter, "-T", "fields", "-e", "frame.number"];
    let Some(text) = capture.shown(&arguments) else { return };
    let found: BTreeSet<usize> = text.lines().map(|number| number.parse().unwrap()).collect();
    for (number, filter) in (1..).zip(&filters) {
        assert!(found.contains(&number), "{filter}");
    }
}

/// Stamps a packet without a version; one with a version stays unchanged, whatever its errors.
fn stamped_once(packet: &[u8]) -> Vec<u8> {
    if packet.len() > 8 && packet[8] != 0 { packet.to_vec() } else { stamped(packet) }
}

#[test]
fn bundles_and_segments_are_taken_apart() {
    let packets = of_each_type();
    let mut whole = Vec::new();
    bundle::start(&mut whole);
    for packet in &packets {
        assert!(bundle::push(&mut whole, usize::MAX, &stamped(packet), &[]));
    }
    let long = |offset| {
        let piece = Data { message_length: 3000, incoming: 3000, offset, ..REQUEST };
        stamped(&data(client(20), piece, 1000))
    };
    let segments = [long(0), long(1000), long(2000)].concat();
    let two_bundles = [&whole[..], &whole[..]].concat();
    let mut cut = whole.clone();
    cut.truncate(whole.len() - 5);
    let mut behind = whole.clone();
    behind.push(1);
    let datagrams = [whole.clone(), segments, two_bundles, cut, behind, vec![0, 0, 5, 1, 0, 0]];
    let capture = Capture::new("bundles", ["10.0.0.1:20146", "10.0.0.2:20146"], &datagrams);
    let Some(text) =
        capture.fields(&["homa.type", "apus.expert.malformed_bundle", "apus.segment.length"])
    else {
        return;
    };
    let types: Vec<String> = packets.iter().map(|packet| format!("0x{:02x}", packet[11])).collect();
    let (all, last) = (types.join(","), types[..types.len() - 1].join(","));
    let expected = format!(
        "{all}||\n0x10,0x10,0x10||1056\n{all},{all}||{}\n{last}|1|\n{all}|1|\n|1|\n",
        whole.len()
    );
    assert_eq!(text, expected);
    assert_eq!(capture.matching("frame.number <= 3 && (homa.unknown || apus.unknown)"), Some(0));
    assert_eq!(capture.matching("frame.number == 2 && homa.reassembled.length == 3000"), Some(1));
}

//= docs/wire.md#W53
#[test]
fn entries_of_a_compact_bundle_appear_as_packets() {
    let envelope = Envelope { token: Token(0xA5A5_0000_5A5A_0001), cutoff_version: 3 };
    let message = |header, body| {
        let flags = DataFlags::NONE;
        Entry::Message(Message { header, flags, words: &[], body })
    };
    let extension = [1, 4, 0, 0, 0, 9, 0, 0];
    let mut extended = message(client(10), &[6; 30]);
    if let Entry::Message(message) = &mut extended {
        message.words = &extension;
    }
    let acks = Entry::Acks(AckRange { first: RpcId(2), count: 8 });
    let entries = [message(client(8), &[7; 20]), acks, message(server(2), &[5; 1]), extended];
    let mut datagram = Vec::new();
    compact::start(&mut datagram, &envelope, RpcId(8));
    for entry in &entries {
        assert!(compact::push(&mut datagram, usize::MAX, &envelope, entry));
    }
    let cut = datagram[..datagram.len() - 1].to_vec();
    let capture = Capture::new("compact", ["10.0.0.1:20146", "10.0.0.2:20146"], &[datagram, cut]);
    let fields =
        ["homa.type", "homa.rpc.id", "homa.message_length", "apus.expert.malformed_bundle"];
    let Some(text) = capture.fields(&fields) else { return };
    let some = "0x10,0x18,0x18,0x10";
    let expected = format!("{some},0x10|8,2,14,2,10|20,1,30|\n{some}|8,2,14,2|20,1|1\n");
    assert_eq!(text, expected);
    assert_eq!(capture.matching("homa.expert.reserved || homa.unknown"), Some(0));
}

#[test]
fn a_comment_says_what_was_decided() {
    let capture = Capture::udp("comments", &of_each_type()[..4]);
    let Some(text) = capture.fields(&["frame.comment"]) else { return };
    let expected = "rpc=6 request unscheduled priority=7
rpc=8 request unscheduled priority=7
rpc=8 request unscheduled retransmission priority=7
rpc=8 grant
";
    assert_eq!(text, expected);
}
