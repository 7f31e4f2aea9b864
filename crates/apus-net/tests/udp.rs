//! Properties of the UDP link alone: datagrams that are not Homa packets, errors, limits, address families.

mod skipped;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apus_net::conformance::towards;
use apus_net::{Link, LinkError, MAX_DATAGRAM, Sleeper, UdpConfig, UdpLink, Woken};
use apus_wire::{
    PacketReceiver, PacketSink, PathError, PathId, Priority, ReceiveTarget, Transmit, bundle,
};
use bytes::Bytes;
use skipped::skipped;

const FAULT_AFTER: Duration = Duration::from_secs(20);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn link() -> UdpLink {
    UdpLink::bind(addr("127.0.0.1:0"), &UdpConfig::default()).unwrap()
}

fn send(link: &mut UdpLink, to: SocketAddr, len: usize) {
    let body = Bytes::from(vec![7; len]);
    let path = towards(link, to);
    link.send(Transmit {
        path,
        priority: Priority::LOWEST,
        header: &[1; 56],
        body: &body,
        range: 0..len,
    });
}

/// Receives until `done` is true.
fn receive(
    link: &mut UdpLink,
    mut done: impl FnMut(&UdpLink, &[(SocketAddr, Vec<u8>)]) -> bool,
) -> Vec<(SocketAddr, Vec<u8>)> {
    let sleeper = Sleeper::new().unwrap();
    let start = Instant::now();
    let mut packets = Vec::new();
    loop {
        let mut came = Vec::new();
        let taken = link.recv(&mut |from, packet: &[u8]| came.push((from, packet.to_vec())));
        let address = |path| link.address(path).unwrap();
        packets.extend(came.into_iter().map(|(from, packet)| (address(from), packet)));
        if done(link, &packets) {
            return packets;
        }
        assert!(start.elapsed() < FAULT_AFTER, "{} packets so far", packets.len());
        if taken == 0 {
            sleeper.sleep(link.descriptors(), Some(FAULT_AFTER));
        }
    }
}

#[test]
fn nonsense_is_counted_and_dropped() {
    let mut link = link();
    let unconnected = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut cut = Vec::new();
    bundle::start(&mut cut);
    assert!(bundle::push(&mut cut, MAX_DATAGRAM, &[1; 40], &[]));
    assert!(bundle::push(&mut cut, MAX_DATAGRAM, &[2; 40], &[]));
    for datagram in [&[][..], &[0, 0], &[0, 0, 9, 9, 9], &cut[..cut.len() - 1], &[3; 30]] {
        unconnected.send_to(datagram, link.local_addr()).unwrap();
    }
    let packets = receive(&mut link, |link, _| link.counters().datagrams_received == 5);
    let seen: Vec<_> = packets.iter().map(|(_, packet)| &packet[..]).collect();
    assert_eq!(seen, [&[1; 40][..], &[3; 30]], "what precedes the fault in a bundle is good");
    let counters = link.counters();
    assert_eq!((counters.malformed_bundles, counters.unusable, counters.truncated), (3, 1, 0));
    assert_eq!(counters.packets_received, 2);
}

/// The times of short packets, and of long ones, which arrive at a socket of their own.
#[test]
fn the_kernel_reports_when_a_datagram_arrived() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (mut a, mut b) = (link(), link());
    send(&mut a, b.local_addr(), 100);
    a.flush();
    receive(&mut b, |link, packets| packets.len() == 1 && link.arrived().is_none());
    assert!(b.stamp_arrivals());
    for length in [100, 40_000] {
        let (mut arrived, mut before) = (None, 0);
        // The kernel begins to record times a moment after the request.
        while arrived.is_none() {
            before = now();
            send(&mut a, b.local_addr(), length);
            a.flush();
            receive(&mut b, |link, packets| {
                arrived = arrived.or_else(|| link.arrived());
                packets.len() == 1
            });
        }
        assert!(arrived.is_some_and(|at| (before..=now()).contains(&at)), "{arrived:?}");
    }
}

#[test]
fn small_packets_share_a_datagram() {
    let (mut a, mut b) = (link(), link());
    for _ in 0..100 {
        send(&mut a, b.local_addr(), 100);
    }
    a.flush();
    receive(&mut b, |_, packets| packets.len() == 100);
    assert_eq!(
        (a.counters().datagrams_sent, a.counters().bundles_sent, a.counters().send_calls),
        (1, 1, 1)
    );
    assert_eq!((b.counters().datagrams_received, b.counters().bundles_received), (1, 1));
}

#[test]
fn equal_packets_leave_as_segments_and_arrive_joined() {
    let bind =
        || UdpLink::bind(addr("127.0.0.1:0"), UdpConfig::default().max_packet(1_472)).unwrap();
    let (mut a, mut b) = (bind(), bind());
    for _ in 0..40 {
        send(&mut a, b.local_addr(), 1_416);
    }
    a.flush();
    receive(&mut b, |_, packets| packets.len() == 40);
    let capabilities = a.capabilities().clone();
    if !capabilities.gso || !capabilities.gro {
        return skipped(capabilities);
    }
    assert_eq!((a.counters().send_calls, a.counters().gso_segments), (1, 40));
    assert_eq!((b.counters().receive_calls, b.counters().gro_segments), (1, 40));
}

#[test]
fn the_queue_is_flushed_when_it_is_full() {
    let (mut a, b) = (link(), link());
    for _ in 0..40 {
        send(&mut a, b.local_addr(), 60_000);
    }
    assert!(a.counters().datagrams_sent >= 17, "1 MiB is the most that is queued");
    a.flush();
    assert_eq!(a.counters().datagrams_sent, 40);
}

#[test]
fn peers_on_this_machine_get_a_socket_of_their_own() {
    let (mut a, mut b) = (link(), link());
    for _ in 0..200 {
        send(&mut a, b.local_addr(), 100);
        a.flush();
        let packets = receive(&mut b, |_, packets| !packets.is_empty());
        assert_eq!(packets[0].0, a.local_addr());
    }
    if a.capabilities().connected_sends {
        assert!(a.counters().connected_send_calls >= 100);
    }
    drop(a);
}

#[test]
fn more_peers_than_sockets_are_served_all_the_same() {
    let mut a = link();
    let mut others: Vec<_> = (0..70).map(|_| link()).collect();
    for other in &mut others {
        for _ in 0..66 {
            send(&mut a, other.local_addr(), 100);
            a.flush();
        }
        receive(other, |_, packets| packets.len() == 66);
    }
}

#[test]
fn a_packet_too_long_for_any_datagram_is_counted_and_lost() {
    let (mut a, mut b) = (link(), link());
    send(&mut a, b.local_addr(), 70_000);
    send(&mut a, b.local_addr(), 100);
    a.flush();
    assert_eq!(receive(&mut b, |_, packets| !packets.is_empty())[0].1.len(), 156);
    assert_eq!(a.counters().send_too_big, 1);
    let path = towards(&mut a, b.local_addr());
    assert_eq!(a.max_packet(path), MAX_DATAGRAM, "the path is not to blame");
    assert_eq!(a.poll_error(), None);
    let woken = Sleeper::new().unwrap().sleep(a.descriptors(), Some(Duration::ZERO));
    assert_eq!(woken, Woken::Timeout, "the error queue is empty again");
}

#[test]
fn a_peer_of_the_other_family_and_one_of_a_native_link_have_no_path() {
    let mut link = link();
    assert_eq!(link.resolve(addr("[::1]:9")), None);
    assert_eq!(link.resolve(addr("127.0.0.1:0")), None);
}

#[test]
fn what_goes_by_a_path_that_is_forgotten_is_counted_and_lost() {
    let (mut a, b) = (link(), link());
    let path = towards(&mut a, b.local_addr());
    for host in 0..10_000u32 {
        a.resolve(SocketAddr::from(((0x7F01_0000 + host).to_be_bytes(), 9)));
    }
    assert_eq!(a.address(path), None);
    a.send(Transmit::control(path, Priority::LOWEST, &[1; 56]));
    a.flush();
    assert_eq!((a.counters().path_forgotten, a.counters().packets_sent), (1, 0));
}

#[test]
fn a_host_without_a_route_is_unreachable_at_once() {
    let mut link = UdpLink::bind(addr("127.0.0.1:0"), &UdpConfig::default()).unwrap();
    // A packet with a loopback source address cannot leave the machine.
    let to = addr("198.51.100.1:9");
    send(&mut link, to, 100);
    link.flush();
    let counters = link.counters();
    assert_eq!(
        counters.datagrams_sent + counters.send_unreachable + counters.send_errors,
        1,
        "{counters:?}"
    );
    if counters.send_unreachable == 1 {
        assert_eq!(link.poll_error(), Some((to, PathError::HostUnreachable)));
    }
}

#[test]
fn a_busy_port_and_a_foreign_address_are_refused_by_name() {
    let first = link();
    let Err(error) = UdpLink::bind(first.local_addr(), &UdpConfig::default()) else {
        panic!("bound twice")
    };
    assert!(matches!(error, LinkError::AddressInUse { addr } if addr == first.local_addr()));
    let Err(error) = UdpLink::bind(addr("198.51.100.1:0"), &UdpConfig::default()) else {
        panic!("not ours")
    };
    assert!(matches!(error, LinkError::AddressNotAvailable { .. }), "{error}");
    assert_eq!(error.to_string(), "198.51.100.1:0 is not an address of this machine");
}

#[test]
fn a_link_at_all_ipv6_addresses_serves_ipv4_as_well() {
    let Ok(mut all) = UdpLink::bind(addr("[::]:0"), &UdpConfig::default()) else {
        return skipped("this machine has no IPv6");
    };
    if !all.capabilities().dual_stack {
        return skipped(all.capabilities());
    }
    let mut peer = link();
    let port = all.local_addr().port();
    for _ in 0..200 {
        send(&mut peer, SocketAddr::from(([127, 0, 0, 1], port)), 100);
        peer.flush();
        assert_eq!(receive(&mut all, |_, packets| !packets.is_empty())[0].0, peer.local_addr());
        send(&mut all, peer.local_addr(), 100);
        all.flush();
        assert_eq!(
            receive(&mut peer, |_, packets| !packets.is_empty())[0].0,
            addr(&format!("127.0.0.1:{port}"))
        );
    }
    let path = towards(&mut all, peer.local_addr());
    assert!(all.path(path).loopback);
}

#[test]
fn what_the_capacity_promises_fits_the_buffer_of_a_stock_machine() {
    // The core grants half of the capacity, in the longest packets.
    for (length, share) in [(65_507, 2), (1_472, 2), (16_000, 2), (1_000, 4), (200, 8)] {
        let mut a = link();
        let mut config = UdpConfig::default();
        let mut b = UdpLink::bind(addr("127.0.0.1:0"), config.receive_buffer(212_992)).unwrap();
        let packets = b.receive_capacity() / share / length;
        for _ in 0..packets {
            send(&mut a, b.local_addr(), length - 56);
            a.flush();
        }
        let mut arrived = 0;
        while b.recv(&mut |_, _: &[u8]| arrived += 1) > 0 {}
        assert_eq!((arrived, b.counters().receive_buffer_drops), (packets, 0), "{length}");
    }
}

#[test]
fn a_full_receive_buffer_is_seen_in_the_counters() {
    let mut config = UdpConfig::default();
    let mut b = UdpLink::bind(addr("127.0.0.1:0"), config.receive_buffer(65_536)).unwrap();
    let mut a = link();
    for _ in 0..100 {
        send(&mut a, b.local_addr(), 20_000);
    }
    a.flush();
    let mut arrived = 0;
    while b.recv(&mut |_, _: &[u8]| arrived += 1) > 0 {}
    assert!(b.capabilities().receive_buffer_granted());
    assert!(
        arrived * 20_056 >= b.receive_capacity() / 2,
        "{arrived} of {} bytes",
        b.receive_capacity()
    );
    if b.capabilities().drop_counter {
        assert_eq!(b.counters().receive_buffer_drops, 100 - arrived as u64);
    }
}

#[test]
fn capabilities_are_one_line_for_people() {
    let link = link();
    let line = link.capabilities().to_string();
    assert!(line.starts_with("udp "), "{line}");
    assert!(line.contains("receive-buffer="), "{line}");
    assert!(link.receive_capacity() > 0);
    assert!(link.counters().iter().any(|(name, value)| name == "datagrams_sent" && value == 0));
}

/// A receiver with a partly received message, which takes packets with its mark in place.
#[derive(Default)]
struct Expecting {
    message: Vec<u8>,
    room: usize,
    packets: Vec<Vec<u8>>,
}

impl PacketReceiver for Expecting {
    fn packet(&mut self, _: PathId, packet: &[u8]) {
        self.packets.push(packet.to_vec());
    }

    fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        (self.room > 0).then_some(ReceiveTarget { message: &mut self.message, room: self.room })
    }

    fn received_in_place(&mut self, _: PathId, header: &[u8; 56], length: usize) -> bool {
        let mine = header[0] == MARK;
        self.room -= if mine { length } else { 0 };
        mine
    }
}

const MARK: u8 = 9;

#[test]
fn what_is_expected_is_received_in_its_place_and_all_else_as_ever() {
    let mut link = link();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagram =
        |mark: u8, length: usize, fill: u8| [vec![mark; 56], vec![fill; length]].concat();
    let mut bundle = Vec::new();
    bundle::start(&mut bundle);
    assert!(bundle::push(&mut bundle, MAX_DATAGRAM, &[2; 40], &[4; 20_000]));
    // The first long packet only shows the link that long ones arrive.
    let long = [
        datagram(1, 30_000, 1),
        datagram(MARK, 30_000, 2),
        datagram(1, 40_000, 3),
        datagram(1, 5, 5),
        bundle,
        datagram(MARK, 20_000, 6),
        datagram(MARK, 60_000, 7), // Longer than the room.
        vec![8; 20],
    ];
    let mut receiver =
        Expecting { message: Vec::with_capacity(100_000), room: 100_000, ..Expecting::default() };
    for datagram in &long {
        peer.send_to(datagram, link.local_addr()).unwrap();
        let sleeper = Sleeper::new().unwrap();
        while link.recv(&mut receiver) == 0 {
            assert_eq!(sleeper.sleep(link.descriptors(), Some(FAULT_AFTER)), Woken::Link);
        }
    }
    let elsewhere = [
        &long[0][..],
        &long[2],
        &long[3],
        &[&[2; 40][..], &[4; 20_000]].concat(),
        &long[6],
        &long[7],
    ];
    assert!(receiver.packets.iter().map(|packet| &packet[..]).eq(elsewhere));
    assert!(receiver.message == [vec![2; 30_000], vec![6; 20_000]].concat());
    assert_eq!(link.counters().received_in_place, 2);
    assert_eq!(link.counters().datagrams_received, 8);
}

#[test]
fn short_packets_and_bundles_do_not_wait_behind_long_packets() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(mut link) = UdpLink::bind(addr(at), &UdpConfig::default()) else {
            skipped(format_args!("this machine has no {at}"));
            continue;
        };
        if !link.capabilities().long_socket {
            return skipped(link.capabilities());
        }
        let peer = UdpSocket::bind(at).unwrap();
        let mut bundle = Vec::new();
        bundle::start(&mut bundle);
        for _ in 0..100 {
            assert!(bundle::push(&mut bundle, MAX_DATAGRAM, &[5; 100], &[]));
        }
        for datagram in [&[9; 30_000][..], &[8; 1_472], &[7; 100], &bundle, &[6; 1_199]] {
            peer.send_to(datagram, link.local_addr()).unwrap();
        }
        let packets = receive(&mut link, |_, packets| packets.len() == 104);
        let place = |kind| packets.iter().position(|(_, packet)| packet[0] == kind).unwrap();
        // Long packets are received too, each after datagrams of the other socket.
        assert!(place(7) < place(9) && place(5) < place(8), "{} {}", place(7), place(5));
    }
}

#[test]
fn one_socket_takes_everything_where_that_is_asked_for() {
    let mut link =
        UdpLink::bind(addr("127.0.0.1:0"), UdpConfig::default().long_socket(false)).unwrap();
    assert!(!link.capabilities().long_socket);
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in [&[9; 30_000][..], &[7; 100]] {
        peer.send_to(datagram, link.local_addr()).unwrap();
    }
    let packets = receive(&mut link, |_, packets| packets.len() == 2);
    assert_eq!([packets[0].1[0], packets[1].1[0]], [9, 7]);
}

/// Each peer of a node at all addresses calls it at another address, and knows it by the address that it called.
#[test]
fn a_link_at_all_addresses_answers_from_the_one_called() {
    for any in ["0.0.0.0", "[::]"] {
        // A free port, requested by its number as servers do.
        let port = UdpLink::bind(addr(&format!("{any}:0")), &UdpConfig::default())
            .map(|link| link.local_addr().port());
        let Ok(Ok(mut server)) =
            port.map(|port| UdpLink::bind(addr(&format!("{any}:{port}")), &UdpConfig::default()))
        else {
            skipped(format_args!("no {any}, or its port went to somebody else"));
            continue;
        };
        for called in ["127.0.0.1", "127.0.0.2", "127.9.9.9", "127.0.0.1"] {
            let called = SocketAddr::new(called.parse().unwrap(), server.local_addr().port());
            let mut client = link();
            for round in 0..100 {
                send(&mut client, called, 40 + round);
                client.flush();
                let (from, _) = receive(&mut server, |_, packets| packets.len() == 1).remove(0);
                send(&mut server, from, 40 + round);
                send(&mut server, from, 5_000);
                server.flush();
                let answers = receive(&mut client, |_, packets| packets.len() == 2);
                assert!(answers.iter().all(|(from, _)| *from == called), "{called}");
            }
        }
    }
}

#[test]
fn settings_out_of_range_are_errors() {
    let any = addr("127.0.0.1:0");
    let refused = |config: &UdpConfig| UdpLink::bind(any, config).err().unwrap().to_string();
    let expected = "max_packet = 547: expected a number from 548 to 65507";
    assert_eq!(refused(UdpConfig::default().max_packet(547)), expected);
    let expected = "receive_buffer = 2147483647: expected a number from 0 to 1073741823";
    assert_eq!(refused(UdpConfig::default().receive_buffer(i32::MAX as usize)), expected);
    let error = UdpLink::bind_shards(any, &UdpConfig::default(), 65).err().unwrap();
    assert_eq!(error.to_string(), "shards = 65: expected a number from 1 to 64");
}
