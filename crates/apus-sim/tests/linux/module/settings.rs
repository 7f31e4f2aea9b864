//! What is set about a host.

/// Longest message.
pub(crate) const MESSAGE_MAX: usize = 1_000_000;

/// What is set about a host (`net.homa.*`), and which build it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Payload of a full packet: 1,424 for an Ethernet frame and IPv4.
    pub(crate) packet_payload: u32,
    /// `unsched_bytes`.
    pub(crate) unscheduled: u32,
    /// `max_incoming`.
    pub(crate) max_incoming: u64,
    /// Packets pass through GRO, where a missing segment offset is filled in.
    pub(crate) gro: bool,
    /// The build without grants, priorities and cutoffs.
    pub(crate) stripped: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            packet_payload: 1_424,
            unscheduled: 40_000,
            max_incoming: 400_000,
            gro: true,
            stripped: false,
        }
    }
}
