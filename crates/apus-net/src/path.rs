//! What a link knows of a path.

/// Longest packet for a host of which nothing is known: what every IPv4 host must take (576 bytes), less IP and UDP headers.
pub(crate) const ANY_PATH: usize = 548;

/// What is known of the way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Largest Homa packet, header and payload, that fits one datagram.
    pub max_packet: usize,
    /// The peer is on this machine.
    pub loopback: bool,
    /// Rate of the network interface the packets leave by, in Mb/s, when its driver says so; never on loopback.
    pub link_mbps: Option<u64>,
}

impl Path {
    /// Of a way of which nothing is known: what every IPv4 host must take.
    pub const UNKNOWN: Self = Self { max_packet: ANY_PATH, loopback: false, link_mbps: None };
}
