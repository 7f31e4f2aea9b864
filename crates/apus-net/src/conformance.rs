//! The conformance suite of links. Every new link and every wrapper of a link must pass it.
//!
//! ```no_run
//! # use apus_net::{conformance, UdpConfig, UdpLink};
//! let bind = || UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
//! conformance::run(|| (bind(), bind()));
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use apus_wire::{PacketType, PathError, PathId, Priority, Transmit};
use bytes::Bytes;

use crate::link::{Link, LinkCounters};
use crate::sleeper::{Sleeper, Woken};

pub use crate::process::in_child;

/// Upper bound on the wait for any event. A correct link never waits this long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Upper bound on packets in flight: few enough for the kernel's smallest default receive buffer.
const IN_FLIGHT: usize = 100;

/// Upper bound on bytes in flight, for the same reason.
const BYTES_IN_FLIGHT: usize = 100_000;

/// Runs all checks. `make` opens two links that can reach each other, at new addresses each time, and that lose nothing.
///
/// # Panics
///
/// If a check fails. The message names the check and the observation.
pub fn run<L: Link>(make: impl Fn() -> (L, L)) {
    nothing_is_there_at_first(&make);
    a_packet_arrives_each_way(&make);
    a_thousand_small_packets_arrive(&make);
    the_longest_packets_arrive(&make);
    parts_of_a_body_arrive_and_are_let_go(&make);
    runs_of_equal_packets_arrive(&make);
    packets_of_all_sizes_arrive(&make);
    several_peers_are_kept_apart(&make);
    a_lost_peer_is_reported_and_hurts_no_other(&make);
    readiness_wakes_a_sleeper(&make);
}

/// Returns the path to an address, examined as before a message.
///
/// # Panics
///
/// If the link does not reach the address.
pub fn towards(link: &mut (impl Link + ?Sized), to: SocketAddr) -> PathId {
    let path = link.resolve(to).expect("the link reaches the address");
    if let Some(examination) = link.examination(path) {
        link.examined(examination.run());
    }
    path
}

/// One end: a link and its sleeper.
struct End<L> {
    link: L,
    sleeper: Sleeper,
}

impl<L: Link> End<L> {
    fn pair(make: &impl Fn() -> (L, L)) -> (Self, Self) {
        let (a, b) = make();
        (Self::new(a), Self::new(b))
    }

    fn new(link: L) -> Self {
        Self { link, sleeper: Sleeper::new().expect("a descriptor is left") }
    }

    fn addr(&self) -> SocketAddr {
        self.link.local_addr()
    }

    /// Returns the length of the longest packet to another end.
    fn max_packet(&mut self, to: &Self) -> usize {
        let path = towards(&mut self.link, to.addr());
        self.link.max_packet(path)
    }

    /// Queues a packet of a header and a payload.
    fn send(&mut self, to: &Self, packet: &[u8]) {
        let (header, payload) = packet.split_at(packet.len().min(56));
        let body = Bytes::copy_from_slice(payload);
        let priority = Priority::clamped(packet[0] % 8);
        let path = towards(&mut self.link, to.addr());
        self.link.send(Transmit { path, priority, header, body: &body, range: 0..body.len() });
    }

    /// Receives until `count` packets have arrived.
    fn collect(
        &mut self,
        sender: &mut Self,
        count: usize,
        check: &str,
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let start = Instant::now();
        let mut packets = Vec::new();
        while packets.len() < count {
            let mut taken = Vec::new();
            if self.link.recv(&mut |from, packet: &[u8]| taken.push((from, packet.to_vec()))) > 0 {
                let address = |path| self.link.address(path).expect("it was just resolved");
                packets.extend(taken.into_iter().map(|(from, packet)| (address(from), packet)));
                continue;
            }
            // A wrapper may hold packets back on the sender's side.
            let due = sender.link.due_in();
            sender.link.flush();
            let left = TIMEOUT.saturating_sub(start.elapsed());
            assert!(
                !left.is_zero(),
                "{check}: {} of {count} packets after {TIMEOUT:?}",
                packets.len()
            );
            self.sleeper.sleep(self.link.descriptors(), Some(due.unwrap_or(left).min(left)));
        }
        packets
    }

    fn assert_empty(&mut self, check: &str) {
        let mut extra = Vec::new();
        self.link.recv(&mut |from, packet: &[u8]| extra.push((from, packet.len())));
        assert!(extra.is_empty(), "{check}: packets that were never sent: {extra:?}");
    }
}

/// Returns a packet that contains its number and can be recognised to the last byte. It has the fields that a link may read: a
/// source port, a type, and a header of one segment.
fn packet(number: usize, len: usize) -> Vec<u8> {
    assert!(len >= 28, "a Homa packet has a header");
    let mut bytes: Vec<u8> =
        (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(number as u8)).collect();
    bytes[0] = number as u8 | 1;
    bytes[1..9].copy_from_slice(&(number as u64).to_be_bytes());
    bytes[11] = PacketType::Data as u8;
    bytes[12] = 0xE0;
    bytes
}

/// Sends packets of these lengths, a few at a time, and checks that each arrives once and intact.
fn exchange<L: Link>(
    a: &mut End<L>,
    b: &mut End<L>,
    lens: impl Iterator<Item = usize>,
    check: &str,
) {
    let mut lens = lens.enumerate().peekable();
    while lens.peek().is_some() {
        let mut sent = Vec::new();
        let mut bytes = 0;
        while let Some((number, len)) =
            lens.next_if(|_| sent.len() < IN_FLIGHT && bytes < BYTES_IN_FLIGHT)
        {
            sent.push(packet(number, len));
            bytes += len;
            a.send(b, sent.last().expect("just pushed"));
        }
        a.link.flush();
        let mut seen = b.collect(a, sent.len(), check);
        for (from, _) in &seen {
            assert_eq!(*from, a.addr(), "{check}: the sender's address");
        }
        seen.sort_by(|left, right| left.1[1..9].cmp(&right.1[1..9]));
        for ((_, seen), sent) in seen.iter().zip(&sent) {
            assert!(
                seen == sent,
                "{check}: a packet of {} bytes arrived as {}, changed",
                sent.len(),
                seen.len()
            );
        }
        b.assert_empty(check);
    }
}

fn nothing_is_there_at_first<L: Link>(make: &impl Fn() -> (L, L)) {
    const CHECK: &str = "nothing is there at first";
    let (mut a, b) = End::pair(make);
    assert_ne!(a.addr(), b.addr(), "{CHECK}: the links have addresses of their own");
    let real = a.addr().port() != 0 || !a.addr().ip().is_unspecified();
    assert!(real, "{CHECK}: the address is the real one");
    a.assert_empty(CHECK);
    assert_eq!(a.link.poll_error(), None, "{CHECK}");
    a.link.flush();
    assert_eq!(a.link.due_in(), None, "{CHECK}");
    assert!(a.link.receive_capacity() > 0, "{CHECK}");
    assert_eq!(a.link.find(b.addr()), None, "{CHECK}: no peer is known");
    let way = towards(&mut a.link, b.addr());
    assert_eq!(a.link.find(b.addr()), Some(way), "{CHECK}: an address keeps its path");
    assert_eq!(a.link.address(way), Some(b.addr()), "{CHECK}: a path has an address");
    let path = a.link.path(way);
    assert_eq!(path.max_packet, a.link.max_packet(way), "{CHECK}: both ways to ask agree");
    assert!(path.max_packet >= 500, "{CHECK}: a path takes something");
    assert!(!a.link.capabilities().kind.is_empty(), "{CHECK}: the link has a name");
}

fn a_packet_arrives_each_way<L: Link>(make: &impl Fn() -> (L, L)) {
    const CHECK: &str = "a packet arrives each way";
    let (mut a, mut b) = End::pair(make);
    // Several rounds, because links may learn shorter paths.
    for round in 0..300 {
        exchange(&mut a, &mut b, [28 + round].into_iter(), CHECK);
        exchange(&mut b, &mut a, [156].into_iter(), CHECK);
    }
    let LinkCounters { packets_sent, packets_received, datagrams_sent, .. } = a.link.counters();
    assert_eq!(
        (packets_sent, packets_received, datagrams_sent),
        (300, 300, 300),
        "{CHECK}: all are counted"
    );
}

fn a_thousand_small_packets_arrive<L: Link>(make: &impl Fn() -> (L, L)) {
    let (mut a, mut b) = End::pair(make);
    exchange(&mut a, &mut b, std::iter::repeat_n(100, 1_000), "a thousand small packets arrive");
}

fn the_longest_packets_arrive<L: Link>(make: &impl Fn() -> (L, L)) {
    let (mut a, mut b) = End::pair(make);
    let max = a.max_packet(&b);
    let lens = [max, max - 1, max, max, max];
    exchange(&mut a, &mut b, lens.into_iter(), "the longest packets arrive");
}

fn parts_of_a_body_arrive_and_are_let_go<L: Link>(make: &impl Fn() -> (L, L)) {
    const CHECK: &str = "parts of a body arrive and are let go";
    let (mut a, mut b) = End::pair(make);
    let body = Bytes::from(packet(1, 10_000));
    let header = packet(2, 56);
    let room = a.max_packet(&b) - header.len();
    for range in [0..1, 17..100, 100..room.min(4_000), 10_000 - room.min(8_000)..10_000, 5..5] {
        let expected = [&header, &body[range.clone()]].concat();
        let path = towards(&mut a.link, b.addr());
        a.link.send(Transmit {
            path,
            priority: Priority::LOWEST,
            header: &header,
            body: &body,
            range,
        });
        a.link.flush();
        let seen = b.collect(&mut a, 1, CHECK);
        assert!(seen[0].1 == expected, "{CHECK}: {} bytes", expected.len());
    }
    assert!(body.is_unique(), "{CHECK}: nothing holds the body after the flush");
}

fn runs_of_equal_packets_arrive<L: Link>(make: &impl Fn() -> (L, L)) {
    let (mut a, mut b) = End::pair(make);
    let full = a.max_packet(&b).min(1_472);
    for (count, last) in [(2, full), (10, full.min(700)), (64, full), (65, 100), (3, 28)] {
        let lens = std::iter::repeat_n(full, count).chain([last]);
        exchange(&mut a, &mut b, lens, "runs of equal packets arrive");
    }
}

fn packets_of_all_sizes_arrive<L: Link>(make: &impl Fn() -> (L, L)) {
    let (mut a, mut b) = End::pair(make);
    let max = a.max_packet(&b);
    // Small and large packets alternate irregularly; the numbers are coprime to each other and to 64.
    let lens = (0..400).map(|number| match number % 7 {
        0 | 3 => 28 + number * 7_919 % (max - 27),
        1 => max.min(1_400),
        5 => max.min(1_401),
        _ => 28 + number * 104_729 % 400,
    });
    exchange(&mut a, &mut b, lens, "packets of all sizes arrive");
}

fn several_peers_are_kept_apart<L: Link>(make: &impl Fn() -> (L, L)) {
    const CHECK: &str = "several peers are kept apart";
    let (mut a, b) = End::pair(make);
    let (c, d) = End::pair(make);
    let mut others = [b, c, d];
    let large = a.max_packet(&others[0]).min(2_000);
    for number in 0..30 {
        for (index, other) in others.iter().enumerate() {
            a.send(other, &packet(number, 100 + index));
            if number % 10 == 0 {
                a.send(other, &packet(number, large - index));
            }
        }
    }
    a.link.flush();
    for (index, other) in others.iter_mut().enumerate() {
        let seen = other.collect(&mut a, 33, CHECK);
        assert_eq!(
            seen.iter().filter(|it| it.1.len() == 100 + index).count(),
            30,
            "{CHECK}: peer {index}"
        );
        assert_eq!(
            seen.iter().filter(|it| it.1.len() == large - index).count(),
            3,
            "{CHECK}: peer {index}"
        );
        other.assert_empty(CHECK);
        other.send(&a, &packet(index, 40));
        other.link.flush();
        assert_eq!(
            a.collect(other, 1, CHECK)[0].0,
            other.addr(),
            "{CHECK}: each is known by its address"
        );
    }
}

fn a_lost_peer_is_reported_and_hurts_no_other<L: Link>(make: &impl Fn() -> (L, L)) {
    const CHECK: &str = "a lost peer is reported and hurts no other";
    let (mut a, lost) = End::pair(make);
    let (mut b, _spare) = End::pair(make);
    let gone = lost.addr();
    let large = a.max_packet(&b).min(5_000);
    for round in 0..100 {
        // The first packet is sent while the peer is there, so that all the link learned of it is obsolete afterwards.
        a.send(&lost, &packet(round, 60));
        a.link.flush();
    }
    drop(lost);
    let start = Instant::now();
    let error = loop {
        let path = towards(&mut a.link, gone);
        a.link.send(Transmit::control(path, Priority::LOWEST, &packet(1, 60)));
        a.link.flush();
        // The error of the one peer is pending now, and must not affect packets to the other one.
        exchange(&mut a, &mut b, [60, large].into_iter(), CHECK);
        a.sleeper.sleep(a.link.descriptors(), Some(Duration::from_millis(1)));
        a.assert_empty(CHECK);
        if let Some(error) = a.link.poll_error() {
            break error;
        }
        assert!(start.elapsed() < TIMEOUT, "{CHECK}: nothing was reported");
    };
    // A native link's node is the only one of its host for the protocol.
    let reasons = [PathError::PortUnreachable, PathError::ProtocolUnreachable];
    assert!(error.0 == gone && reasons.contains(&error.1), "{CHECK}: {error:?}");
    while let Some((peer, _)) = a.link.poll_error() {
        assert_eq!(peer, gone, "{CHECK}");
    }
}

fn readiness_wakes_a_sleeper<L: Link>(make: &impl Fn() -> (L, L)) {
    const CHECK: &str = "readiness wakes a sleeper";
    let (mut a, mut b) = End::pair(make);
    let asleep = |end: &End<L>| {
        end.sleeper.sleep(end.link.descriptors(), Some(Duration::ZERO)) == Woken::Timeout
    };
    assert!(asleep(&b), "{CHECK}: nothing is there");
    for _ in 0..3 {
        a.send(&b, &packet(1, 60));
        a.link.flush();
        while a.link.due_in().is_some() {
            a.link.flush(); // a wrapper holds the packet back
        }
        let woken = b.sleeper.sleep(b.link.descriptors(), Some(TIMEOUT));
        assert_eq!(woken, Woken::Link, "{CHECK}: a packet is there");
        b.collect(&mut a, 1, CHECK);
        assert_eq!(b.link.recv(&mut |_, _: &[u8]| ()), 0, "{CHECK}");
        assert!(asleep(&b), "{CHECK}: all was taken");
    }
}
