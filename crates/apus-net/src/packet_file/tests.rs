//! Files in all formats, frames of all links, and sealed datagrams in them.

use apus_seal::{AwsAead, LoggedKeys};
use proptest::prelude::*;

use super::*;

/// The datagrams of the vectors in docs/wire.md, and the lines of their keys: a packet in one piece, and a payload with its header behind.
const WHOLE: &str = "00000200040000123456789ae000000000000001239ca5e3f4f585b062d01a44a870e5daa460cc0dd41492ef2e61f7d7b8be8c97e5b57e80c5723ef9ab70ad6d";
const SPLIT: &str = "0000020e040000123456789ad0000000000000020a586a4b43418fe6b63da7364f6e2cce20fb926b00cbc417a3d1262b0441d8d929446dcec8d36a70560dc4cf78f2d7a2625ababc97c1c077a9e2593cf9ca9d7d260098a8864ba66d7155041a38511426aa282edc51658878";
const KEYS: &str = "# a comment\n\nAPUS2 040000123456789a 0 1 1fca58a4f5965f6ae5edfb64290ba5bb b9f763ecbce6855a7ea37ca2\n";

fn from_hex(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn keys() -> LoggedKeys<AwsAead> {
    read_keys(KEYS.as_bytes()).unwrap()
}

/// A frame of a raw link with a UDP datagram over IPv4 or IPv6. Checksums are 0.
fn ip(payload: &[u8], is_v6: bool) -> Vec<u8> {
    let udp_len = u16::try_from(payload.len() + 8).unwrap();
    let mut frame = match is_v6 {
        false => {
            let total = (udp_len + 20).to_be_bytes();
            let head = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17, 0, 0];
            [&head[..], &[10, 0, 0, 1], &[10, 0, 0, 2]].concat()
        }
        true => {
            let len = udp_len.to_be_bytes();
            let head = [0x60, 0, 0, 0, len[0], len[1], 17, 64];
            [&head[..], &[0xFD; 16], &[0xFE; 16]].concat()
        }
    };
    for field in [20146, 20146, udp_len, 0] {
        frame.extend(u16::to_be_bytes(field));
    }
    frame.extend(payload);
    frame
}

/// A pcap file in this byte order.
fn pcap(link_type: u16, frames: &[Vec<u8>], is_nanos: bool, word: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let magic = if is_nanos { 0xA1B2_3C4D } else { 0xA1B2_C3D4 };
    let version = if word(1)[0] == 1 { 0x0004_0002 } else { 0x0002_0004 };
    let mut words = vec![magic, version, 0, 0, 262_144, u32::from(link_type)];
    let mut file: Vec<u8> = words.drain(..).flat_map(word).collect();
    for (second, frame) in (7..).zip(frames) {
        let len = u32::try_from(frame.len()).unwrap();
        file.extend([second, 3, len, len + 4].into_iter().flat_map(word));
        file.extend(frame);
    }
    file
}

/// The frames of a file: type of link, time, bytes.
fn frames(file: &[u8]) -> Vec<(u16, u64, Vec<u8>)> {
    let mut reader = PacketReader::new(file).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        frames.push((frame.link_type, frame.time_ns, frame.bytes.to_vec()));
    }
    frames
}

fn opened(file: &[u8], keys: &mut LoggedKeys<AwsAead>) -> (OpeningReport, Vec<Vec<u8>>) {
    let mut output = Vec::new();
    let report = open_file(file, keys, &mut output).unwrap();
    (report, frames(&output).into_iter().map(|(.., bytes)| bytes).collect())
}

/// The payload of a frame of a raw link over IPv4, whose lengths and checksums are right.
fn payload(frame: &[u8]) -> &[u8] {
    use apus_wire::checksum::{folded, sum};
    let half = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    assert_eq!((half(2), half(24)), (frame.len(), frame.len() - 20));
    assert_eq!(folded(sum(&frame[..20])), 0xFFFF);
    let pseudo = sum(&frame[12..20]) + 17 + (frame.len() - 20) as u64;
    assert_eq!(folded(pseudo + sum(&frame[20..])), 0xFFFF);
    &frame[28..]
}

#[test]
fn pcap_files_of_each_byte_order_and_unit_are_read() {
    let all = [ip(b"one", false), ip(b"four", true)];
    for word in [u32::to_le_bytes, u32::to_be_bytes] {
        for (is_nanos, part) in [(false, 3_000), (true, 3)] {
            let read = frames(&pcap(101, &all, is_nanos, word));
            let seconds = [7, 8].map(|second| second * 1_000_000_000 + part);
            assert_eq!(read[0], (101, seconds[0], all[0].clone()));
            assert_eq!(read[1], (101, seconds[1], all[1].clone()));
        }
    }
}

#[test]
fn a_file_that_is_written_is_read() {
    let mut writer = PacketWriter::new(Vec::new()).unwrap();
    let all = [(1, 5, vec![1; 33]), (101, u64::MAX, vec![2; 4]), (1, 0, Vec::new())];
    for (link_type, time_ns, bytes) in &all {
        let (link_type, time_ns) = (*link_type, *time_ns);
        writer.frame(&Frame { link_type, time_ns, original_len: 99, bytes }).unwrap();
    }
    assert_eq!(frames(&writer.finish().unwrap()), all);
}

/// Blocks of a pcapng file in this byte order: type and body.
fn pcapng(blocks: &[(u32, Vec<u8>)], word: fn(u32) -> [u8; 4]) -> Vec<u8> {
    let block = |(kind, body): &(u32, Vec<u8>)| {
        let len = word(u32::try_from(body.len() + 12).unwrap());
        [&word(*kind)[..], &len, body, &len].concat()
    };
    blocks.iter().flat_map(block).collect()
}

#[test]
fn pcapng_files_have_sections_interfaces_units_and_simple_packets() {
    for word in [u32::to_le_bytes as fn(u32) -> [u8; 4], u32::to_be_bytes] {
        let half = |number: u16| {
            let [a, b, c, d] = word(u32::from(number));
            if word(1)[0] == 1 { [a, b] } else { [c, d] }
        };
        let words = |words: &[u32]| words.iter().copied().flat_map(word).collect::<Vec<u8>>();
        let section = (0x0A0D_0D0A, words(&[0x1A2B_3C4D, 1, 0, 0]));
        let interface = |link_type, options: &[u8]| {
            (1, [&half(link_type)[..], &[0; 2], &word(0), options].concat())
        };
        let binary = [&half(9)[..], &half(1), &[0x81, 0, 0, 0]].concat(); // units of half a second
        let packet =
            |number, time: u32| (6, [words(&[number, 0, time, 3, 60]), vec![9, 8, 7, 0]].concat());
        let simple = (3, [words(&[2]), vec![5, 6, 0, 0]].concat());
        let unknown = (0x8000_0001, vec![0; 400]);
        let all = [section.clone(), interface(1, &[]), unknown, interface(101, &binary)];
        let rest = [
            packet(0, 4),
            packet(1, 5),
            simple,
            section.clone(),
            interface(113, &[]),
            packet(0, 6),
        ];
        let file = pcapng(&[&all[..], &rest[..]].concat(), word);
        let three = vec![9, 8, 7];
        let expected = [
            (1, 4_000, three.clone()),
            (101, 2_500_000_000, three.clone()),
            (1, 0, vec![5, 6]),
            (113, 6_000, three),
        ];
        assert_eq!(frames(&file), expected);
        // The interfaces of the first section are gone.
        let wrong = pcapng(&[section.clone(), interface(1, &[]), section, packet(0, 1)], word);
        let error = PacketReader::new(&wrong[..]).unwrap().next_frame().unwrap_err().to_string();
        assert!(error.ends_with("a packet of an unknown interface"), "{error}");
    }
}

#[test]
fn other_files_and_cut_ones_are_errors() {
    let error = |file: &[u8]| {
        let end = PacketReader::new(file).and_then(|mut reader| {
            while reader.next_frame()?.is_some() {}
            Ok(())
        });
        end.unwrap_err()
    };
    for other in [&b""[..], b"abc", b"GIF89a and more bytes of an image"] {
        assert!(matches!(error(other), PacketFileError::NotPackets));
    }
    let file = pcap(101, &[ip(b"one", false)], false, u32::to_le_bytes);
    let is_cut = |length| matches!(error(&file[..length]), PacketFileError::Cut(_));
    assert!((5..24).chain(25..file.len()).all(is_cut));
    let mut long = file.clone();
    long[32..36].copy_from_slice(&[0xFF; 4]);
    let text = error(&long).to_string();
    assert_eq!(text, "malformed at byte 24: a packet of more than 1 MiB");
}

#[test]
fn sealed_datagrams_become_packets_and_other_frames_stay() {
    let other = ip(b"another datagram", false);
    let all =
        [ip(&from_hex(WHOLE), false), other.clone(), ip(&from_hex(SPLIT), false), vec![0x45; 7]];
    let (report, frames) = opened(&pcap(101, &all, false, u32::to_le_bytes), &mut keys());
    assert_eq!((report.frames, report.opened, report.without_key, report.forged), (4, 2, 0, 0));
    assert_eq!(*payload(&frames[0]), [0x11; 28]);
    assert_eq!(frames[1], other);
    assert_eq!(*payload(&frames[2]), [vec![0x33; 56], vec![0x22; 16]].concat());
    assert_eq!(frames[3], all[3]);
}

#[test]
fn datagrams_are_found_behind_the_headers_of_each_link() {
    let ethernet = |tags: &[u8], kind: u16| [&[0; 12], tags, &kind.to_be_bytes()].concat();
    let tag = [0x81, 0, 0, 5];
    for (link_type, is_v6, head) in [
        (1, false, ethernet(&[], 0x0800)),
        (1, true, ethernet(&tag, 0x86DD)),
        (1, false, ethernet(&[[0x88, 0xA8, 0, 1], tag].concat(), 0x0800)),
        (0, false, vec![2, 0, 0, 0]),
        (108, true, vec![0, 0, 0, 24]),
        (113, false, [vec![0; 14], vec![8, 0]].concat()),
        (276, true, [vec![0x86, 0xDD], vec![0; 18]].concat()),
        (228, false, Vec::new()),
        (229, true, Vec::new()),
    ] {
        let frame = [&head[..], &ip(&from_hex(WHOLE), is_v6)].concat();
        let (report, frames) =
            opened(&pcap(link_type, &[frame], false, u32::to_be_bytes), &mut keys());
        assert_eq!(report.opened, 1, "{link_type}");
        assert_eq!(frames[0][..head.len()], head);
        assert_eq!(frames[0][frames[0].len() - 28..], [0x11; 28]);
    }
}

#[test]
fn datagrams_that_were_joined_are_opened_one_by_one() {
    let (whole, split) = (from_hex(WHOLE), from_hex(SPLIT));
    let joined = ip(&[&split[..], &split, &whole].concat(), false);
    let (report, frames) = opened(&pcap(101, &[joined], false, u32::to_le_bytes), &mut keys());
    assert_eq!((report.frames, report.opened, frames.len()), (1, 3, 3));
    assert_eq!((payload(&frames[1]).len(), payload(&frames[2]).len()), (72, 28));
    let mut changed = split.clone();
    changed[50] ^= 1;
    let joined = ip(&[&split[..], &changed].concat(), false);
    let (report, frames) = opened(&pcap(101, &[joined], false, u32::to_le_bytes), &mut keys());
    assert_eq!((report.opened, report.forged), (1, 1));
    assert_eq!(*payload(&frames[1]), changed);
}

#[test]
fn datagrams_that_cannot_be_opened_stay_and_are_counted_by_their_reason() {
    let mut other_path = from_hex(WHOLE);
    other_path[11] ^= 1;
    let mut forged = from_hex(WHOLE);
    forged[63] ^= 1;
    let mut cut = ip(&from_hex(WHOLE), false);
    cut.truncate(cut.len() - 1);
    let all = [ip(&other_path, false), ip(&forged, false), cut];
    let (report, frames) = opened(&pcap(101, &all, false, u32::to_le_bytes), &mut keys());
    assert_eq!((report.opened, report.without_key, report.forged, report.cut), (0, 1, 1, 1));
    assert_eq!(frames, all);
    let mut fragment = ip(&from_hex(WHOLE), false);
    fragment[7] = 1;
    let (report, frames) =
        opened(&pcap(101, &[fragment.clone()], false, u32::to_le_bytes), &mut keys());
    assert_eq!((report.frames, report.opened, report.without_key), (1, 0, 0));
    assert_eq!(frames, [fragment]);
}

#[test]
fn frames_before_the_end_of_a_cut_file_are_written() {
    let file = pcap(101, &[ip(&from_hex(WHOLE), false), ip(b"x", false)], false, u32::to_le_bytes);
    let mut output = Vec::new();
    let error = open_file(&file[..file.len() - 1], &mut keys(), &mut output).unwrap_err();
    assert!(error.to_string().starts_with("the file ends in the middle of a packet"), "{error}");
    assert_eq!(frames(&output).len(), 1);
}

#[test]
fn a_key_log_with_another_line_is_refused_by_its_number() {
    let error = |text: &[u8]| read_keys::<AwsAead>(text).err().unwrap().to_string();
    let wrong = [KEYS.as_bytes(), b"CLIENT_RANDOM 00 11\n"].concat();
    assert!(error(&wrong).starts_with("line 4: expected 'APUS2 "), "{}", error(&wrong));
    assert!(error(b"\xFF\xFE\n").starts_with("line 1: "));
    assert!(error(&[b' '; 10_000]).starts_with("line 1: "));
    assert_eq!(keys().len(), 1);
    assert!(read_keys::<AwsAead>(&b""[..]).unwrap().is_empty());
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(bytes: Vec<u8>, damage in proptest::collection::vec((0usize..400, any::<u8>()), 0..6)) {
        let _ = open_file(&bytes[..], &mut keys(), &mut Vec::new());
        let _ = read_keys::<AwsAead>(&bytes[..]);
        let frame = ip(&[from_hex(WHOLE), from_hex(SPLIT)].concat(), false);
        let mut written = Vec::new();
        let file = pcap(101, &[frame], false, u32::to_le_bytes);
        open_file(&file[..], &mut keys(), &mut written).unwrap();
        for mut file in [file, written] {
            for &(at, byte) in &damage {
                let at = at % file.len();
                file[at] = byte;
            }
            let _ = open_file(&file[..], &mut keys(), &mut Vec::new());
        }
    }
}
