//! The ideal time of a call, the base of slowdowns.
//!
//! A call of `n` bytes passes the sender's link and the switch's port as packets of the MTU, and its reply takes the same path
//! back. Both directions are charged. In each direction the packets follow one another at the link's rate. The time of the smallest
//! call on the idle lab is added: software, wake-ups, virtual wires. This base is measured before each run as the smaller of the
//! transports' medians, so it is the same for all transports.
//!
//! The emulated links let a packet pass as soon as the previous one is through (see [`crate::switch`]); a real link would also hold
//! it for its own time on the wire. For a call that is the time of the last packet of each message on two links each. It is known
//! exactly and independent of the load, so slowdowns add it to both sides: to the time of the call and to the ideal. Times in µs
//! are as measured.

/// Bytes that Ethernet, IPv4 and UDP add to a packet, as counted by the emulated links.
const WIRE_HEADERS: u32 = 14 + 20 + 8;

/// Bytes that Apus adds to each packet of a message: the longest header.
const HOMA_HEADER: u32 = 56;

/// The layout of messages on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wire {
    /// Upper bound on an IP packet, in bytes.
    pub(crate) mtu: u32,
    /// Rate in Mb/s, which equals bits per µs.
    pub(crate) link_mbps: f64,
}

impl Wire {
    /// Payload of a full packet of Apus.
    fn payload(self) -> u32 {
        self.mtu - 28 - HOMA_HEADER
    }

    /// Bytes of a message on the wire with the headers of its packets.
    pub(crate) fn bytes(self, length: u32) -> u32 {
        length + self.packets(length) * (WIRE_HEADERS + HOMA_HEADER)
    }

    fn packets(self, length: u32) -> u32 {
        length.div_ceil(self.payload()).max(1)
    }

    /// Time on a link of all packets of a message except the last one, in µs.
    fn all_but_last_us(self, length: u32) -> f64 {
        f64::from(self.bytes_but_last(length)) * 8.0 / self.link_mbps
    }

    /// Time on a link of the last packet of a message, in µs.
    fn last_us(self, length: u32) -> f64 {
        f64::from(self.bytes(length) - self.bytes_but_last(length)) * 8.0 / self.link_mbps
    }

    fn bytes_but_last(self, length: u32) -> u32 {
        (self.packets(length) - 1) * (self.payload() + WIRE_HEADERS + HOMA_HEADER)
    }
}

/// Ideal times of calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ideal {
    pub(crate) wire: Wire,
    /// Time of a call without time on the wire, in µs.
    pub(crate) base_us: f64,
}

impl Ideal {
    /// The ideal time of a call with a request and a reply of these lengths on the emulated links, in µs.
    pub(crate) fn us(&self, request: u32, reply: u32) -> f64 {
        self.base_us + self.wire.all_but_last_us(request) + self.wire.all_but_last_us(reply)
    }

    /// Time that the emulated links leave out, in µs: the last packets' own time on two links each.
    fn left_out_us(&self, request: u32, reply: u32) -> f64 {
        2.0 * (self.wire.last_us(request) + self.wire.last_us(reply))
    }

    /// The slowdown of a call.
    pub(crate) fn slowdown(&self, took_us: f64, request: u32, reply: u32) -> f64 {
        let left_out_us = self.left_out_us(request, reply);
        (took_us + left_out_us) / (self.us(request, reply) + left_out_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: Wire = Wire { mtu: 1500, link_mbps: 50.0 };

    #[test]
    fn both_directions_are_charged_and_the_last_packet_is_not() {
        let ideal = Ideal { wire: WIRE, base_us: 200.0 };
        assert_eq!(ideal.us(1, 1), 200.0);
        assert_eq!(ideal.us(1416, 1416), 200.0);
        // One full packet of 1,514 bytes each way.
        assert!((ideal.us(1417, 1417) - (200.0 + 2.0 * 1514.0 * 8.0 / 50.0)).abs() < 1e-9);
        assert!((ideal.us(1417, 100) - (200.0 + 1514.0 * 8.0 / 50.0)).abs() < 1e-9);
    }

    #[test]
    fn what_the_links_leave_out_counts_on_both_sides() {
        let ideal = Ideal { wire: WIRE, base_us: 200.0 };
        assert_eq!(ideal.slowdown(200.0, 500, 100), 1.0);
        // 198 bytes take 31.68 µs, on four links.
        assert!((ideal.slowdown(653.44, 100, 100) - (653.44 + 126.72) / 326.72).abs() < 1e-9);
    }

    #[test]
    fn a_message_carries_headers_in_every_packet() {
        assert_eq!(WIRE.bytes(100), 198);
        assert_eq!(WIRE.bytes(1416 * 2), 2 * 1514);
    }
}
