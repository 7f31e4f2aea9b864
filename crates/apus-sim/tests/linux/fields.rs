//! Our packets and the module's for the same calls, field by field. The differences are those listed in docs/linux-homa.md.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apus_proto::{CallOptions, Config, Endpoint, Event, Remote, Time};
use apus_wire::{PacketSink, PathId, Transmit};

use crate::module::settings::Settings;
use crate::module::{Emitted, Happened, Module};

const PORT: u16 = 4000;

fn host(number: u8) -> PathId {
    PathId::new(number.into(), number.into()).native()
}

/// A packet with the TOS byte of its priority.
type Sent = (u8, Vec<u8>);

#[derive(Default)]
struct Wire(Vec<Sent>);

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        self.0.push((packet.priority.tos(), [packet.header, packet.payload()].concat()));
    }

    fn max_packet(&self, _to: PathId) -> usize {
        1_480
    }
}

/// Two hosts without a network between them: each packet arrives at once.
struct Hosts {
    endpoint: Endpoint,
    module: Module,
    now: Duration,
    ours: Vec<Sent>,
    theirs: Vec<Sent>,
}

impl Hosts {
    fn new() -> Self {
        let mut endpoint = Endpoint::new(Config::default(), 1);
        endpoint.open(Some(PORT)).expect("a port");
        let module = Module::new(Settings::default(), &[PORT]);
        Self { endpoint, module, now: Duration::ZERO, ours: Vec::new(), theirs: Vec::new() }
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now.as_nanos() as u64)
    }

    /// Makes one call each way, ours first.
    fn call_both_ways(&mut self, length: usize) {
        let socket = self.endpoint.open(None).expect("a port");
        let to = Remote::new(host(2), PORT);
        let body = vec![7; length];
        let now = self.time();
        self.endpoint
            .call(now, socket, to, body.clone(), CallOptions::default())
            .expect("the call is within limits");
        self.settle();
        self.module.call(host(1), PORT, body);
        self.settle();
        self.endpoint.close(socket);
    }

    /// Runs for a tenth of a second, until both hosts are idle.
    fn settle(&mut self) {
        for step in 0..2_000 {
            self.now += Duration::from_micros(50);
            let now = self.time();
            if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                self.endpoint.handle_timeout(now);
            }
            let mut wire = Wire::default();
            self.endpoint.poll_transmit(now, &mut wire);
            for sent in wire.0 {
                self.module.handle_packet(self.now, host(1), &sent.1);
                self.ours.push(sent);
            }
            if step % 20 == 0 {
                self.module.tick();
            }
            while let Some(happened) = self.module.poll_happened() {
                if let Happened::Request { from, id, body } = happened {
                    self.module.reply(from, id, body);
                }
            }
            while let Some(emitted) = self.module.poll_emitted() {
                let Emitted::Packet { priority, bytes, .. } = emitted else {
                    panic!("{emitted:?}")
                };
                self.endpoint.handle_packet(now, host(2), &bytes);
                self.theirs.push((priority << 5, bytes));
            }
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    Event::Request { rpc, body, .. } => {
                        self.endpoint.reply(now, rpc, body).expect("the request is in service");
                    }
                    Event::Response { .. } => {}
                    Event::Connected { .. } | Event::Cancelled { .. } => {
                        unreachable!("the hosts make no connections and watches nothing")
                    }
                    Event::Failed { error, .. } => panic!("{error}"),
                }
            }
        }
    }
}

const NAMES: [(u8, &str); 9] = [
    (0x10, "DATA"),
    (0x11, "GRANT"),
    (0x12, "RESEND"),
    (0x13, "RPC_UNKNOWN"),
    (0x14, "BUSY"),
    (0x15, "CUTOFFS"),
    (0x16, "FREEZE"),
    (0x17, "NEED_ACK"),
    (0x18, "ACK"),
];

/// Fields by name and place. For control packets, only those that do not depend on the time.
fn fields(packet: &[u8]) -> Vec<(&'static str, &[u8])> {
    let mut fields = vec![
        ("bytes 8 to 10", &packet[8..11]),
        ("header words", &packet[12..13]),
        ("flags", &packet[13..14]),
        ("window", &packet[14..16]),
        ("checksum", &packet[16..18]),
        ("urgent pointer", &packet[18..20]),
    ];
    if packet[11] == 0x10 {
        fields.extend([
            ("sequence", &packet[4..8]),
            ("message length", &packet[28..32]),
            ("incoming", &packet[32..36]),
            ("cutoff version", &packet[46..48]),
            ("retransmit", &packet[48..49]),
            ("padding", &packet[49..52]),
            ("segment offset", &packet[52..56]),
            ("payload", &packet[56..]),
        ]);
    }
    fields
}

/// Packets by role and type.
fn by_kind(sent: &[Sent]) -> BTreeMap<(bool, u8), Vec<&Sent>> {
    let mut kinds: BTreeMap<_, Vec<&Sent>> = BTreeMap::new();
    for packet in sent {
        kinds.entry((packet.1[27] & 1 == 1, packet.1[11])).or_default().push(packet);
    }
    kinds
}

/// The differing fields, as "TYPE field".
fn differences(ours: &[Sent], theirs: &[Sent]) -> BTreeSet<String> {
    let (ours, theirs) = (by_kind(ours), by_kind(theirs));
    let mut found = BTreeSet::new();
    for (&(server, kind), packets) in &ours {
        let name = NAMES.iter().find(|(byte, _)| *byte == kind).expect("a type").1;
        let Some(others) = theirs.get(&(server, kind)) else { continue };
        if kind == 0x10 {
            let lengths = |packets: &[&Sent]| -> Vec<usize> {
                packets.iter().map(|(_, bytes)| bytes.len()).collect()
            };
            if lengths(packets) != lengths(others) {
                found.insert(format!("{name} boundaries"));
            }
        } else if packets[0].1.len() != others[0].1.len() {
            found.insert(format!("{name} length"));
        }
        for ((tos, packet), (other_tos, other)) in packets.iter().zip(others) {
            if tos != other_tos && packet.len() == other.len() && packet[4..8] == other[4..8] {
                found.insert(format!("{name} priority"));
            }
            for ((field, value), (_, other)) in fields(packet).into_iter().zip(fields(other)) {
                let moved = found.contains(&format!("{name} boundaries"))
                    && ["sequence", "payload"].contains(&field);
                if value != other && !moved {
                    let of = if field == "checksum" { "every" } else { name };
                    found.insert(format!("{of} {field}"));
                }
            }
        }
    }
    found
}

#[test]
fn our_packets_differ_from_the_modules_only_where_the_document_says() {
    let always = ["every checksum", "DATA cutoff version", "DATA segment offset"];
    let long = ["DATA boundaries", "DATA incoming", "DATA priority", "GRANT length"];
    for length in [100, 1_424, 1_425, 60_000, 500_000] {
        let mut hosts = Hosts::new();
        hosts.call_both_ways(10_000); // Both hosts know the other's cutoffs now.
        hosts.call_both_ways(100);
        (hosts.ours, hosts.theirs) = (Vec::new(), Vec::new());
        hosts.call_both_ways(length);
        assert_eq!(hosts.module.complaints(), [""; 0]);
        let found = differences(&hosts.ours, &hosts.theirs);
        println!("{length}: {found:?}");
        let known: BTreeSet<String> = always
            .iter()
            .chain(long.iter().filter(|_| length > 40_000))
            .map(ToString::to_string)
            .collect();
        let unknown: Vec<_> = found.difference(&known).collect();
        assert!(unknown.is_empty(), "{length}: {unknown:?}");
    }
}
