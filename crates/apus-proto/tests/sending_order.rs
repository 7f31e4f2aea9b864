//! The sender's half: the choice of the next message, and its time.

use crate::pair::*;
use apus_proto::{Config, RpcKey};
use apus_wire::{Header, MAX_HEADER, PacketType, PathId, Priority, Resend};

/// Returns a pair in which every byte may be sent at once, so that only the sender decides.
fn eager(change: impl Fn(&mut Config)) -> Pair {
    let mut pair = Pair::with(|config| {
        config.unscheduled(16 << 20).unscheduled_max(16 << 20).fifo_share(0);
        change(config);
    });
    pair.answer_with(1);
    pair
}

/// Returns the lengths of the messages of the sent packets, in order.
fn lengths(pair: &Pair) -> Vec<u32> {
    let data = pair.sent_by(CLIENT, PacketType::Data);
    let mut lengths: Vec<u32> = data
        .iter()
        .map(|sent| match sent.packet() {
            apus_wire::Packet::Data { data, .. } => data.message_length,
            _ => unreachable!("asked for DATA"),
        })
        .collect();
    lengths.dedup();
    lengths
}

fn finished_in_order(pair: &Pair, calls: &[RpcKey]) -> bool {
    calls.is_sorted_by_key(|&call| pair.ended_at(CLIENT, call))
}

//= docs/protocol.md#send-3
#[test]
fn the_message_with_the_shortest_rest_goes_first() {
    let mut pair = eager(|_| {});
    let calls = [300_000, 100_000, 200_000].map(|length| pair.call(length));
    pair.drive();
    assert_eq!(lengths(&pair), [100_000, 200_000, 300_000]);
    assert!(finished_in_order(&pair, &[calls[1], calls[2], calls[0]]));
}

//= docs/protocol.md#send-3
#[test]
fn a_shorter_message_overtakes_one_that_is_under_way() {
    let mut pair = eager(|_| {});
    pair.call(1_000_000);
    pair.drive_for(micros(100));
    pair.call(50_000);
    pair.drive();
    assert_eq!(lengths(&pair), [1_000_000, 50_000, 1_000_000]);
}

//= docs/protocol.md#send-2
#[test]
fn short_messages_never_wait_for_the_pacer() {
    let mut pair = eager(|config| {
        config.link_mbps(100);
    });
    pair.call(1_000_000);
    pair.drive_for(millis(1));
    let started = pair.now;
    let calls = [999, 500, 1].map(|length| pair.call(length));
    pair.drive();
    for call in calls {
        assert_eq!(pair.ended_at(CLIENT, call), started + 2 * micros(10));
    }
}

//= docs/protocol.md#send-4
#[test]
fn the_oldest_message_goes_on_among_shorter_ones() {
    let run = |share| {
        let mut pair = eager(|config| {
            config.fifo_share(share).burst(1_500).priorities(8);
        });
        pair.keep_sent = false;
        let old = pair.call(1_000_000);
        for _ in 0..50 {
            pair.call(200_000);
        }
        pair.drive();
        pair.ended_at(CLIENT, old).as_nanos()
    };
    let (last, shared) = (run(0), run(300));
    assert!(shared < last * 2 / 3, "{shared} {last}");
}

//= docs/protocol.md#send-3
//= docs/protocol.md#loss-7
#[test]
fn what_is_asked_for_again_waits_for_shorter_messages() {
    let mut net = Net::new(3, |_, config| {
        config.link_mbps(1_000).fifo_share(0);
    });
    for client in [0, 2] {
        net.call_from(client, 1, body(100, 1));
        net.call_from(1, client, body(100, 1));
    }
    net.drive();
    net.nodes[1].app =
        App::Answer(Box::new(|request| body(if request.len() == 1 { 900_000 } else { 10_000 }, 1)));
    // The client of a long response requests all of it, again and again.
    net.call_from(0, 1, body(1, 1));
    net.drive_for(millis(5));
    let response =
        net.sent_by(1, PacketType::Data).last().expect("it goes").packet().header().sender_id;
    let header =
        Header { source_port: CLIENT_PORT, dest_port: PORT, sender_id: response.flipped() };
    let all = Resend { offset: 0, length: Some(900_000), priority: Priority::HIGHEST };
    let mut packet = [0; MAX_HEADER];
    let length = all.emit(&header, &mut packet);
    let mut took = Vec::new();
    for _ in 0..20 {
        net.inject(path(0), 1, &packet[..length]);
        let (began, call) = (net.now, net.call_from(2, 1, body(100, 1)));
        net.drive_for(micros(2_500));
        took.push(net.ended_at(2, call).saturating_since(began));
    }
    assert!(net.counters(1).retransmitted_bytes > 0);
    assert!(took.iter().all(|&took| took < micros(500)), "{took:?}");
}

//= docs/protocol.md#pace-1
#[test]
fn the_link_is_never_handed_more_than_its_rate() {
    let mut pair = eager(|config| {
        config.link_mbps(1_000);
    });
    pair.call(1_250_000);
    pair.drive();
    let data = pair.sent_by(CLIENT, PacketType::Data);
    let (first, last) = (data[0].at, data[data.len() - 1].at);
    let took = last.saturating_since(first);
    // 10 ms of payload at 1 Gb/s, 8 % of headers, 1 % of reserve; 5 µs may be ahead.
    assert!(took > millis(10) && took < micros(11_200), "{took:?}");
    for pair in data.windows(2) {
        assert!(pair[1].at.saturating_since(pair[0].at) < micros(20));
    }
}

#[test]
fn a_rate_that_was_set_holds_whatever_the_link_reports() {
    let paced = |set: bool| {
        let mut pair = eager(|config| {
            if set {
                config.link_mbps(1_000);
            }
        });
        let now = pair.now;
        pair.endpoint(CLIENT).set_path(now, path(SERVER), false, Some(10_000));
        pair.call(1_250_000);
        pair.drive();
        let data = pair.sent_by(CLIENT, PacketType::Data);
        data[data.len() - 1].at.saturating_since(data[0].at)
    };
    assert!(paced(true) > millis(10) && paced(false) < micros(1_200));
}

//= docs/protocol.md#pace-2
#[test]
fn loopback_peers_and_switched_off_pacing_go_at_once() {
    for loopback in [false, true] {
        let mut pair = eager(|config| {
            config.link_mbps(1).pacing(loopback);
        });
        let now = pair.now;
        pair.endpoint(CLIENT).set_path(now, path(SERVER), loopback, None);
        pair.call(1_000_000);
        pair.drive_for(micros(1));
        assert_eq!(pair.data_sent_by(CLIENT), 1_000_000);
    }
}

//= docs/protocol.md#send-1
#[test]
fn unscheduled_bytes_are_rounded_up_to_whole_packets() {
    for (mtu, packets) in [(ETHERNET, 29), (9_000, 5), (65_507, 1)] {
        let mut pair = Pair::new();
        pair.mtu = mtu;
        pair.call(10_000_000);
        pair.drive_for(micros(15));
        let data = pair.sent_by(CLIENT, PacketType::Data);
        assert_eq!(data.len(), packets);
        assert!(data.iter().all(|sent| sent.bytes.len() == mtu));
        let apus_wire::Packet::Data { data, .. } = data[0].packet() else { unreachable!() };
        assert_eq!(data.incoming as usize, packets * (mtu - 56));
    }
}

//= docs/protocol.md#send-5
#[test]
fn a_path_that_narrows_gets_pieces_of_the_original_packets() {
    let mut pair = Pair::new();
    pair.mtu = 9_000;
    let call = pair.call(400_000);
    pair.drive_for(micros(35));
    pair.mtu = 1_400;
    pair.drive();
    assert_eq!(pair.response(call), &body(400_000, 400_000));
    for sent in pair.sent_by(CLIENT, PacketType::Data) {
        let apus_wire::Packet::Data { data, payload, .. } = sent.packet() else { unreachable!() };
        let (start, end) = (data.offset, data.offset + payload.len() as u32 - 1);
        assert_eq!(start / 8_944, end / 8_944, "a packet across two original ones");
    }
}

//= docs/protocol.md#send-5
#[test]
fn of_a_packet_in_pieces_only_those_that_were_lost_are_sent_again() {
    let mut pair = Pair::new();
    pair.mtu = 60_000;
    let call = pair.call(50_000);
    // The whole packet is lost, and then every tenth of its pieces.
    let mut sent = 0;
    pair.hook = Some(Box::new(move |passing| {
        sent += usize::from(passing.is(PacketType::Data, CLIENT));
        let lost = passing.is(PacketType::Data, CLIENT) && (sent == 1 || sent % 10 == 0);
        if lost { Fate::Drop } else { Fate::Pass }
    }));
    pair.drive_for(micros(5));
    pair.mtu = 700;
    pair.drive();
    assert_eq!(pair.response(call), &body(50_000, 50_000));
    assert!(pair.data_sent_by(CLIENT) < 120_000, "{}", pair.data_sent_by(CLIENT));
}

//= docs/protocol.md#send-6
#[test]
fn a_turn_hands_out_one_burst() {
    let mut pair = eager(|config| {
        config.burst(10_000).pacing(false);
    });
    pair.call(100_000);
    let (now, mut count) = (pair.now, Count::new(ETHERNET));
    let mut turns = 0;
    while pair.endpoint(CLIENT).poll_transmit(now, &mut count) {
        turns += 1;
        let sent = std::mem::take(&mut count.bytes);
        assert!((10_000..11_416).contains(&sent), "{sent}");
    }
    assert_eq!((turns, count.bytes), (8, 100_000 - 8 * 8 * 1_416));
}

//= docs/protocol.md#send-6
#[test]
fn a_turn_hands_out_little_while_short_calls_are_under_way() {
    for (wait, payload) in [(0, 32_768), (299, 32_768), (300, 65_507 - 56)] {
        let mut pair = eager(|config| {
            config.pacing(false);
        });
        let short = pair.call(100);
        pair.drive_until(|pair| pair.outcome(CLIENT, short).is_some());
        pair.call(200_000);
        let (now, mut count) = (pair.now + micros(wait), Count::new(65_507));
        pair.endpoint(CLIENT).poll_transmit(now, &mut count);
        assert_eq!((count.bytes, count.longest), (payload, payload), "after {wait} us");
    }
}

//= docs/protocol.md#send-6
#[test]
fn a_message_under_way_goes_on_in_pieces_while_short_calls_are_under_way() {
    let mut pair = eager(|_| {});
    pair.mtu = 65_507;
    pair.call(2_000_000);
    pair.drive_for(micros(100));
    let short = pair.call(100);
    pair.drive_until(|pair| pair.outcome(CLIENT, short).is_some());
    let (now, mut count) = (pair.now + micros(50), Count::new(65_507));
    pair.endpoint(CLIENT).poll_transmit(now, &mut count);
    assert_eq!((count.bytes, count.longest), (32_725, 32_725), "half a packet");
}

/// Counts the bytes of messages.
struct Count {
    max_packet: usize,
    bytes: usize,
    longest: usize,
}

impl Count {
    fn new(max_packet: usize) -> Self {
        Self { max_packet, bytes: 0, longest: 0 }
    }
}

impl apus_wire::PacketSink for Count {
    fn send(&mut self, packet: apus_wire::Transmit<'_>) {
        self.bytes += packet.range.len();
        self.longest = self.longest.max(packet.range.len());
    }

    fn max_packet(&self, _: PathId) -> usize {
        self.max_packet
    }
}
