//! Properties of a path.

/// Length of the longest packet to an unknown host: the 576 bytes that every IPv4 host must accept, less IP and UDP headers.
pub(crate) const ANY_PATH: usize = 548;

/// Known properties of the path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Length of the longest Homa packet, header and payload, that fits one datagram.
    pub max_packet: usize,
    /// Whether the peer is on this machine.
    pub loopback: bool,
    /// Rate of the outgoing network interface in Mb/s, if its driver reports it; never on loopback.
    pub link_mbps: Option<u64>,
}

impl Path {
    /// Properties of an unknown path: the limits of every IPv4 host.
    pub const UNKNOWN: Self = Self { max_packet: ANY_PATH, loopback: false, link_mbps: None };
}
