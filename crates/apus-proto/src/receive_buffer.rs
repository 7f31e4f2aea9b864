//! The part of a receive buffer that packets take.
//!
//! The kernel charges a datagram with its memory (`truesize`). For up to 16 kB that is the next power of two, so that a buffer may
//! hold half as many bytes of data as its size. Longer datagrams occupy pages whose bytes are all used. A buffer's capacity is the
//! number of data bytes that it holds in short datagrams; in long ones it holds almost twice as many.

/// Minimum payload of a datagram that occupies pages, in bytes.
const LONG: u64 = 16_000;
/// Charge for each such datagram beside half of its payload: the kernel's descriptor.
const DESCRIPTION: u64 = 512;

/// Returns the capacity taken by the next `bytes` of a message with `rest` bytes left. Its sender finishes the packet in which they
/// end.
#[inline]
pub(crate) fn taken(bytes: u64, packet: u64, rest: u64) -> u64 {
    if packet < LONG {
        return bytes;
    }
    let bytes = bytes.next_multiple_of(packet).min(rest);
    bytes / packet * taken_by_one(packet) + taken_by_one(bytes % packet)
}

/// Returns the capacity that a packet takes.
#[inline]
pub(crate) fn taken_by_one(payload: u64) -> u64 {
    if payload < LONG { payload } else { payload / 2 + DESCRIPTION }
}

/// Returns the bytes that this much capacity holds in packets with this payload: whole packets, if they are long.
#[inline]
pub(crate) fn held(capacity: u64, packet: u64) -> u64 {
    if packet < LONG { capacity } else { (capacity / taken_by_one(packet)).saturating_mul(packet) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_packets_a_buffer_holds_almost_twice_as_much() {
        assert_eq!(taken(100_000, 1_400, 200_000), 100_000);
        assert_eq!(taken(65_000, 65_000, 200_000), 33_012);
        assert_eq!(taken(66_000, 65_000, 200_000), 66_024);
        assert_eq!(taken(66_000, 65_000, 66_000), 33_012 + 1_000);
        assert_eq!(held(100_000, 1_400), 100_000);
        assert_eq!(held(100_000, 65_000), 195_000);
        assert_eq!(held(33_011, 65_000), 0);
    }
}
