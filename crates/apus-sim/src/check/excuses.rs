//! Calls that may fail because an attacker on the path has ended a handshake.
//!
//! Frames of a handshake are clear, so an attacker that sends a changed copy before the original ends the handshake. Calls of the two
//! nodes may fail then, until a later handshake succeeds. Nothing else excuses a call.

use std::collections::BTreeSet;

use crate::check::ledger::Fate;
use crate::check::world::World;

/// The calls that may fail.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    /// Pairs of nodes whose last handshake has failed.
    without_path: BTreeSet<(usize, usize)>,
    calls: BTreeSet<usize>,
}

impl Excuses {
    fn has(&self, call: usize) -> bool {
        self.calls.contains(&call)
    }
}

impl World<'_> {
    /// The nodes that a path may be meant for: that of its name, and the owner of its address.
    fn pairs_of(&mut self, node: usize, index: usize) -> [Option<(usize, usize)>; 2] {
        let path = &self.sealing().nodes[node].paths[index];
        let (peer, address) = (path.peer.map(|peer| peer.node), path.address);
        let peers = [peer, self.addresses.owner(address)];
        peers.map(|peer| peer.map(|peer| (node.min(peer), node.max(peer))))
    }

    /// Excuses the calls of two nodes, if an attacker may have ended their handshake.
    pub(super) fn handshake_failed(&mut self, node: usize, index: usize) {
        if !self.is_watched() {
            return;
        }
        let pairs = self.pairs_of(node, index);
        self.excuses.without_path.extend(pairs.into_iter().flatten());
        for call in 0..self.scenario.calls.len() {
            if self.entries[call].fate == Fate::UnderWay {
                self.excuse_if_without_path(call);
            }
        }
    }

    /// Notes that a handshake has given a path its keys. If an attacker has relayed it from another address, the calls to the node
    /// there are excused.
    pub(super) fn handshake_succeeded(&mut self, node: usize, index: usize) {
        match self.pairs_of(node, index) {
            [named, owner] if named != owner => self.handshake_failed(node, index),
            [named, _] => _ = named.is_some_and(|pair| self.excuses.without_path.remove(&pair)),
        }
    }

    /// Returns whether a call may fail.
    pub(super) fn is_excused(&self, call: usize) -> bool {
        let planned = &self.scenario.calls[call];
        self.excuses.has(call) || !self.is_allowed(planned.to, planned.from)
    }

    pub(super) fn excuse_if_without_path(&mut self, call: usize) {
        let planned = &self.scenario.calls[call];
        let pair = (planned.from.min(planned.to), planned.from.max(planned.to));
        if self.excuses.without_path.contains(&pair) {
            self.excuses.calls.insert(call);
        }
    }
}
