//! MEET: a process proves over UDP, under the peer's token, that it is the other end of a unix socket (rule `local-7` of
//! docs/protocol.md). The caller owns the sockets and acts on the proof.

use apus_wire::{Header, Meet, PathId, RpcId};

use crate::control::Body;
use crate::endpoint::Endpoint;
use crate::slab::PeerKey;
use crate::sockets::FIRST_CLIENT_PORT;

/// Upper bound on the MEETs that wait to be taken.
const MEETS_MAX: usize = 64;

/// The header of every MEET, which is about no call. The ports are not 0, because no answer could be sent to port 0.
const HEADER: Header =
    Header { source_port: FIRST_CLIENT_PORT, dest_port: FIRST_CLIENT_PORT, sender_id: RpcId(0) };

impl Endpoint {
    /// Queues a MEET to the peer at `path` for the next [`poll_transmit`](Self::poll_transmit). Returns `false`, and queues
    /// nothing, without a first contact with a peer there: [`connect`](Self::connect) to it first.
    ///
    /// The packet may be lost, as any packet; the caller repeats it until it is answered. Its ports are 32,768 and its id is 0; the
    /// receiver reads neither.
    pub fn send_meet(&mut self, path: PathId, meet: Meet) -> bool {
        //= docs/protocol.md#local-7
        let found = self.peers.find(path).filter(|&key| self.peers[key].contact.met().is_some());
        let Some(key) = found else { return false };
        self.parts.control(key, HEADER, Body::Meet(meet));
        true
    }

    /// Returns the oldest arrived MEET that was not taken yet, and the path of the known peer that sent it. Take them after
    /// [`handle_packet`](Self::handle_packet), as events; at most 64 wait.
    pub fn poll_meet(&mut self) -> Option<(PathId, Meet)> {
        self.meets.pop_front()
    }

    /// Keeps a MEET from a known peer.
    #[cold]
    pub(super) fn on_meet(&mut self, key: PeerKey, meet: Meet) {
        let peer = &self.peers[key];
        let counters = &mut self.parts.counters;
        //= docs/protocol.md#local-7
        if peer.native {
            counters.dropped_mismatch += 1; // Without a token, any host could have sent it.
            return;
        }
        counters.meets_received += 1;
        if self.meets.len() >= MEETS_MAX {
            counters.dropped_meets += 1;
            return;
        }
        self.meets.push_back((peer.path, meet));
    }
}
