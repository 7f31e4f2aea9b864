//! The load that the endpoints of one host report to each other.
//!
//! A host with several threads runs several endpoints, each with peers of its own. They share the outgoing link, the incoming link
//! for granted bytes, and the limits of the node. Each endpoint therefore receives the load of the other endpoints as one sum and
//! stays within the rest (rules `host-1` to `host-4`).

use std::ops::Add;

/// One endpoint's use of the host's shared resources, or the sum of several.
///
/// Each turn, the runtime passes the sum over the other endpoints to every endpoint by
/// [`Endpoint::set_others`](crate::Endpoint::set_others), from the values of [`Endpoint::load`](crate::Endpoint::load). The values
/// may be as old as a turn: the host may exceed its limits by the bytes granted or sent in that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostLoad {
    /// Bytes that senders may send and that have not arrived (rule `grant-1`).
    pub expected: u64,
    /// Number of senders with a message that waits for grants.
    pub granting: u64,
    /// Bytes passed to the link so far, headers included. Never decreases.
    pub sent: u64,
    /// Number of endpoints with messages that wait for the pacer: 0 or 1 for a single endpoint.
    pub sending: u64,
    /// Bytes charged to the total budget, including the reserve for arriving messages (rules `hostile-1` and `hostile-7`).
    pub held: u64,
    /// Number of known peers.
    pub peers: u64,
    /// Number of calls in progress.
    pub calls: u64,
}

impl Add for HostLoad {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            expected: self.expected.saturating_add(other.expected),
            granting: self.granting.saturating_add(other.granting),
            sent: self.sent.saturating_add(other.sent),
            sending: self.sending.saturating_add(other.sending),
            held: self.held.saturating_add(other.held),
            peers: self.peers.saturating_add(other.peers),
            calls: self.calls.saturating_add(other.calls),
        }
    }
}

impl std::iter::Sum for HostLoad {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), Add::add)
    }
}
