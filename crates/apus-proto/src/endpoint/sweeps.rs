//! Pending and current sweeps over all RPCs.

use std::collections::VecDeque;

use crate::error::CallFailed;
use crate::rpc::Rpc;
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::time::Time;

/// Upper bound on pending sweeps. Beyond it, errors about paths are ignored, and the peers' silence ends their RPCs.
const WAITING_MAX: usize = 64;

/// Upper bound on the unsent calls that end at a time.
const UNSENT: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Sweeps {
    sweeps: VecDeque<Sweep>,
    /// Calls that waited for a peer, and end next with these errors. No byte of them was sent.
    unsent: VecDeque<(RpcKey, CallFailed)>,
}

#[derive(Debug)]
struct Sweep {
    swept: Swept,
    /// The next slot to examine.
    slot: usize,
}

/// The RPCs that a sweep ends.
#[derive(Clone, Debug)]
pub(super) enum Swept {
    /// RPCs of a closed socket.
    Socket(SocketKey),
    /// RPCs with a port of a peer that were in progress when the network reported that the port is not served.
    Service(PeerKey, Time, u16),
    /// RPCs with a run of a peer that is over. The successor takes over the unsent calls; without one, they end with the error.
    Run(PeerKey, Result<PeerKey, CallFailed>),
    /// RPCs with a peer that were in progress at this moment; calls end with this error.
    Failed(PeerKey, Time, CallFailed),
    /// Requests that an earlier incarnation of a client had begun to send before this moment.
    Incarnation(PeerKey, Time),
}

impl Sweeps {
    pub(super) fn is_empty(&self) -> bool {
        self.sweeps.is_empty() && self.unsent.is_empty()
    }

    /// Adds a call that waited for a peer, and is deferred for good.
    pub(super) fn push_unsent(&mut self, key: RpcKey, error: CallFailed) {
        self.unsent.push_back((key, error));
    }

    /// Removes and returns the next such calls.
    pub(super) fn take_unsent(&mut self) -> Vec<(RpcKey, CallFailed)> {
        let count = self.unsent.len().min(UNSENT);
        self.unsent.drain(..count).collect()
    }

    pub(super) fn push(&mut self, swept: Swept) {
        self.sweeps.push_back(Sweep { swept, slot: 0 });
    }

    /// Returns the oldest sweep and the slot at which it continues, and advances it by `step` slots.
    pub(super) fn advance(&mut self, step: usize) -> Option<(Swept, usize)> {
        let sweep = self.sweeps.front_mut()?;
        let slot = sweep.slot;
        sweep.slot += step;
        Some((sweep.swept.clone(), slot))
    }

    /// Removes the oldest sweep, which is over.
    pub(super) fn pop(&mut self) {
        self.sweeps.pop_front();
    }

    /// Adds a sweep for an error about a path, unless a pending one ends the same RPCs.
    pub(super) fn push_error(&mut self, swept: Swept) {
        let is_covered = || self.sweeps.iter().any(|sweep| sweep.swept.covers(&swept));
        if self.sweeps.len() < WAITING_MAX && !is_covered() {
            self.push(swept);
        }
    }
}

impl Swept {
    /// Returns whether the sweep ends this RPC.
    pub(super) fn has(&self, rpc: &Rpc) -> bool {
        match *self {
            Self::Socket(socket) => rpc.socket == socket,
            Self::Run(peer, _) => rpc.peer == peer,
            Self::Failed(peer, at, _) => rpc.peer == peer && rpc.started <= at,
            Self::Service(peer, at, port) => {
                (rpc.peer, rpc.remote_port) == (peer, port) && rpc.started <= at
            }
            Self::Incarnation(peer, at) => {
                let begun = rpc.phase.is_incoming() && !rpc.is_client();
                rpc.peer == peer && begun && rpc.started < at
            }
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Failed(peer, at, _), Self::Failed(other, now, _)) => (peer, at) == (other, now),
            (Self::Service(peer, _, port), Self::Service(other, _, other_port)) => {
                (peer, port) == (other, other_port)
            }
            _ => false,
        }
    }
}
