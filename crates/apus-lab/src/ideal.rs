//! The best possible time of a call, on which slowdowns are based.
//!
//! A call of `n` bytes passes the sender's link and the switch's port as packets of the MTU, and its reply the same
//! way back. Both directions are charged. On each way the packets follow one another at the link's rate. On top comes
//! what the smallest call takes on the idle lab: software, wake-ups, virtual wires. That base is measured before each
//! run, the smaller of the transports' medians, so it is the same for all.
//!
//! The emulated links let a packet pass as soon as the one before it is through (see [`crate::switch`]); a real link
//! would hold it for its own time on the wire as well. For a call that is the time of the last packet of each message
//! on two links each. It is known exactly and the same whatever the load, so for slowdowns it is added to both sides:
//! to the time a call took and to the ideal. Times in µs are as they were measured.

/// What Ethernet, IPv4 and UDP add to a packet, as the emulated links count.
const WIRE_HEADERS: u32 = 14 + 20 + 8;

/// What Apus adds to each packet of a message: the longest header there is.
const HOMA_HEADER: u32 = 56;

/// How messages lie on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wire {
    /// Longest IP packet.
    pub(crate) mtu: u32,
    /// Rate in Mb/s, which are bits per µs.
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

    /// How long all packets of a message but the last one keep a link busy, in µs.
    fn all_but_last_us(self, length: u32) -> f64 {
        f64::from(self.bytes_but_last(length)) * 8.0 / self.link_mbps
    }

    /// How long the last packet of a message keeps a link busy, in µs.
    fn last_us(self, length: u32) -> f64 {
        f64::from(self.bytes(length) - self.bytes_but_last(length)) * 8.0 / self.link_mbps
    }

    fn bytes_but_last(self, length: u32) -> u32 {
        (self.packets(length) - 1) * (self.payload() + WIRE_HEADERS + HOMA_HEADER)
    }
}

/// The best possible times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ideal {
    pub(crate) wire: Wire,
    /// What a call takes that needs no time on the wire, in µs.
    pub(crate) base_us: f64,
}

impl Ideal {
    /// The best possible time of a call with a request and a reply of these lengths on the emulated links, in µs.
    pub(crate) fn us(&self, request: u32, reply: u32) -> f64 {
        self.base_us + self.wire.all_but_last_us(request) + self.wire.all_but_last_us(reply)
    }

    /// What the emulated links leave out: the last packets' own time on two links each, in µs.
    fn left_out_us(&self, request: u32, reply: u32) -> f64 {
        2.0 * (self.wire.last_us(request) + self.wire.last_us(reply))
    }

    /// How many times the ideal a call took.
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
