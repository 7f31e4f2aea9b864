use std::sync::{Arc, Mutex};

use apus_wire::Priority;

use super::*;
use crate::recorder::{HERE, PEER, Recorder, THERE};

/// A shared output that the test can read.
#[derive(Clone, Default)]
struct SharedOutput(Arc<Mutex<Vec<u8>>>);

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An output that takes the header and then fails.
struct Full(bool);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(bytes.len())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Returns the blocks of a file: type and body. Checks that both lengths agree.
fn blocks(mut file: &[u8]) -> Vec<(usize, &[u8])> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let (kind, len) = (word(file, 0), word(file, 4));
        assert_eq!(len % 4, 0);
        assert_eq!(word(file, len - 4), len);
        blocks.push((kind, &file[8..len - 4]));
        file = &file[len..];
    }
    blocks
}

fn captured(local: &str, to: &str) -> Vec<u8> {
    let output = SharedOutput::default();
    let [local, peer] = [local, to].map(|address| Some(address.parse().unwrap()));
    let link = Recorder { local, peer, ..Recorder::default() };
    let mut link = CaptureLink::new(link, output.clone()).unwrap();
    let priority = Priority::HIGHEST;
    link.send(Transmit::control(PEER, priority, &[0xAB; 29]));
    assert_eq!(link.inner().sent, [vec![0xAB; 29]]);
    link.finish().unwrap();
    output.0.lock().unwrap().clone()
}

#[test]
fn both_directions_are_written_as_udp_packets() {
    let output = SharedOutput::default();
    let mut link = CaptureLink::new(Recorder::default(), output.clone()).unwrap();
    link.send(Transmit::control(PEER, Priority::HIGHEST, &[0xAB; 29]));
    link.link.arriving.push_back(vec![0xCD; 30]);
    let mut seen = Vec::new();
    assert_eq!(link.recv(&mut |from, packet: &[u8]| seen.push((from, packet.to_vec()))), 1);
    assert_eq!(seen, [(PEER, vec![0xCD; 30])]);
    assert_eq!(link.counters().captured, 2);
    drop(link);

    let file = output.0.lock().unwrap();
    let blocks = blocks(&file);
    assert_eq!(blocks.iter().map(|it| it.0).collect::<Vec<_>>(), [0x0A0D_0D0A, 1, 6, 6]);
    assert_eq!(blocks[1].1[..2], [101, 0]);
    for ((_, block), (len, fill, flag, from, to)) in
        blocks[2..].iter().zip([(29, 0xAB, 2, 1, 2), (30, 0xCD, 1, 2, 1)])
    {
        let total = 28 + len;
        assert_eq!((word(block, 12), word(block, 16)), (total, total));
        let packet = &block[20..20 + total];
        assert_eq!(packet[..4], [0x45, if flag == 2 { 0xE0 } else { 0 }, 0, total as u8]);
        assert_eq!(packet[12..20], [10, 0, 0, from, 10, 0, 0, to]);
        assert_eq!(folded(sum(&packet[..20])), 0xFFFF, "the IP header's checksum holds");
        assert_eq!(packet[20..26], [78, 178, 78, 178, 0, 8 + len as u8]);
        assert!(packet[28..].iter().all(|&byte| byte == fill));
        let options = &block[20 + total.next_multiple_of(4)..];
        assert_eq!(options, [2, 0, 4, 0, flag, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn ipv6_packets_have_a_checksum_that_holds() {
    let file = captured("[2001:db8::1]:9", "[2001:db8::2]:10");
    let blocks = blocks(&file);
    let packet = &blocks[2].1[20..][..48 + 29];
    assert_eq!(packet[..8], [0x6E, 0, 0, 0, 0, 37, 17, 64]);
    let pseudo = sum(&packet[8..40]) + 37 + 17;
    assert_eq!(folded(pseudo + sum(&packet[40..])), 0xFFFF);
}

#[test]
fn an_unspecified_address_is_shown_in_the_peers_family() {
    let source = |local: &str, peer: &str| {
        source_towards(local.parse().unwrap(), peer.parse().unwrap()).to_string()
    };
    assert_eq!(source("0.0.0.0:5", "127.0.0.1:9"), "127.0.0.1:5");
    assert_eq!(source("[::]:5", "10.0.0.2:9"), "0.0.0.0:5");
    assert_eq!(source("[::]:5", "[2001:db8::2]:9"), "[::]:5");
    assert_eq!(source(HERE, THERE), HERE);
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_link() {
    let mut link = CaptureLink::new(Recorder::default(), Full(false)).unwrap();
    for _ in 0..10_000 {
        link.send(Transmit::control(PEER, Priority::LOWEST, &[0xAB; 90]));
    }
    let counters = link.counters();
    assert_eq!(counters.captured + counters.capture_errors, 10_000);
    assert!(counters.capture_errors > 0);
    assert_eq!(link.inner().sent.len(), 10_000);
    assert_eq!(link.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_packet_of_a_native_link_follows_its_ip_header() {
    let [from, to] = ["10.0.0.1:0", "10.0.0.2:0"].map(|address| address.parse().unwrap());
    let mut seen = Vec::new();
    encapsulated(&mut seen, from, to, 0xE0, [&[1; 28], &[2; 4]]);
    assert_eq!((seen[9], seen[1]), (IP_PROTOCOL, 0xE0));
    assert_eq!(seen[20..], [&[1; 28][..], &[2; 4]].concat());
}
