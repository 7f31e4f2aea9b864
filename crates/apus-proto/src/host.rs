//! What the endpoints of one host hold together.
//!
//! A host with several threads runs several endpoints, each with peers of its own. They share the
//! link they send on, the link that what they grant comes in on, and the limits of the node. So each
//! is told what the other endpoints hold, as one sum, and keeps within what is left (rules `host-1` to
//! `host-4`).

use std::ops::Add;

/// One endpoint's part of what its host has one of, or the sum of several.
///
/// Each turn, the runtime gives every endpoint the sum over the other endpoints by
/// [`Endpoint::set_others`](crate::Endpoint::set_others), from what they said of themselves by
/// [`Endpoint::load`](crate::Endpoint::load). The values may be as old as a turn: then the host is
/// above its limits by as much as was granted or sent meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostLoad {
    /// Bytes senders may send that have not come (rule `grant-1`).
    pub expected: u64,
    /// Senders with a message that waits for grants.
    pub granting: u64,
    /// Bytes handed to the link so far, headers included. Only ever grows.
    pub sent: u64,
    /// Endpoints that have messages waiting for the pacer: 0 or 1, or the number of them in a sum.
    pub sending: u64,
    /// Bytes charged to the total budget, with what is kept free for messages that arrive (rules
    /// `hostile-1` and `hostile-7`).
    pub held: u64,
    /// Peers remembered.
    pub peers: u64,
    /// Calls that have not ended.
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
