//! Ethernet, IP and UDP headers of a datagram.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Length of an Ethernet header.
pub(super) const ETHERNET_LEN: usize = 14;

/// Length of a UDP header.
const UDP_LEN: usize = 8;

/// Number of routers that may forward a packet: the default of Linux.
const HOP_LIMIT: u8 = 64;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
const PROTOCOL_UDP: u8 = 17;

/// An Ethernet address.
pub(super) type EthernetAddress = [u8; 6];

/// Returns the Ethernet header of IP packets from `from` to `to`.
pub(super) fn ethernet(
    to: EthernetAddress,
    from: EthernetAddress,
    is_ipv4: bool,
) -> [u8; ETHERNET_LEN] {
    let mut header = [0; ETHERNET_LEN];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    let kind = if is_ipv4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
    header[12..].copy_from_slice(&kind.to_be_bytes());
    header
}

/// Returns the length of the IP packet with a payload of UDP.
pub(super) fn packet_len(is_ipv4: bool, payload: usize) -> usize {
    let ip = if is_ipv4 { 20 } else { 40 };
    ip + UDP_LEN + payload
}

/// Writes an IP packet with a datagram. Both addresses have the same version. Returns its length, or 0 if there is no room.
///
/// `tos`: type of service, or traffic class.
#[inline]
pub(super) fn write_packet(
    bytes: &mut [u8],
    from: SocketAddr,
    to: SocketAddr,
    tos: u8,
    payload: &[u8],
) -> usize {
    let len = packet_len(to.is_ipv4(), payload.len());
    let Some(bytes) = bytes.get_mut(..len) else { return 0 };
    let (ip, udp) = bytes.split_at_mut(len - UDP_LEN - payload.len());
    let udp_len = (UDP_LEN + payload.len()) as u16;
    udp[..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    udp[6..8].copy_from_slice(&[0; 2]);
    udp[UDP_LEN..].copy_from_slice(payload);
    let addresses = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = [0x45, tos, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, PROTOCOL_UDP, 0, 0];
            ip[..12].copy_from_slice(&header);
            ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
            let checksum = !folded(sum(ip));
            ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
            sum(&ip[12..20])
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ip[..4].copy_from_slice(&(0x6000_0000 | u32::from(tos) << 20).to_be_bytes());
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[6..8].copy_from_slice(&[PROTOCOL_UDP, HOP_LIMIT]);
            ip[8..24].copy_from_slice(&from.octets());
            ip[24..40].copy_from_slice(&to.octets());
            sum(&ip[8..40])
        }
        _ => return 0,
    };
    let pseudo = addresses + sum(&[0, PROTOCOL_UDP]) + sum(&udp_len.to_be_bytes());
    // A checksum of 0 means that there is none.
    let checksum = match !folded(pseudo + sum(udp)) {
        0 => u16::MAX,
        checksum => checksum,
    };
    udp[6..8].copy_from_slice(&checksum.to_ne_bytes());
    len
}

/// The datagram of a received frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    /// The local address.
    pub(super) to: IpAddr,
    /// Place of the payload in the frame.
    pub(super) payload: Range<usize>,
}

/// Reads a frame with a UDP datagram behind headers without options. Returns `None` if its lengths or checksums are wrong.
///
/// A sender on this machine, behind a virtual device, leaves the checksum to hardware that is not there: it is the sum over the
/// addresses and the length then.
#[inline]
pub(super) fn read_frame(frame: &[u8]) -> Option<Datagram> {
    let packet = frame.get(ETHERNET_LEN..)?;
    let len = |at: usize, bytes: &[u8]| {
        Some(usize::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)))
    };
    let (header, end, from, to): (_, _, IpAddr, IpAddr) = match packet.first()? >> 4 {
        4 => {
            let ip: &[u8; 20] = packet.first_chunk()?;
            if folded(sum(ip)) != u16::MAX {
                return None;
            }
            let [from, to]: [[u8; 4]; 2] = [12, 16].map(|at| *ip[at..].first_chunk().expect("20"));
            (20, len(2, ip)?, from.into(), to.into())
        }
        6 => {
            let ip: &[u8; 40] = packet.first_chunk()?;
            let [from, to]: [[u8; 16]; 2] = [8, 24].map(|at| *ip[at..].first_chunk().expect("40"));
            (40, 40 + len(4, ip)?, from.into(), to.into())
        }
        _ => return None,
    };
    let addresses = if header == 20 { &packet[12..20] } else { &packet[8..40] };
    let udp = packet.get(header..end)?;
    let udp_len = len(4, udp)?;
    let udp = udp.get(..udp_len).filter(|udp| udp.len() >= UDP_LEN)?;
    let pseudo = sum(addresses) + sum(&[0, PROTOCOL_UDP]) + sum(&udp[4..6]);
    let checksum = u16::from_ne_bytes(udp[6..8].try_into().ok()?);
    let is_right = folded(pseudo + sum(udp)) == u16::MAX
        || checksum == folded(pseudo)
        || (checksum == 0 && header == 20);
    let start = ETHERNET_LEN + header + UDP_LEN;
    let port = u16::from_be_bytes([udp[0], udp[1]]);
    is_right.then(|| Datagram {
        from: SocketAddr::new(from, port),
        to,
        payload: start..start + udp.len() - UDP_LEN,
    })
}

/// Returns the sum of 16-bit words in this machine's byte order: the ones' complement sum is the same in each (RFC 1071). The
/// bytes are those of a packet.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_ne_bytes(last));
    total
}

/// Returns a sum in 16 bits, with the carries added.
fn folded(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram that Linux 6.18 sent on a veth device: `hello, world` with a TOS byte of 0xE0.
    #[test]
    fn an_ipv4_packet_is_that_of_the_kernel() {
        let (from, to) = ("10.0.0.1:4660", "10.0.0.2:22136");
        let mut bytes = [0xAA; 100];
        let len = write_packet(
            &mut bytes,
            from.parse().unwrap(),
            to.parse().unwrap(),
            0xE0,
            b"hello, world",
        );
        assert_eq!(len, 40);
        assert_eq!(verified(&bytes[..len]), (true, true));
        assert_eq!(bytes[..12], [0x45, 0xE0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0x25, 0xE3]);
        assert_eq!(bytes[20..26], [0x12, 0x34, 0x56, 0x78, 0, 20]);
        assert_eq!(&bytes[28..40], b"hello, world");
    }

    /// Returns whether the checksums of the IP header and of the datagram fit, by a plain sum of words.
    fn verified(packet: &[u8]) -> (bool, bool) {
        let plain = |bytes: &[u8]| -> u32 {
            let words = bytes
                .chunks(2)
                .map(|word| u32::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)])));
            words.sum()
        };
        let fits = |mut sum: u32| {
            while sum > 0xFFFF {
                sum = (sum & 0xFFFF) + (sum >> 16);
            }
            sum == 0xFFFF
        };
        let (ip, addresses, header) = match packet[0] >> 4 {
            4 => (fits(plain(&packet[..20])), &packet[12..20], 20),
            _ => (true, &packet[8..40], 40),
        };
        let udp = &packet[header..];
        (ip, fits(plain(addresses) + 17 + udp.len() as u32 + plain(udp)))
    }

    #[test]
    fn checksums_fit_for_all_lengths_and_both_versions() {
        let payload: Vec<u8> = (0..1_500u32).map(|at| (at * 151 % 253) as u8).collect();
        for (from, to) in
            [("192.0.2.7:1", "198.51.100.9:65535"), ("[2001:db8::1]:7", "[fe80::2]:9")]
        {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            for len in (0..80).chain([1_399, 1_400, 1_472]) {
                let mut bytes = [0xAA; 2_000];
                let written = write_packet(&mut bytes, from, to, 0x20, &payload[..len]);
                assert_eq!(written, packet_len(to.is_ipv4(), len));
                assert_eq!(verified(&bytes[..written]), (true, true), "{to}, {len}");
                assert_eq!(bytes[written..], [0xAA; 2_000][written..]);
            }
        }
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_its_complement() {
        let (from, to) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let mut bytes = [0; 64];
        let zero = (0..=u16::MAX).find(|value| {
            let len = write_packet(&mut bytes, from, to, 0, &value.to_be_bytes());
            assert_ne!(bytes[26..28], [0, 0]);
            bytes[26..28] == [0xFF, 0xFF] && verified(&bytes[..len]).1
        });
        assert!(zero.is_some());
    }

    /// Returns a frame of a datagram.
    fn frame(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut frame = ethernet([2; 6], [4; 6], to.is_ipv4()).to_vec();
        frame.resize(200, 0);
        let len = write_packet(&mut frame[ETHERNET_LEN..], from, to, 0, payload);
        frame.truncate(ETHERNET_LEN + len);
        frame
    }

    #[test]
    fn frames_are_read_as_they_are_written_and_wrong_ones_are_not() {
        for (from, to) in
            [("192.0.2.7:1", "198.51.100.9:65535"), ("[2001:db8::1]:7", "[fe80::2]:9")]
        {
            let whole = frame(from, to, b"hello, world");
            let read = read_frame(&whole).unwrap();
            assert_eq!(
                (read.from.to_string(), &whole[read.payload.clone()]),
                (from.into(), &b"hello, world"[..])
            );
            assert_eq!(read.to, to.parse::<SocketAddr>().unwrap().ip());
            let padded = [&whole[..], &[0; 9]].concat();
            assert_eq!(read_frame(&padded), Some(read.clone()), "padding of Ethernet");
            assert!((0..whole.len()).all(|len| read_frame(&whole[..len]).is_none()));
            // Each wrong bit of the datagram and of both addresses is found.
            let header = read.payload.start - UDP_LEN;
            let addresses = if from.starts_with('[') { 32 } else { 8 };
            for at in header - addresses..whole.len() {
                for bit in 0..8 {
                    let mut wrong = whole.clone();
                    wrong[at] ^= 1 << bit;
                    assert_eq!(read_frame(&wrong), None, "{at} {bit}");
                }
            }
        }
    }

    #[test]
    fn a_checksum_that_is_left_to_hardware_is_taken() {
        let mut whole = frame("10.0.0.1:1", "10.0.0.2:2", b"hello");
        let udp = ETHERNET_LEN + 20;
        let pseudo = sum(&whole[26..34]) + sum(&[0, PROTOCOL_UDP]) + sum(&whole[udp + 4..udp + 6]);
        whole[udp + 6..udp + 8].copy_from_slice(&folded(pseudo).to_ne_bytes());
        assert!(read_frame(&whole).is_some());
        whole[udp + 6..udp + 8].copy_from_slice(&[0; 2]);
        assert!(read_frame(&whole).is_some(), "IPv4 allows none");
        let short = [&whole[..udp + 4], &[0, 7], &whole[udp + 6..]].concat();
        assert_eq!(read_frame(&short), None, "a datagram is as long as its header");
    }

    #[test]
    fn a_packet_without_room_is_not_written() {
        let (from, to) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        assert_eq!(write_packet(&mut [0; 37], from, to, 0, &[0; 10]), 0);
        assert_eq!(write_packet(&mut [0; 38], from, to, 0, &[0; 10]), 38);
        assert_eq!(write_packet(&mut [0; 99], "[::1]:1".parse().unwrap(), to, 0, &[]), 0);
    }
}
