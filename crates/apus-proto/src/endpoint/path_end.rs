//! Ends of sealed paths: a handshake that has failed, and a path whose peer is over.

use apus_wire::{PathId, RpcId};

use crate::contact::Contact;
use crate::endpoint::Endpoint;
use crate::error::CallFailed;
use crate::rpc::Rpc;
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;

impl Endpoint {
    /// Returns the port of the call for which a first contact with the node at a path is sought; `None` if no call waits for it.
    #[must_use]
    pub fn contact_port(&self, path: PathId) -> Option<u16> {
        let opening = self.peers.get(self.peers.find(path)?)?.contact.opening()?;
        (opening.header.sender_id != RpcId(0)).then_some(opening.header.dest_port)
    }

    //= docs/protocol.md#seal-18
    /// The path leads to one port of its node alone. Calls to other ports that wait for the first contact end as
    /// [`CallFailed::NotSent`], and the next ones find paths of their own.
    pub fn path_is_for(&mut self, path: PathId, port: u16) {
        let Some(peer) = self.peers.find(path) else { return };
        let rpcs = &self.rpcs;
        let is_other =
            |key: RpcKey| rpcs.get(key).is_some_and(|it| it.is_client() && it.remote_port != port);
        for key in self.peers[peer].flight.take_deferred(is_other) {
            self.sweeps.push_unsent(key, CallFailed::NotSent);
        }
    }

    /// The handshake with the node at a path has failed. Calls that wait for the first contact end as
    /// [`CallFailed::HandshakeFailed`], a few at a time, and the peer is forgotten, so that the next call asks for a handshake anew.
    /// If a known peer was in doubt, it is so no longer, even if calls by the path go to a later one now. Calls of which nothing was
    /// sent end in the same way if the peer has been silent for so long that they wait for an answer to the doubt; the others are sent
    /// or go on, and end if the peer is lost (life-4).
    pub fn contact_failed(&mut self, now: Time, path: PathId) {
        //= docs/protocol.md#seal-1
        let error = CallFailed::HandshakeFailed;
        for key in self.peers.at(path) {
            match self.peers.get(key).map(|peer| &peer.contact) {
                Some(Contact::Opening(_)) => {
                    self.end_run(key, Err(error.clone()));
                    self.forget_peer(key);
                }
                Some(Contact::Met(met)) => {
                    if let Some(asking) = met.asking {
                        self.forget_peer(asking);
                    }
                    if self.peers[key].is_doubtful(now) {
                        self.end_waiting(key, &error);
                    } else {
                        // The peer has given a sign since these calls began to wait for an answer, which does not come any more.
                        self.release(key);
                    }
                }
                Some(Contact::Native | Contact::Asking(..) | Contact::Over) | None => {}
            }
        }
    }

    /// The path of a node over UDP has ended: the time of its keys is over, its certificate was revoked, or its address has another
    /// name. Every peer at the path is over (contact-6): calls end as [`CallFailed::MayHaveExecuted`] if their request was sent
    /// completely, and otherwise as [`CallFailed::NotSent`]; requests in service lose their client. No later packet with their tokens
    /// is taken, and the next call by the path begins with a first contact. The path keeps its rights. Does nothing for a native link,
    /// which has no tokens, and for a path within the host ([`remove_local`](Self::remove_local)).
    pub fn path_over(&mut self, path: PathId) {
        //= docs/protocol.md#seal-11
        for key in self.peers.at(path) {
            match self.peers.get(key).map(|peer| &peer.contact) {
                Some(Contact::Asking(..)) => self.forget_peer(key),
                Some(Contact::Opening(_) | Contact::Met(_)) => {
                    self.end_run(key, Err(CallFailed::NotSent));
                }
                Some(Contact::Native | Contact::Over) | None => {}
            }
        }
    }

    /// Ends the calls to a peer of which no byte was sent, because they wait for the peer, a few at a time.
    fn end_waiting(&mut self, peer: PeerKey, error: &CallFailed) {
        let rpcs = &self.rpcs;
        let is_call = |key: RpcKey| rpcs.get(key).is_some_and(Rpc::is_client);
        for key in self.peers[peer].flight.take_deferred(is_call) {
            self.sweeps.push_unsent(key, error.clone());
        }
    }
}
