//! Hostile packets, and bounds on their cost.

use std::collections::BTreeMap;

use crate::pair::*;
use apus_proto::{Config, Endpoint, Event, Time};
use apus_wire::{
    Ack, Acked, Busy, Credentials, Cutoffs, Data, DataFlags, Grant, Header, MAX_HEADER, NeedAck,
    Open, PacketSink, PacketType, PathId, Priority, Proof, Resend, RpcId, RpcUnknown, Token,
    Transmit, UnknownReason,
};

fn request(message_length: u32, offset: u32, cutoff_version: u16, payload: &[u8]) -> Vec<u8> {
    let header = Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id: RpcId(1 << 16) };
    let data = Data {
        message_length,
        incoming: message_length,
        ack: None,
        cutoff_version,
        retransmit: false,
        flags: DataFlags::NONE,
        offset,
    };
    data_packet(header, data, payload)
}

/// Returns a packet of a random type, with numbers that often match existing state.
fn random_packet(random: &mut Random) -> Vec<u8> {
    let id = match random.below(3) {
        0 => RpcId(random.next()),
        _ => RpcId((1 << 16) + random.below(64)),
    };
    let ports = [CLIENT_PORT, PORT, 1 + random.below(65_535) as u16];
    let header = Header {
        source_port: ports[random.below(3) as usize],
        dest_port: ports[random.below(3) as usize],
        sender_id: id,
    };
    let number = |random: &mut Random| match random.below(4) {
        0 => random.next() as u32,
        1 => random.below(10) as u32,
        _ => random.below(100_000) as u32,
    };
    let priority = Priority::clamped(random.below(8) as u8);
    let mut buffer = [0; MAX_HEADER];
    let length = match random.below(11) {
        0 => Grant { offset: number(random), priority }.emit(&header, &mut buffer),
        1 => {
            let length = (random.below(2) == 0).then(|| number(random));
            Resend { offset: number(random), length, priority }.emit(&header, &mut buffer)
        }
        2 => {
            let reason = [UnknownReason::Unknown, UnknownReason::TokenUnknown];
            RpcUnknown { reason: reason[random.below(2) as usize] }.emit(&header, &mut buffer)
        }
        7 => {
            let proof = Proof { code: random.next(), issued: random.below(3) as u32 };
            let credentials =
                Credentials { token: Token(random.below(4)), proof, compact: random.below(2) == 0 };
            match random.below(3) {
                0 => Open { known: credentials.token }.emit(&header, &mut buffer),
                1 => credentials.emit_token(&header, &mut buffer),
                _ => credentials.emit_confirm(&header, &mut buffer),
            }
        }
        3 => Busy.emit(&header, &mut buffer),
        4 => {
            let cutoffs = std::array::from_fn(|_| number(random));
            Cutoffs { cutoffs, version: random.next() as u16 }.emit(&header, &mut buffer)
        }
        5 => NeedAck.emit(&header, &mut buffer),
        6 => {
            let acked = Acked { client_id: id, server_port: PORT };
            Ack::new(&[acked; 5]).emit(&header, &mut buffer)
        }
        _ => {
            let payload = vec![7; 1 + random.below(1_400) as usize];
            let offset = number(random) % 200_000;
            let data = Data {
                message_length: offset + payload.len() as u32 + number(random) % 100_000,
                incoming: number(random),
                ack: Some(Acked { client_id: id, server_port: PORT }),
                cutoff_version: 0,
                retransmit: random.below(2) == 0,
                flags: DataFlags(random.next() as u8),
                offset,
            };
            return data_packet(header, data, &payload);
        }
    };
    buffer[..length].to_vec()
}

//= docs/protocol.md#unsched-1
#[test]
fn a_request_of_which_nothing_is_kept_is_given_up_in_the_end() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_timeout(millis(100));
    });
    // The packet lies beyond the limit for gaps, and no byte is announced as unscheduled.
    let header = Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id: RpcId(1 << 16) };
    let data = Data {
        message_length: 10_000_000,
        incoming: 0,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: DataFlags::NONE,
        offset: 9_000_000,
    };
    pair.inject(path(CLIENT), SERVER, &data_packet(header, data, &[0; 100]));
    pair.drive_for(millis(1));
    assert_eq!(pair.active(SERVER), 1);
    pair.nodes[CLIENT].up = false;
    pair.drive_for(secs(2));
    assert_eq!(pair.active(SERVER), 0);
}

#[test]
fn random_bytes_do_no_harm() {
    let mut pair = Pair::acquainted(|_| {});
    let mut random = Random::new(1);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next() as u8).collect();
        let from = path(random.below(4) as usize);
        pair.inject(from, SERVER, &bytes);
    }
    assert!(pair.counters(SERVER).dropped_malformed > 15_000);
    let call = pair.call(10_000);
    pair.drive();
    pair.response(call);
}

#[test]
fn damaged_packets_do_no_lasting_harm() {
    for seed in 0..20 {
        let mut pair = Pair::acquainted(|_| {});
        let (mut random, mut flips) = (Random::new(seed), Random::new(seed + 100));
        for _ in 0..20 {
            pair.call(random.below(50_000) as usize + 1);
            pair.drive_for(micros(30));
            for sent in pair.sent.clone() {
                if flips.chance(100) {
                    let mut bytes = sent.bytes.clone();
                    let place = flips.below(bytes.len().min(90) as u64) as usize;
                    bytes[place] ^= 1 << flips.below(8);
                    pair.inject(path(sent.from), 1 - sent.from, &bytes);
                }
            }
            pair.sent.clear();
        }
        pair.drive();
        assert_eq!(pair.active(CLIENT) + pair.active(SERVER), 0);
        let counters = pair.counters(CLIENT);
        assert_eq!(counters.calls, counters.calls_completed + counters.calls_failed);
    }
}

#[test]
fn forged_packets_of_every_type_never_break_an_invariant() {
    for seed in 0..10 {
        let mut pair = Pair::with(|config| {
            config.peer_budget(1 << 20).peer_timeout(millis(50));
        });
        pair.keep_sent = false;
        let mut random = Random::new(seed);
        for _ in 0..2_000 {
            let to = random.below(2) as usize;
            let from = path(random.below(10) as usize);
            let packet = random_packet(&mut random);
            if random.chance(500) {
                pair.inject_raw(from, to, &packet);
            } else if from != path(to) && (from == path(1 - to) || random.chance(20)) {
                pair.inject(from, to, &packet);
            }
            if random.chance(50) {
                pair.call(random.below(20_000) as usize + 1);
            }
            if random.chance(200) {
                pair.drive_for(micros(random.below(500)));
            }
            for node in &pair.nodes {
                assert!(node.endpoint.held_bytes() < 20 << 20 && node.endpoint.known_peers() <= 30);
            }
        }
        pair.drive();
        for node in &pair.nodes {
            assert!(node.endpoint.held_bytes() < 6 * 40_000);
        }
    }
}

/// Counts the bytes sent to each path.
#[derive(Default)]
struct Ledger {
    sent: BTreeMap<PathId, u64>,
}

impl PacketSink for Ledger {
    fn send(&mut self, packet: Transmit<'_>) {
        *self.sent.entry(packet.path).or_default() += packet.len() as u64;
    }

    fn max_packet(&self, _: PathId) -> usize {
        ETHERNET
    }
}

//= docs/protocol.md#hostile-2
#[test]
fn an_unknown_peer_never_gets_more_bytes_than_it_sent() {
    for seed in 0..10 {
        let mut server = Endpoint::new(Config::default(), u128::from(seed));
        server.open(Some(PORT)).expect("free");
        let (mut random, mut ledger) = (Random::new(seed), Ledger::default());
        let (mut now, mut received) = (Time::ZERO, BTreeMap::<PathId, u64>::new());
        for _ in 0..5_000 {
            let mut from = path(random.below(5) as usize);
            if random.chance(500) {
                from = native_path(from.index() / 2);
            }
            let mut packet = random_packet(&mut random);
            if packet.len() > 8 {
                packet[8] = random.below(3) as u8;
            }
            *received.entry(from).or_default() += packet.len() as u64;
            server.handle_packet(now, from, &packet);
            while let Some(event) = server.poll_event() {
                if let Event::Request { rpc, .. } = event {
                    let answer = body(1 + random.below(50_000) as usize, 1);
                    server.reply(now, rpc, answer).expect("it is in service");
                }
            }
            now = now + micros(random.below(2_000));
            server.handle_timeout(now);
            while server.poll_transmit(now, &mut ledger) {}
            for (to, &sent) in &ledger.sent {
                assert!(sent <= received[to], "{to:?} sent {} and got {sent}", received[to]);
            }
        }
        assert!(ledger.sent.values().all(|&sent| sent > 1_000));
    }
}

#[test]
fn blocked_responses_are_bounded_and_go_with_their_requests() {
    let mut pair = Pair::new();
    pair.answer_with(2_000);
    let header = |n: u64| Header {
        source_port: CLIENT_PORT,
        dest_port: PORT,
        sender_id: RpcId((1 << 16) + 2 * n),
    };
    for n in 1..3_000 {
        let data = Data {
            message_length: 1,
            incoming: 1,
            ack: None,
            cutoff_version: 0,
            retransmit: false,
            flags: DataFlags::NONE,
            offset: 0,
        };
        pair.inject(path(7), SERVER, &data_packet(header(n), data, b"x"));
        let mut buffer = [0; MAX_HEADER];
        let length = Resend { offset: 0, length: None, priority: Priority::HIGHEST }
            .emit(&header(n), &mut buffer);
        pair.drive_for(micros(1));
        for _ in 0..3 {
            pair.inject(path(7), SERVER, &buffer[..length]);
            pair.drive_for(micros(1));
        }
        let length = Ack::new(&[]).emit(&header(n), &mut buffer);
        pair.inject(path(7), SERVER, &buffer[..length]);
    }
    assert!(pair.active(SERVER) < 10);
}

#[test]
fn acknowledgements_of_what_is_not_finished_do_nothing() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    let header = *pair.sent_by(CLIENT, PacketType::Data)[0].packet().header();
    let mut buffer = [0; MAX_HEADER];
    let length = Ack::new(&[]).emit(&header, &mut buffer);
    pair.inject(path(CLIENT), SERVER, &buffer[..length]);
    pair.inject(path(5), SERVER, &buffer[..length]);
    assert!(pair.active(SERVER) == 1 && pair.counters(SERVER).dropped_mismatch == 1);
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#life-1
#[test]
fn packets_with_wrong_ports_or_addresses_are_dropped() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(500_000);
    pair.drive_for(micros(25));
    let right = *pair.sent_by(SERVER, PacketType::Grant)[0].packet().header();
    let mut buffer = [0; MAX_HEADER];
    for (from, source_port, dest_port) in
        [(SERVER, PORT + 1, CLIENT_PORT), (SERVER, PORT, CLIENT_PORT + 1), (5, PORT, CLIENT_PORT)]
    {
        let header = Header { source_port, dest_port, ..right };
        let unknown = RpcUnknown { reason: UnknownReason::NoSuchPort };
        let length = unknown.emit(&header, &mut buffer);
        pair.inject(path(from), CLIENT, &buffer[..length]);
    }
    assert_eq!(pair.counters(CLIENT).dropped_mismatch, 2);
    assert_eq!(pair.outcome(CLIENT, call), None);
}

#[test]
fn lengths_that_contradict_each_other_are_dropped() {
    let mut pair = Pair::new();
    pair.inject(path(7), SERVER, &request(3_000, 0, 0, &[1; 1_000]));
    pair.inject(path(7), SERVER, &request(2_000, 1_000, 0, &[1; 1_000]));
    assert_eq!(pair.counters(SERVER).dropped_inconsistent, 1);
    for (length, offset) in [(0, 0), (10, 5), (10, u32::MAX - 1)] {
        pair.inject(path(7), SERVER, &request(length, offset, 0, b"123456"));
    }
    assert_eq!(pair.counters(SERVER).dropped_malformed, 3);
    pair.inject(path(7), SERVER, &request(u32::MAX, 0, 0, b"x"));
    assert_eq!(pair.active(SERVER), 1);
}

//= docs/protocol.md#hostile-5
#[test]
fn a_packet_far_ahead_costs_no_more_than_its_share() {
    let mut pair = Pair::new();
    let length = 64 << 20;
    pair.inject(path(7), SERVER, &request(length, length - 1, 0, b"x"));
    assert_eq!(pair.counters(SERVER).dropped_gaps, 1);
    pair.inject(path(7), SERVER, &request(length, 0, 0, b"x"));
    pair.inject(path(7), SERVER, &request(length, 1 << 20, 0, b"x"));
    assert_eq!((pair.counters(SERVER).dropped_gaps, pair.counters(SERVER).gaps), (1, 1));
}

//= docs/protocol.md#hostile-5
#[test]
fn gaps_are_bounded_and_the_message_completes_all_the_same() {
    let mut pair = Pair::acquainted(|config| {
        config.unscheduled(1 << 20).unscheduled_max(1 << 20);
    });
    pair.answer_with(1);
    pair.mtu = 56 + 100;
    // Every other packet is lost the first time: 2,500 gaps.
    pair.hook = Some(Box::new(|passing| match passing.data(CLIENT) {
        Some(data) if !data.retransmit && data.offset / 100 % 2 == 0 => Fate::Drop,
        _ => Fate::Pass,
    }));
    let call = pair.call(500_000);
    pair.drive();
    pair.response(call);
    assert!(pair.counters(SERVER).dropped_gaps > 0);
    assert_eq!(pair.nodes[SERVER].executed, [body(500_000, 500_000)]);
}

#[test]
fn a_forged_claim_of_incoming_bytes_blocks_the_others_for_a_moment_only() {
    let mut pair = Pair::acquainted(|_| {});
    pair.inject(path(7), SERVER, &request(64 << 20, 0, 0, &[1; 1_000]));
    pair.answer_with(1);
    let call = pair.call(2_000_000);
    let started = pair.now;
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let took = pair.now.saturating_since(started);
    assert!(took < millis(60), "{took:?}");
    pair.drive();
    assert_eq!(pair.active(SERVER), 0);
}

//= docs/protocol.md#hostile-6
#[test]
fn a_flood_of_questions_makes_a_bounded_queue() {
    let mut pair = Pair::acquainted(|_| {});
    let header = Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id: RpcId(2) };
    let mut buffer = [0; MAX_HEADER];
    let resend = Resend { offset: 0, length: None, priority: Priority::HIGHEST };
    let length = resend.emit(&header, &mut buffer);
    for _ in 0..70_000 {
        pair.inject(path(CLIENT), SERVER, &buffer[..length]);
    }
    assert_eq!(pair.counters(SERVER).dropped_control, 70_000 - (1 << 16));
    pair.keep_sent = false;
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
}

/// The first DATA of `length` bytes of the sending node is damaged: the message seems to be longer.
fn damaged(from: usize, length: usize) -> Pair {
    let mut pair = Pair::acquainted(|_| {});
    pair.sent.clear();
    let mut first = true;
    pair.hook = Some(Box::new(move |passing| {
        let hit = passing.data(from).is_some() && std::mem::take(&mut first);
        if hit { Fate::Drop } else { Fate::Pass }
    }));
    let (request, response) = if from == CLIENT { (length, 10) } else { (10, length) };
    pair.answer_with(response);
    let call = pair.call(request);
    pair.drive_until(|net| !net.sent_by(from, PacketType::Data).is_empty());
    let mut packet = pair.sent_by(from, PacketType::Data)[0].bytes.clone();
    packet[28..32].copy_from_slice(&(length as u32 + 40_000).to_be_bytes());
    pair.inject(path(from), 1 - from, &packet);
    pair.drive();
    assert_eq!(pair.response(call).len(), response);
    assert_eq!(pair.nodes[SERVER].executed.last().map(bytes::Bytes::len), Some(request));
    pair.assert_clean();
    pair
}

//= docs/protocol.md#loss-11
//= docs/protocol.md#hostile-5
#[test]
fn a_damaged_length_is_found_out() {
    for from in [CLIENT, SERVER] {
        for length in [1_000, 30_000, 300_000] {
            let pair = damaged(from, length);
            assert!(pair.counters(1 - from).dropped_inconsistent >= 2);
        }
    }
}

/// [`request`] for the `n`th request of its sender.
fn nth_request(n: u64, message_length: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = request(message_length, offset, 0, payload);
    packet[20..28].copy_from_slice(&((1 << 16) + 2 * n).to_be_bytes());
    packet
}

//= docs/protocol.md#prio-1
#[test]
fn lengths_that_are_only_claimed_change_nobodys_priorities() {
    let mut pair = Pair::acquainted(|_| {});
    for n in 0..10_100 {
        pair.inject(path(7), SERVER, &nth_request(n, 3_000, 0, b"x"));
    }
    pair.drive_for(micros(10));
    assert!(pair.active(SERVER) >= 10_000);
    assert_eq!(pair.counters(SERVER).cutoffs_changed, 0);
    pair.answer_with(1);
    for _ in 0..100 {
        (0..101).for_each(|_| _ = pair.call(3_000));
        pair.drive();
    }
    assert_eq!(pair.counters(SERVER).cutoffs_changed, 1, "received messages count");
}
