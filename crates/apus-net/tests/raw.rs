//! The raw link, each test in a network namespace of its own. Needs root; skipped tests say so.

mod skipped;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use apus_net::conformance::towards;
use apus_net::{
    CaptureLink, FaultLink, Faults, Link, LinkError, MixedLink, RawConfig, RawLink, Sleeper,
    UdpConfig, UdpLink, conformance,
};
use apus_wire::{PacketSink, PathError, Priority, Transmit};
use bytes::Bytes;
use skipped::skipped;

/// Number of addresses of an interface; a conformance run opens some thirty links.
const HOSTS: u16 = 60;

fn host(version: u8, number: u16) -> IpAddr {
    match version {
        4 => IpAddr::from([10, 77, (number >> 8) as u8, number as u8]),
        _ => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, number]),
    }
}

fn ip(arguments: &str) -> io::Result<()> {
    let done = Command::new("ip").args(arguments.split(' ')).status()?;
    if done.success() { Ok(()) } else { Err(io::Error::other(format!("ip {arguments}: {done}"))) }
}

/// Moves this thread into a new network namespace, with addresses on its loopback. Returns `false`, with a message, if that is not
/// allowed.
fn in_a_namespace() -> bool {
    // SAFETY: takes an integer and touches no memory of this process; only this thread moves.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = io::Error::last_os_error();
        skipped(format_args!("no new network namespace: {error}"));
        return false;
    }
    if let Err(error) = ip("link set lo up") {
        skipped(error);
        return false;
    }
    for number in 1..=HOSTS {
        ip(&format!("addr add {}/16 dev lo", host(4, number))).expect("a free address");
        ip(&format!("addr add {}/64 dev lo nodad", host(6, number))).expect("a free address");
    }
    true
}

/// Binds a link. A child of another test that has not reached its `exec` yet may still hold an address released a moment ago.
fn bind(at: IpAddr) -> RawLink {
    let start = Instant::now();
    loop {
        match RawLink::bind(at, &RawConfig::default()) {
            Err(LinkError::AddressInUse { .. }) if start.elapsed() < Duration::from_secs(20) => {
                std::thread::yield_now();
            }
            link => return link.expect("the namespace is ours"),
        }
    }
}

/// Returns a maker of links at distinct addresses, for conformance.
fn links(version: u8) -> impl Fn() -> RawLink {
    let next = std::cell::Cell::new(0);
    move || {
        next.set(next.get() % HOSTS + 1);
        bind(host(version, next.get()))
    }
}

#[test]
fn conformance_over_ipv4() {
    if in_a_namespace() {
        let link = links(4);
        conformance::run(|| (link(), link()));
    }
}

#[test]
fn conformance_over_ipv6() {
    if in_a_namespace() {
        let link = links(6);
        conformance::run(|| (link(), link()));
    }
}

#[test]
fn conformance_of_wrappers() {
    if !in_a_namespace() {
        return;
    }
    let link = links(4);
    let make = || {
        let faults: Faults = "delay=20us,jitter=50us,reorder=0.1,seed=1".parse().unwrap();
        let link = CaptureLink::new(link(), io::sink()).unwrap();
        FaultLink::new(link, faults).unwrap()
    };
    conformance::run(|| (make(), make()));
}

#[test]
fn conformance_of_mixed_links() {
    if !in_a_namespace() {
        return;
    }
    let udp = |at: &str| UdpLink::bind(at.parse().unwrap(), &UdpConfig::default()).unwrap();
    let make = || MixedLink::new(Some(Box::new(udp("127.0.0.1:0"))), Vec::new());
    conformance::run(|| (make(), make()));
    let link = links(4);
    let make = || MixedLink::new(None, vec![link()]);
    conformance::run(|| (make(), make()));
}

/// A DATA header to Homa port 4000.
const HEADER: [u8; 56] = {
    let mut header = [0; 56];
    header[0] = 0x80;
    header[2] = 0x0F;
    header[3] = 0xA0;
    header[11] = 0x10;
    header
};

fn send(link: &mut impl Link, to: SocketAddr, length: usize) {
    let body = Bytes::from(vec![7; length]);
    let path = towards(link, to);
    link.send(Transmit {
        path,
        priority: Priority::HIGHEST,
        header: &HEADER,
        body: &body,
        range: 0..length,
    });
    link.flush();
}

/// Returns the next packet.
fn receive(link: &mut impl Link) -> (SocketAddr, Vec<u8>) {
    let (sleeper, start) = (Sleeper::new().unwrap(), Instant::now());
    let mut packets = Vec::new();
    while packets.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing arrived");
        sleeper.sleep(link.descriptors(), Some(Duration::from_secs(1)));
        link.recv(&mut |from, packet: &[u8]| packets.push((from, packet.to_vec())));
    }
    let (from, packet) = packets.remove(0);
    (link.address(from).unwrap(), packet)
}

/// Returns the next error of the network.
fn error(link: &mut impl Link) -> (SocketAddr, PathError) {
    let (sleeper, start) = (Sleeper::new().unwrap(), Instant::now());
    loop {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing was said");
        sleeper.sleep(link.descriptors(), Some(Duration::from_secs(1)));
        link.recv(&mut |from, _: &[u8]| panic!("a packet from {from:?}"));
        if let Some(error) = link.poll_error() {
            return error;
        }
    }
}

#[test]
fn a_refused_packet_is_answered_with_port_unreachable() {
    if !in_a_namespace() {
        return;
    }
    for version in [4, 6] {
        for all in [false, true] {
            let at = host(version, 2);
            let unspecified = if version == 4 { [0; 4].into() } else { [0u16; 8].into() };
            let (mut client, mut server) =
                (bind(host(version, 1)), bind(if all { unspecified } else { at }));
            send(&mut client, SocketAddr::new(at, 0), 100);
            let (from, packet) = receive(&mut server);
            let from = towards(&mut server, from);
            server.refuse(from, packet[..8].try_into().unwrap());
            let seen = error(&mut client);
            assert_eq!(seen, (SocketAddr::new(at, 0), PathError::NoService(4000)));
            assert_eq!(server.counters().refusals_sent, 1);
        }
    }
}

#[test]
fn a_link_bound_to_all_addresses_answers_from_the_one_called() {
    if !in_a_namespace() {
        return;
    }
    for (version, any) in [(4, IpAddr::from([0; 4])), (6, IpAddr::from([0u16; 8]))] {
        let (mut client, mut server) = (bind(host(version, 1)), bind(any));
        for number in [2, 3, 40] {
            let called = SocketAddr::new(host(version, number), 0);
            send(&mut client, called, 100);
            let (from, _) = receive(&mut server);
            send(&mut server, from, 10);
            assert_eq!(receive(&mut client).0, called);
            receive(&mut server); // The server is bound to all addresses, also the client's.
        }
    }
}

#[test]
fn what_is_not_homa_never_arrives() {
    if !in_a_namespace() {
        return;
    }
    for version in [4, 6] {
        let (mut a, mut b) = (bind(host(version, 1)), bind(host(version, 2)));
        let to = towards(&mut a, b.local_addr());
        let mut bad = [HEADER; 3];
        bad[0][11] = 0x0F;
        bad[1][11] = 0x19;
        bad[2][..2].fill(0);
        for header in &bad {
            a.send(Transmit::control(to, Priority::HIGHEST, header));
        }
        a.send(Transmit::control(to, Priority::HIGHEST, &HEADER[..27]));
        a.send(Transmit::control(to, Priority::HIGHEST, &HEADER[..28]));
        a.flush();
        assert_eq!(receive(&mut b).1, HEADER[..28]);
        assert_eq!(b.counters().datagrams_received, 1, "the kernel dropped the others");
    }
}

/// Returns the beginning of a DATA message of 20,000 bytes as a module with `max_gso_size` 20000 sends it: 13 segments of 1,424
/// bytes, whose header a device is to repeat. Byte i of the message is 31 i + 7.
fn unsegmented() -> Vec<u8> {
    let mut packet = HEADER[..52].to_vec();
    packet[12] = 0xD0;
    packet[28..32].copy_from_slice(&20_000u32.to_be_bytes());
    for offset in (0..13 * 1_424).step_by(1_424) {
        packet.extend((offset as u32).to_be_bytes());
        packet.extend((offset..offset + 1_424).map(|i| (31 * i + 7) as u8));
    }
    packet
}

#[test]
fn packets_that_no_device_has_segmented_are_split() {
    //= docs/wire.md#W40
    if !in_a_namespace() {
        return;
    }
    for version in [4, 6] {
        let (mut a, mut b) = (bind(host(version, 1)), bind(host(version, 2)));
        let path = towards(&mut a, b.local_addr());
        let mut send = |packet: &[u8]| {
            let (header, body) = packet.split_at(56);
            let (body, range) = (Bytes::copy_from_slice(body), 0..body.len());
            a.send(Transmit { path, priority: Priority::HIGHEST, header, body: &body, range });
            a.flush();
        };
        let good = unsegmented();
        let mut cut_off = good.clone();
        cut_off.truncate(good.len() - 1_424);
        let mut misplaced = good.clone();
        misplaced[52 + 7 * 1_428 + 3] ^= 1;
        let mut sent_before = good.clone();
        sent_before[48] = 1;
        let mut short = good[..if version == 4 { 1_480 } else { 1_460 }].to_vec();
        short[48] = 1;
        for packet in [&cut_off, &misplaced, &sent_before, &short, &good] {
            send(packet);
        }
        let mut packets = Vec::new();
        let (sleeper, start) = (Sleeper::new().unwrap(), Instant::now());
        while packets.len() < 1 + 13 {
            assert!(start.elapsed() < Duration::from_secs(20), "{} arrived", packets.len());
            sleeper.sleep(b.descriptors(), Some(Duration::from_secs(1)));
            b.recv(&mut |_, packet: &[u8]| packets.push(packet.to_vec()));
        }
        assert_eq!(packets.remove(0), short, "a packet of one segment");
        for (segment, packet) in packets.iter().enumerate() {
            let offset = segment * 1_424;
            assert_eq!(packet[..52], good[..52]);
            assert_eq!(packet[52..56], (offset as u32).to_be_bytes());
            assert!(packet[56..].iter().zip(offset..).all(|(&byte, i)| byte == (31 * i + 7) as u8));
            assert_eq!(packet.len(), 1_480);
        }
        let counters = b.counters();
        assert_eq!((counters.split_packets, counters.bad_segments), (1, 3));
        assert_eq!((counters.datagrams_received, counters.packets_received), (5, 14));
    }
}

#[test]
fn an_address_has_one_raw_link() {
    if !in_a_namespace() {
        return;
    }
    let first = bind(host(4, 1));
    let second = RawLink::bind(host(4, 1), &RawConfig::default()).err();
    assert!(matches!(second, Some(LinkError::AddressInUse { .. })), "{second:?}");
    drop(first);
    bind(host(4, 1));
}

#[test]
fn a_path_that_shrinks_is_no_error() {
    if !in_a_namespace() {
        return;
    }
    for version in [4, 6] {
        let (mut a, mut b) = (bind(host(version, 1)), bind(host(version, 2)));
        let to = b.local_addr();
        let path = towards(&mut a, to);
        let longest = a.max_packet(path);
        assert!(longest > 60_000, "loopback takes long packets: {longest}");
        ip("link set lo mtu 3000").unwrap();
        send(&mut a, to, longest - 56);
        assert_eq!(a.poll_error(), None);
        let ip_header = if version == 4 { 20 } else { 40 };
        assert_eq!(a.max_packet(path), 3_000 - ip_header);
        assert_eq!((a.counters().send_too_big, a.counters().path_shrunk), (1, 1));
        send(&mut a, to, 3_000 - ip_header - 56);
        assert_eq!(receive(&mut b).1.len(), 3_000 - ip_header);
        ip("link set lo mtu 65536").unwrap();
    }
}

#[test]
fn without_the_capability_the_error_says_what_to_do() {
    if !in_a_namespace() {
        return;
    }
    let status = Command::new("setpriv")
        .args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "helper_without_the_capability", "--ignored", "--nocapture"])
        .output();
    let Ok(output) = status else {
        return skipped("no setpriv");
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("CAP_NET_RAW") && text.contains("sudo setcap cap_net_raw+ep /"),
        "{text}"
    );
}

#[test]
#[ignore = "run by without_the_capability_the_error_says_what_to_do"]
fn helper_without_the_capability() {
    let error = RawLink::bind([127, 0, 0, 1].into(), &RawConfig::default()).err().unwrap();
    assert!(matches!(error, LinkError::Capability { .. }));
    println!("{error}");
}
