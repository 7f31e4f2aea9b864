//! The checksum that a native (raw IP) link may fill in (rule W7).
//!
//! Homa packets of the Linux module carry a TCP checksum, although they are not TCP: the module requests a checksum from Linux,
//! with TCP's protocol number in the pseudo-header, and verifies none. The `emit` functions leave the field zero, which every
//! receiver accepts. A link fills the field in if a network card or a middlebox might verify it.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::header::layout::CHECKSUM;

/// Protocol number in the pseudo-header, also for packets under Homa's own number.
const TCP: u64 = 6;

/// Computes the checksum of a packet between two IPv4 addresses, for bytes 16 and 17 of `header`, big-endian. Ignores the present
/// value of these bytes. `payload` is the rest of the packet after `header`. Never returns zero.
///
/// # Panics
///
/// If `header` is shorter than 18 bytes.
#[must_use]
pub fn ipv4(source: Ipv4Addr, dest: Ipv4Addr, header: &[u8], payload: &[u8]) -> u16 {
    let addresses = [source.octets(), dest.octets()];
    packet(sum(addresses.as_flattened()), header, payload)
}

/// Computes the checksum of a packet between two IPv6 addresses; otherwise the same as [`ipv4`].
///
/// # Panics
///
/// If `header` is shorter than 18 bytes.
#[must_use]
pub fn ipv6(source: Ipv6Addr, dest: Ipv6Addr, header: &[u8], payload: &[u8]) -> u16 {
    let addresses = [source.octets(), dest.octets()];
    packet(sum(addresses.as_flattened()), header, payload)
}

fn packet(addresses: u64, header: &[u8], payload: &[u8]) -> u16 {
    // The length may take two words of the sum, as in IPv6's pseudo-header; for IPv4 the upper one is zero.
    let length = (header.len() + payload.len()) as u64;
    let body = if header.len().is_multiple_of(2) {
        sum(payload)
    } else {
        // Each payload byte changes places within its word, and so does each byte of the folded sum (RFC 1071, byte order
        // independence).
        u64::from(folded(sum(payload)).swap_bytes())
    };
    let before = sum(&header[..CHECKSUM.start]);
    let after = sum(&header[CHECKSUM.end..]);
    match !folded(addresses + TCP + length + before + after + body) {
        // Both values stand for the same number, and zero means "none" to some receivers.
        0 => 0xFFFF,
        checksum => checksum,
    }
}

/// Sums the big-endian 16-bit words, the last one padded with a zero byte (RFC 1071). An overflow takes 2^48 words.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks();
    let whole: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
    whole + odd.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Folds a [`sum`] into 16 bits of one's complement arithmetic. The complement of the result is the checksum (RFC 1071).
#[must_use]
pub fn folded(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    u16::try_from(sum).expect("the loop ended, so the sum fits")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{self, bytes};

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn spec_packets_carry_it() {
        //= docs/wire.md#W7
        let all = [
            samples::SPEC_DATA,
            samples::SPEC_GRANT,
            samples::SPEC_RESEND,
            samples::SPEC_CUTOFFS,
            samples::SPEC_ACK,
            samples::SPEC_NEED_ACK,
        ];
        for hex in all {
            let packet = bytes(hex);
            let carried = u16::from_be_bytes([packet[16], packet[17]]);
            assert_eq!(ipv4(CLIENT, SERVER, &packet, &[]), carried);
            // The sum has no direction.
            assert_eq!(ipv4(SERVER, CLIENT, &packet, &[]), carried);
        }
    }

    #[test]
    fn does_not_depend_on_where_the_header_ends() {
        let packet = bytes(samples::SPEC_DATA);
        let whole = ipv4(CLIENT, SERVER, &packet, &[]);
        for end in CHECKSUM.end..packet.len() {
            let (header, payload) = packet.split_at(end);
            assert_eq!(ipv4(CLIENT, SERVER, header, payload), whole, "split at {end}");
        }
    }

    #[test]
    fn spans_the_addresses_of_ipv6() {
        // By hand: the addresses sum to twice 0x2001 + 0x0db8 + 1, plus 1, instead of the spec's 0x1403.
        let packet = bytes(samples::SPEC_NEED_ACK);
        let client = "2001:db8::1".parse().unwrap();
        let server = "2001:db8::2".parse().unwrap();
        let spec = !0x529C_u16;
        let expected = !(spec - 0x1403 + 0x5B75);
        assert_eq!(ipv6(client, server, &packet, &[]), expected);
    }

    #[test]
    fn is_never_zero() {
        let mut packet = bytes(samples::SPEC_NEED_ACK);
        // Raising a word by the checksum makes the sum all ones.
        packet[14..16].copy_from_slice(&0x529C_u16.to_be_bytes());
        assert_eq!(ipv4(CLIENT, SERVER, &packet, &[]), 0xFFFF);
    }
}
