//! Sealed paths of UDP links, with keys that the tests give them.
#![cfg(feature = "secure")]

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use apus_net::{
    Link, PathKeys, SealEvent, SealedKey, SealedPaths, Sleeper, UdpConfig, UdpLink, conformance,
};
use apus_seal::{AssociationId, PathSecret, Role, Suite};
use apus_wire::{PacketSink, PathId, Priority, Transmit};
use bytes::Bytes;

/// The choice of the only path between two nodes.
const MAIN: SealedKey = SealedKey { local: 0, port: 0 };

/// Upper bound on the wait for a packet. A correct link never waits this long.
const TIMEOUT: Duration = Duration::from_secs(20);

const HEADER: [u8; 56] = [7; 56];

fn link(config: &UdpConfig) -> UdpLink {
    UdpLink::bind("127.0.0.1:0".parse().unwrap(), config.clone().seals(true)).unwrap()
}

/// Two links with keys for each other.
struct Pair {
    a: UdpLink,
    b: UdpLink,
    /// The path from `a` to `b`, and back.
    ab: PathId,
    ba: PathId,
    ids: [AssociationId; 2],
}

impl Pair {
    fn new(config: &UdpConfig) -> Self {
        let (a, b) = (link(config), link(config));
        let addresses = [a.local_addr(), b.local_addr()];
        Self::between(a, b, addresses)
    }

    /// Gives keys to two links. Each finds the other at one of the addresses, in this order.
    fn between(mut a: UdpLink, mut b: UdpLink, [at_a, at_b]: [SocketAddr; 2]) -> Self {
        // The library examines a path before it sends long messages.
        conformance::towards(&mut a, at_b);
        conformance::towards(&mut b, at_a);
        let (ab, ba) =
            (a.resolve_sealed(at_b, MAIN).unwrap(), b.resolve_sealed(at_a, MAIN).unwrap());
        let ids = [a.reserve_keys(1).unwrap(), b.reserve_keys(2).unwrap()];
        let mut pair = Self { a, b, ab, ba, ids };
        pair.install_a();
        pair.install_b();
        pair
    }

    fn install_a(&mut self) {
        assert!(self.a.install_keys(self.ab, self.ids[0], keys(Role::Client, self.ids[1])));
    }

    fn install_b(&mut self) {
        assert!(self.b.install_keys(self.ba, self.ids[1], keys(Role::Server, self.ids[0])));
    }

    /// Sends packets from `a` and returns those that `b` receives, with their paths.
    fn exchange(&mut self, packets: &[Vec<u8>]) -> Vec<(PathId, Vec<u8>)> {
        packets.iter().for_each(|packet| send(&mut self.a, self.ab, packet));
        self.a.flush();
        receive(&mut self.b, packets.len())
    }
}

fn keys(role: Role, peer_id: AssociationId) -> PathKeys {
    PathKeys {
        secret: PathSecret::new([5; 32]),
        role,
        suite: Suite::Aes128Gcm,
        peer_id,
        lifetime: Duration::from_secs(3_600),
        is_refresh: false,
    }
}

/// Returns a packet whose bytes differ from those of other numbers. Its header is as long as that of DATA.
fn packet(number: usize, len: usize) -> Vec<u8> {
    let text = format!("packet {number}, which nobody else may read. ");
    HEADER.into_iter().chain(text.bytes().cycle()).take(len).collect()
}

fn send(link: &mut UdpLink, path: PathId, packet: &[u8]) {
    let body = Bytes::copy_from_slice(&packet[HEADER.len().min(packet.len())..]);
    link.send(Transmit {
        path,
        priority: Priority::HIGHEST,
        header: &packet[..packet.len() - body.len()],
        body: &body,
        range: 0..body.len(),
    });
}

fn receive(link: &mut UdpLink, count: usize) -> Vec<(PathId, Vec<u8>)> {
    let sleeper = Sleeper::new().unwrap();
    let mut received = Vec::new();
    let end = Instant::now() + TIMEOUT;
    while received.len() < count {
        assert!(Instant::now() < end, "{} of {count} packets arrived", received.len());
        link.look_everywhere();
        let taken = link.recv(&mut |from: PathId, packet: &[u8]| {
            received.push((from, packet.to_vec()));
        });
        if taken == 0 {
            sleeper.sleep(link.descriptors(), Some(TIMEOUT));
        }
    }
    received
}

/// Receives all that has arrived, and returns the number of packets.
fn receive_rest(link: &mut UdpLink) -> usize {
    let mut count = 0;
    link.look_everywhere();
    while link.recv(&mut |_: PathId, _: &[u8]| count += 1) > 0 {
        link.look_everywhere();
    }
    count
}

#[test]
fn packets_of_all_sizes_arrive_by_the_sealed_path() {
    //= docs/wire.md#W45
    //= docs/wire.md#W46
    let mut pair = Pair::new(&UdpConfig::default());
    let max = pair.a.max_packet(pair.ab);
    let plain = conformance::towards(&mut pair.a, pair.b.local_addr());
    assert_eq!(max, pair.a.max_packet(plain) - 36);
    for len in [28, 156, 1_399, 1_400, 1_401, 1_500, 10_000, max - 1, max] {
        let sent = packet(len, len);
        assert_eq!(pair.exchange(std::slice::from_ref(&sent)), [(pair.ba, sent)], "{len} bytes");
    }
    assert_eq!(pair.a.counters().sealed_sent, 9);
    assert_eq!(pair.b.counters().sealed_received, 9);
}

#[test]
fn short_packets_share_a_record() {
    //= docs/protocol.md#seal-12
    let mut pair = Pair::new(&UdpConfig::default());
    let packets: Vec<_> = (0..64).map(|number| packet(number, 156)).collect();
    let received = pair.exchange(&packets);
    assert_eq!(received.into_iter().map(|(_, packet)| packet).collect::<Vec<_>>(), packets);
    let counters = pair.a.counters();
    assert_eq!((counters.sealed_sent, counters.datagrams_sent, counters.bundles_sent), (1, 1, 1));
}

#[test]
fn equal_packets_are_records_of_one_train() {
    //= docs/protocol.md#seal-12
    let mut pair = Pair::new(UdpConfig::default().max_packet(1_472));
    let full = pair.a.max_packet(pair.ab);
    assert_eq!(full, 1_472 - 36);
    let packets: Vec<_> =
        (0..100).map(|number| packet(number, full)).chain([packet(100, 1_410)]).collect();
    let received = pair.exchange(&packets);
    assert_eq!(received.into_iter().map(|(_, packet)| packet).collect::<Vec<_>>(), packets);
    let counters = pair.a.counters();
    assert_eq!((counters.sealed_sent, counters.datagrams_sent), (101, 101));
    assert!(counters.send_calls < 10, "{} calls", counters.send_calls);
}

#[test]
fn plain_and_sealed_packets_leave_by_one_flush() {
    let mut pair = Pair::new(&UdpConfig::default());
    let plain = conformance::towards(&mut pair.a, pair.b.local_addr());
    for len in [100, 5_000] {
        send(&mut pair.a, plain, &packet(1, len));
        send(&mut pair.a, pair.ab, &packet(2, len));
    }
    pair.a.flush();
    let received = receive(&mut pair.b, 4);
    for (from, packet_) in received {
        let expected = packet(if from.is_sealed() { 2 } else { 1 }, packet_.len());
        assert_eq!(packet_, expected);
        assert_eq!(from == pair.ba, from.is_sealed());
    }
}

/// Two links that reach each other by a socket of the test.
struct Proxied {
    pair: Pair,
    proxy: UdpSocket,
}

impl Proxied {
    fn new() -> Self {
        let proxy = UdpSocket::bind("127.0.0.1:0").unwrap();
        proxy.set_read_timeout(Some(TIMEOUT)).unwrap();
        let at = proxy.local_addr().unwrap();
        let config = UdpConfig::default();
        Self { pair: Pair::between(link(&config), link(&config), [at, at]), proxy }
    }

    /// Sends a packet from `a` and returns its datagram, before it reaches `b`.
    fn intercept(&mut self, packet: &[u8]) -> Vec<u8> {
        send(&mut self.pair.a, self.pair.ab, packet);
        self.pair.a.flush();
        self.next_datagram()
    }

    fn next_datagram(&self) -> Vec<u8> {
        let mut datagram = vec![0; 70_000];
        let (len, _) = self.proxy.recv_from(&mut datagram).unwrap();
        datagram.truncate(len);
        datagram
    }

    fn deliver(&self, datagram: &[u8]) {
        self.proxy.send_to(datagram, self.pair.b.local_addr()).unwrap();
    }
}

#[test]
fn nothing_on_the_way_can_be_read() {
    //= docs/wire.md#W44
    let mut lab = Proxied::new();
    for len in [60, 156, 5_000] {
        let packet = packet(1, len);
        let datagram = lab.intercept(&packet);
        assert_eq!(datagram.len(), len + 36);
        assert_eq!(datagram[..3], [0, 0, 2]);
        let is_seen = |part: &[u8]| datagram.windows(part.len()).any(|bytes| bytes == part);
        assert!(!is_seen(&packet[..8]), "the header is sealed");
        assert!(len < 90 || !is_seen(b"nobody else may read"), "the payload is sealed");
    }
}

#[test]
fn a_changed_a_repeated_and_a_plain_datagram_reach_nobody() {
    //= docs/protocol.md#seal-14
    let mut lab = Proxied::new();
    let long = packet(1, 5_000);
    let datagram = lab.intercept(&long);
    for at in [3, 12, 19, 20, 4_000, datagram.len() - 1] {
        let mut changed = datagram.clone();
        changed[at] ^= 0x20;
        lab.deliver(&changed);
    }
    lab.deliver(&datagram);
    lab.deliver(&datagram);
    assert_eq!(receive(&mut lab.pair.b, 1), [(lab.pair.ba, long)]);
    assert_eq!(receive_rest(&mut lab.pair.b), 0);
    let counters = lab.pair.b.counters();
    assert_eq!((counters.sealed_received, counters.dropped_replay), (1, 1));
    let dropped =
        counters.dropped_forged + counters.sealed_malformed + counters.dropped_unknown_keys;
    assert_eq!(dropped, 6);
}

#[test]
fn a_record_from_another_address_is_no_packet_of_the_path() {
    //= docs/protocol.md#seal-10
    let mut lab = Proxied::new();
    let first = packet(1, 156);
    let datagram = lab.intercept(&first);
    let elsewhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    elsewhere.send_to(&datagram, lab.pair.b.local_addr()).unwrap();
    let [(path, received)] = &receive(&mut lab.pair.b, 1)[..] else { panic!("one packet") };
    assert_eq!(received, &first);
    assert!(path.is_sealed() && *path != lab.pair.ba);
    assert_eq!(lab.pair.b.address(*path), Some(elsewhere.local_addr().unwrap()));
    assert_ne!(
        lab.pair.b.resolve_sealed(elsewhere.local_addr().unwrap(), MAIN),
        Some(*path),
        "a forged address takes no path away from the peer that is there"
    );
    // The original is not lost by the copy.
    lab.deliver(&datagram);
    assert_eq!(receive(&mut lab.pair.b, 1), [(lab.pair.ba, first)]);
    // The core knows the peer at its new address: packets to it are sealed with the same keys.
    let moved = *path;
    lab.pair.b.hold(moved);
    send(&mut lab.pair.b, moved, &packet(2, 156));
    lab.pair.b.flush();
    let mut datagram = vec![0; 1_000];
    let (len, _) = elsewhere.recv_from(&mut datagram).unwrap();
    lab.proxy.send_to(&datagram[..len], lab.pair.a.local_addr()).unwrap();
    assert_eq!(receive(&mut lab.pair.a, 1), [(lab.pair.ab, packet(2, 156))]);
}

#[test]
fn a_path_without_keys_sends_nothing_and_asks_for_them_once() {
    //= docs/protocol.md#seal-1
    let (mut a, b) = (link(&UdpConfig::default()), UdpSocket::bind("127.0.0.1:0").unwrap());
    let path = a.resolve_sealed(b.local_addr().unwrap(), MAIN).unwrap();
    for _ in 0..3 {
        send(&mut a, path, &packet(1, 156));
        send(&mut a, path, &packet(1, 5_000));
        a.flush();
    }
    assert_eq!((a.poll_seal(), a.poll_seal()), (Some(SealEvent::Wanted(path)), None));
    let counters = a.counters();
    assert_eq!((counters.waiting_for_keys, counters.datagrams_sent), (6, 0));
    let id = a.reserve_keys(1).unwrap();
    assert!(a.install_keys(path, id, keys(Role::Client, id)));
    send(&mut a, path, &packet(1, 156));
    a.remove_keys(id);
    assert_eq!(a.counters().datagrams_sent, 1, "what was queued is sent before");
    send(&mut a, path, &packet(1, 156));
    assert_eq!(a.poll_seal(), Some(SealEvent::Wanted(path)));
    let plain = a.resolve(b.local_addr().unwrap()).unwrap();
    let id = a.reserve_keys(2).unwrap();
    assert!(!a.install_keys(plain, id, keys(Role::Client, id)), "a plain path has no keys");
}

#[test]
fn datagrams_that_outrun_the_handshake_wait_for_its_end() {
    //= docs/protocol.md#seal-2
    let config = UdpConfig::default();
    let (mut a, mut b) = (link(&config), link(&config));
    let (ab, ba) = (
        a.resolve_sealed(b.local_addr(), MAIN).unwrap(),
        b.resolve_sealed(a.local_addr(), MAIN).unwrap(),
    );
    let ids = [a.reserve_keys(1).unwrap(), b.reserve_keys(2).unwrap()];
    let mut pair = Pair { a, b, ab, ba, ids };
    pair.install_a();
    send(&mut pair.a, ab, &packet(1, 156));
    pair.a.flush();
    let sleeper = Sleeper::new().unwrap();
    sleeper.sleep(pair.b.descriptors(), Some(TIMEOUT));
    assert_eq!(receive_rest(&mut pair.b), 0);
    pair.install_b();
    assert_eq!(receive(&mut pair.b, 1), [(ba, packet(1, 156))]);
}

#[test]
fn keys_that_the_peer_lost_are_doubted_by_its_hint() {
    //= docs/protocol.md#seal-9
    //= docs/wire.md#W47
    let mut lab = Proxied::new();
    let datagram = lab.intercept(&packet(1, 156));
    // The peer uses the keys, so it had them.
    lab.deliver(&datagram);
    receive(&mut lab.pair.b, 1);
    send(&mut lab.pair.b, lab.pair.ba, &packet(2, 156));
    lab.pair.b.flush();
    let answer = lab.next_datagram();
    lab.proxy.send_to(&answer, lab.pair.a.local_addr()).unwrap();
    receive(&mut lab.pair.a, 1);
    // Then it forgets them.
    let id = lab.pair.ids[1];
    lab.pair.b.remove_keys(id);
    let datagram = lab.intercept(&packet(3, 156));
    lab.deliver(&datagram);
    let sleeper = Sleeper::new().unwrap();
    sleeper.sleep(lab.pair.b.descriptors(), Some(TIMEOUT));
    assert_eq!(receive_rest(&mut lab.pair.b), 0);
    let hint = lab.next_datagram();
    assert_eq!((hint.len(), &hint[..4]), (20, &[0, 0, 3, 0][..]));
    let mut forged = hint.clone();
    forged[19] ^= 0x40;
    for datagram in [&forged, &hint, &hint] {
        lab.proxy.send_to(datagram, lab.pair.a.local_addr()).unwrap();
    }
    while lab.pair.a.counters().hints_ignored < 2 {
        sleeper.sleep(lab.pair.a.descriptors(), Some(TIMEOUT));
        receive_rest(&mut lab.pair.a);
    }
    assert_eq!(lab.pair.a.poll_seal(), Some(SealEvent::Doubted(lab.pair.ab)));
    assert_eq!(lab.pair.a.poll_seal(), None);
    let counters = lab.pair.a.counters();
    assert_eq!((counters.hints_believed, counters.hints_ignored), (1, 2));
    assert_eq!(lab.pair.b.counters().hints_sent, 1);
}

#[test]
fn keys_that_have_ended_are_asked_for_again_on_every_path_that_had_them() {
    let mut lab = Proxied::new();
    let datagram = lab.intercept(&packet(1, 156));
    let elsewhere = UdpSocket::bind("127.0.0.1:0").unwrap();
    elsewhere.send_to(&datagram, lab.pair.b.local_addr()).unwrap();
    let [(moved, _)] = receive(&mut lab.pair.b, 1)[..] else { panic!("one packet") };
    lab.pair.b.hold(moved);
    assert_eq!(moved.identity(), lab.pair.ba.identity());
    assert_eq!(lab.pair.b.poll_seal(), Some(SealEvent::Moved(lab.pair.ba, moved)));
    let id = lab.pair.ids[1];
    lab.pair.b.remove_keys(id);
    for path in [moved, lab.pair.ba] {
        for len in [156, 5_000] {
            send(&mut lab.pair.b, path, &packet(2, len));
            lab.pair.b.flush();
        }
        assert_eq!(lab.pair.b.poll_seal(), Some(SealEvent::Wanted(path)));
    }
    assert_eq!(lab.pair.b.counters().datagrams_sent, 0);
}

#[test]
fn a_link_without_sealed_paths_answers_no_sealed_datagram() {
    let mut lab = Proxied::new();
    let datagram = lab.intercept(&packet(1, 156));
    let mut plain = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    assert!(plain.sealed_paths().is_none());
    lab.proxy.send_to(&datagram, plain.local_addr()).unwrap();
    Sleeper::new().unwrap().sleep(plain.descriptors(), Some(TIMEOUT));
    assert_eq!(receive_rest(&mut plain), 0);
    let counters = plain.counters();
    assert_eq!((counters.malformed_bundles, counters.hints_sent), (1, 0));
}
