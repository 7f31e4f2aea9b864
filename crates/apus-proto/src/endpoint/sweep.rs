//! Work over all RPCs, done a few at a time.

use std::collections::VecDeque;

use crate::endpoint::Endpoint;
use crate::error::CallFailed;
use crate::rpc::Rpc;
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::time::Time;

/// RPC slots that one step of a sweep looks at.
const STEP: usize = 256;

/// Sweeps that wait, beyond which errors about paths are not heeded. Silence will tell instead.
const WAITING_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Sweeps(VecDeque<Sweep>);

#[derive(Debug)]
struct Sweep {
    swept: Swept,
    /// The next slot to look at.
    slot: usize,
}

/// The RPCs that a sweep ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Swept {
    /// Those of a socket that is closed.
    Socket(SocketKey),
    /// Those that were under way with a port of a peer when the network said that nobody serves it.
    Service(PeerKey, Time, u16),
    /// Those with a run of a peer that is over. The successor takes over the calls that were not sent.
    Run(PeerKey, Option<PeerKey>),
    /// Those that were under way with a peer at this moment; calls end with this error.
    Failed(PeerKey, Time, CallFailed),
    /// The requests that an earlier incarnation of a client had begun to send before this moment.
    Incarnation(PeerKey, Time),
}

impl Sweeps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, swept: Swept) {
        self.0.push_back(Sweep { swept, slot: 0 });
    }

    /// Adds a sweep for an error about a path, unless one that ends the same RPCs waits already.
    pub(super) fn push_error(&mut self, swept: Swept) {
        if self.0.len() < WAITING_MAX && !self.0.iter().any(|sweep| sweep.swept.covers(swept)) {
            self.push(swept);
        }
    }
}

impl Swept {
    /// Whether this RPC ends.
    fn has(self, rpc: &Rpc) -> bool {
        match self {
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

    fn covers(self, other: Self) -> bool {
        match (self, other) {
            (Self::Failed(peer, at, _), Self::Failed(other, now, _)) => (peer, at) == (other, now),
            (Self::Service(peer, _, port), Self::Service(other, _, other_port)) => {
                (peer, port) == (other, other_port)
            }
            _ => false,
        }
    }
}

impl Endpoint {
    /// One step of the oldest sweep.
    pub(super) fn sweep(&mut self, now: Time) {
        let Some(sweep) = self.sweeps.0.front_mut() else { return };
        let (swept, first) = (sweep.swept, sweep.slot);
        sweep.slot += STEP;
        //= docs/protocol.md#server-5
        for slot in first..first + STEP {
            if let Some((key, rpc)) = self.rpcs.at(slot)
                && swept.has(rpc)
            {
                self.end_swept(now, key, swept);
            }
        }
        if first + STEP >= self.rpcs.slots() {
            self.sweeps.0.pop_front();
        }
    }

    fn end_swept(&mut self, now: Time, key: RpcKey, swept: Swept) {
        let is_client = self.rpcs.get(key).is_some_and(Rpc::is_client);
        match swept {
            Swept::Run(_, successor) => self.end_with_run(now, key, successor),
            Swept::Failed(_, _, error) if is_client => self.fail(key, error),
            //= docs/protocol.md#linux-3
            Swept::Service(..) if is_client => self.fail(key, CallFailed::NoSuchPort),
            _ => {
                self.remove_rpc(key);
            }
        }
    }
}
