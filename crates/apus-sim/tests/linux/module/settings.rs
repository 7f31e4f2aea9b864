//! Settings of a host.

/// Upper bound on the length of a message.
pub(crate) const MESSAGE_MAX: usize = 1_000_000;

/// Settings of a host (`net.homa.*`), and its build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Payload of a full packet: 1,424 for an Ethernet frame and IPv4.
    pub(crate) packet_payload: u32,
    /// `unsched_bytes`.
    pub(crate) unscheduled: u32,
    /// `max_incoming`.
    pub(crate) max_incoming: u64,
    /// Whether packets pass through GRO, which fills in missing segment offsets.
    pub(crate) gro: bool,
    /// Whether it is the build without grants, priorities and cutoffs.
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
