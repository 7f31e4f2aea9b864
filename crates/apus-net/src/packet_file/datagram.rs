//! The UDP datagram in a captured frame, and the same frame with another payload.

use std::ops::Range;

use apus_wire::checksum::{folded, sum};

use super::reader::Frame;

/// `LINKTYPE` values.
const BSD_LOOPBACK: u16 = 0;
const ETHERNET: u16 = 1;
const RAW: u16 = 101;
const OPENBSD_LOOPBACK: u16 = 108;
const LINUX_COOKED: u16 = 113;
const IPV4_ONLY: u16 = 228;
const IPV6_ONLY: u16 = 229;
const LINUX_COOKED_2: u16 = 276;

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const IPV6_HEADER: usize = 40;

/// Tags of virtual networks that are looked behind.
const TAGS_MAX: usize = 2;

/// The place of a UDP datagram in a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct UdpPlace {
    /// Offset of the IP header.
    ip: usize,
    /// Offset of the UDP header.
    udp: usize,
    is_v6: bool,
    /// The captured part of the payload.
    pub(super) payload: Range<usize>,
    /// Whether the payload was captured completely.
    pub(super) is_whole: bool,
}

impl UdpPlace {
    /// Returns the place of the datagram; `None` if the frame has none, or a fragment of one.
    pub(super) fn of(frame: &Frame<'_>) -> Option<Self> {
        let ip = ip_offset(frame.link_type, frame.bytes)?;
        let packet = &frame.bytes[ip..];
        match packet.first()? >> 4 {
            4 => Self::of_v4(ip, packet),
            6 => Self::of_v6(ip, packet),
            _ => None,
        }
    }

    fn of_v4(ip: usize, packet: &[u8]) -> Option<Self> {
        let header = usize::from(packet.first()? & 15) * 4;
        let is_fragment = half(packet, 6)? & 0x3FFF != 0;
        if header < 20 || is_fragment || *packet.get(9)? != UDP {
            return None;
        }
        Self::of_parts(ip, header, false, usize::from(half(packet, 2)?), packet)
    }

    fn of_v6(ip: usize, packet: &[u8]) -> Option<Self> {
        if *packet.get(6)? != UDP {
            return None;
        }
        let payload = usize::from(half(packet, 4)?);
        let length = if payload == 0 { 0 } else { IPV6_HEADER + payload };
        Self::of_parts(ip, IPV6_HEADER, true, length, packet)
    }

    /// `length` is that of the IP packet, or 0 if it is too long for the field.
    fn of_parts(
        ip: usize,
        header: usize,
        is_v6: bool,
        length: usize,
        packet: &[u8],
    ) -> Option<Self> {
        let length = if length == 0 { packet.len() } else { length };
        let udp_length = usize::from(half(packet, header + 4)?);
        let end = match udp_length {
            0 => length,
            udp_length => length.min(header + udp_length),
        };
        let begin = header + UDP_HEADER;
        if end < begin || packet.len() < begin {
            return None;
        }
        let payload = ip + begin..ip + end.min(packet.len());
        Some(Self { ip, udp: ip + header, is_v6, payload, is_whole: end <= packet.len() })
    }

    /// Writes the bytes of the frame to `out`, with another payload and right lengths and checksums. Lengths that are too long for
    /// their fields become 0.
    pub(super) fn replace(&self, frame: &[u8], payload: [&[u8]; 2], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&frame[..self.udp + UDP_HEADER]);
        payload.into_iter().for_each(|part| out.extend_from_slice(part));
        let field = |length: usize| u16::try_from(length).unwrap_or(0);
        let (udp_length, ip_length) = (out.len() - self.udp, out.len() - self.ip);
        put(out, self.udp + 4, field(udp_length));
        let addresses = if self.is_v6 {
            put(out, self.ip + 4, field(udp_length));
            self.ip + 8..self.ip + 40
        } else {
            put(out, self.ip + 2, field(ip_length));
            put(out, self.ip + 10, 0);
            let checksum = !folded(sum(&out[self.ip..self.udp]));
            put(out, self.ip + 10, checksum);
            self.ip + 12..self.ip + 20
        };
        put(out, self.udp + 6, 0);
        let pseudo = sum(&out[addresses]) + u64::from(UDP) + udp_length as u64;
        let checksum = match !folded(pseudo + sum(&out[self.udp..])) {
            0 => u16::MAX,
            checksum => checksum,
        };
        put(out, self.udp + 6, checksum);
    }
}

/// Returns the offset of the IP header.
fn ip_offset(link_type: u16, bytes: &[u8]) -> Option<usize> {
    let is_ip = |protocol| matches!(protocol, 0x0800 | 0x86DD);
    let offset = match link_type {
        RAW | IPV4_ONLY | IPV6_ONLY => 0,
        BSD_LOOPBACK | OPENBSD_LOOPBACK => 4,
        LINUX_COOKED => is_ip(half(bytes, 14)?).then_some(16)?,
        LINUX_COOKED_2 => is_ip(half(bytes, 0)?).then_some(20)?,
        ETHERNET => {
            let is_tag = |at: &usize| matches!(half(bytes, *at), Some(0x8100 | 0x88A8));
            let protocol = (0..=TAGS_MAX).map(|tags| 12 + 4 * tags).find(|at| !is_tag(at))?;
            is_ip(half(bytes, protocol)?).then_some(protocol + 2)?
        }
        _ => return None,
    };
    (offset < bytes.len()).then_some(offset)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
