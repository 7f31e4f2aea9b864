//! Several endpoints of one host keep within their shared limits.

use std::collections::BTreeSet;

use crate::pair::*;
use apus_proto::{CallError, CallOptions, Config, HostLoad};
use apus_wire::{Packet, PacketSink, PacketType, PathId, Transmit};

/// `n` nodes have begun long calls to node 0, whose other endpoints hold `others`.
fn receiver(n: usize, others: HostLoad, change: impl Fn(&mut Config)) -> Net {
    let mut net = Net::new(n + 1, |_, config| {
        config.fifo_share(0).max_incoming(300_000).unscheduled(2_000).confirm_peers(false);
        change(config);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    let now = net.now;
    net.endpoint(0).set_others(now, others);
    for from in 1..=n {
        net.call_from(from, 0, body(1_000_000, 1));
    }
    net
}

/// Returns the number of senders granted for the first time until now.
fn granted(net: &Net) -> usize {
    let grants = net.sent_by(0, PacketType::Grant);
    grants.iter().map(|sent| sent.to).collect::<BTreeSet<PathId>>().len()
}

//= docs/protocol.md#host-1
#[test]
fn the_overcommitment_is_divided_by_who_waits() {
    for (own, others, expected) in [(8, 0, 8), (8, 8, 4), (8, 24, 4), (2, 6, 2), (1, 8, 1)] {
        let others = HostLoad { granting: others, ..HostLoad::default() };
        let mut net = receiver(own, others, |_| {});
        net.hook = Some(Box::new(|passing| match passing.packet {
            Packet::Grant { .. } => Fate::Drop,
            _ => Fate::Pass,
        }));
        net.drive_for(micros(50));
        assert_eq!(granted(&net), expected, "{own} of ours, {others:?}");
    }
}

//= docs/protocol.md#host-2
#[test]
fn what_the_other_endpoints_expect_is_left_out_of_the_limit() {
    for (expected, most) in [(0, 300_000), (150_000, 150_000), (290_000, 200_000)] {
        let others = HostLoad { expected, granting: 1, ..HostLoad::default() };
        let mut net = receiver(2, others, |_| {});
        for _ in 0..500 {
            net.drive_for(micros(10));
            let held = net.endpoint(0).load().expected;
            // Its part is two of three windows, and a fourth is free for the next sender.
            assert!(held <= most.max(150_000), "{held} expected beside {expected}");
        }
        net.drive();
        assert_eq!(net.counters(0).requests, 2);
    }
}

//= docs/protocol.md#host-2
#[test]
fn room_that_other_endpoints_make_is_used_at_once() {
    let full = HostLoad { expected: 300_000, granting: 7, ..HostLoad::default() };
    let mut net = receiver(1, full, |_| {});
    net.drive_for(micros(25));
    let before = net.counters(0).granted_bytes;
    let now = net.now;
    net.endpoint(0).set_others(now, HostLoad::default());
    assert_eq!(net.endpoint(0).poll_ready(), Some(apus_proto::Time::ZERO));
    net.drive_for(micros(1));
    assert!(net.counters(0).granted_bytes > before);
}

/// A link that counts packets.
#[derive(Default)]
struct Counted(u64);

impl PacketSink for Counted {
    fn send(&mut self, packet: Transmit<'_>) {
        self.0 += packet.header.len() as u64 + packet.payload().len() as u64 + 70;
    }

    fn max_packet(&self, _: PathId) -> usize {
        ETHERNET
    }
}

//= docs/protocol.md#host-3
#[test]
fn together_they_send_at_the_rate_of_the_link() {
    let mut net = Net::new(3, |_, config| {
        config.link_mbps(10_000).unscheduled(16 << 20).unscheduled_max(16 << 20);
    });
    for from in [0, 1] {
        net.try_call(from, 2, body(14_000_000, 1), CallOptions::default()).expect("within limits");
    }
    let mut links = [Counted::default(), Counted::default()];
    for now in (0..10_000_000).step_by(500).map(apus_proto::Time::from_nanos) {
        for (index, link) in links.iter_mut().enumerate() {
            let others = net.nodes[1 - index].endpoint.load();
            let endpoint = net.endpoint(index);
            endpoint.set_others(now, others);
            endpoint.poll_transmit(now, link);
        }
    }
    let full = 12_500_000;
    let [first, second] = links.map(|link| link.0);
    assert!((full * 97 / 100..full * 101 / 100).contains(&(first + second)), "{first} {second}");
    assert!(first.abs_diff(second) < full / 50, "{first} {second}");
}

//= docs/protocol.md#host-4
#[test]
fn what_the_other_endpoints_hold_counts_against_the_limits_of_the_host() {
    let mut net = Net::unacquainted(3, |_, config| {
        config.total_budget(1 << 20).peers_max(10).incast_threshold(100);
    });
    let set_others = |net: &mut Net, others| {
        let now = net.now;
        net.endpoint(0).set_others(now, others);
    };
    set_others(&mut net, HostLoad { calls: 100, ..HostLoad::default() });
    net.call_from(0, 1, body(10, 1));
    assert_eq!(net.counters(0).calls_in_incast, 1);
    net.drive();
    set_others(&mut net, HostLoad { peers: 9, ..HostLoad::default() });
    let options = CallOptions::default();
    let refused = net.try_call(0, 2, body(10, 1), options);
    assert_eq!(refused, Err(CallError::TooManyPeers { limit: 10 }));
    // A request of 200,000 bytes finds no room until other endpoints make some.
    set_others(&mut net, HostLoad { held: 800_000, ..HostLoad::default() });
    let call = net.call_from(1, 0, body(200_000, 1));
    net.drive_for(millis(20));
    assert!(net.outcome(1, call).is_none() && net.counters(0).refused_over_budget > 0);
    set_others(&mut net, HostLoad::default());
    net.drive();
    assert!(matches!(net.outcome(1, call), Some(Outcome::Response(_))));
}

//= docs/protocol.md#host-4
#[test]
fn a_socket_has_one_budget_at_all_endpoints() {
    let mut net = Net::new(2, |_, config| {
        config.socket_budget(1 << 20);
    });
    let service = net.nodes[0].service;
    net.endpoint(0).set_socket_others(service, 800_000);
    let call = net.call_from(1, 0, body(200_000, 1));
    net.drive_for(millis(20));
    assert!(net.outcome(1, call).is_none() && net.counters(0).refused_over_budget > 0);
    net.endpoint(0).set_socket_others(service, 0);
    net.drive_until(|net| net.nodes[0].endpoint.socket_held(service) > 200_000);
    net.drive();
    assert!(matches!(net.outcome(1, call), Some(Outcome::Response(_))));
}
