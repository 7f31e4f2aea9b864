//! The calls of a world that an attacker excuses: noted when handshakes fail and reports are forged, and asked for when calls fail.

use std::time::Duration;

use apus_proto::CallFailed;

use crate::check::ledger::Fate;
use crate::check::scenario::PlannedCall;
use crate::check::world::World;

/// The shortest RTO.
const RTO_MIN: Duration = Duration::from_millis(2);

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
        let (now, pairs) = (self.now, self.pairs_of(node, index));
        self.excuses.without_path.extend(pairs.into_iter().flatten().map(|pair| (pair, now)));
        for call in 0..self.scenario.calls.len() {
            if self.entries[call].fate == Fate::UnderWay {
                self.excuse_if_without_path(call);
            }
        }
    }

    /// Notes that a handshake has given a path its name. If an attacker has relayed it from another address, the calls to the node
    /// there are excused.
    pub(super) fn handshake_named(&mut self, node: usize, index: usize) {
        let [named, owner] = self.pairs_of(node, index);
        if named != owner {
            self.handshake_failed(node, index);
        }
    }

    /// Notes that a handshake, which began at a time, has given a path its keys, and that its client knows that the server has
    /// them too. It makes up for what an attacker has ended earlier, but not for what it has ended since: the client may call by
    /// that.
    pub(super) fn handshake_succeeded(&mut self, node: usize, index: usize, began: Duration) {
        let [named, owner] = self.pairs_of(node, index);
        let Some(pair) = named.filter(|_| named == owner) else { return };
        if self.excuses.without_path.get(&pair).is_some_and(|&failed| failed <= began) {
            self.excuses.without_path.remove(&pair);
        }
    }

    /// Returns whether a call may fail in this way.
    pub(super) fn is_excused(&self, call: usize, error: &CallFailed) -> bool {
        let planned = &self.scenario.calls[call];
        self.excuses.has(call)
            || !self.is_allowed(planned.to, planned.from)
            || match error {
                CallFailed::Unreachable { .. } => {
                    self.scenario.has_reports() && self.was_silent(call)
                }
                CallFailed::ResponseLost => self.excuses.given_up.contains(&call),
                _ => false,
            }
    }

    /// Returns whether the peer of a call has been silent for an RTO, in which this node has waited for an answer to this call or to
    /// another one.
    fn was_silent(&self, call: usize) -> bool {
        let PlannedCall { from, to, .. } = self.scenario.calls[call];
        let ends = [(from, to), (to, from)];
        let of_pair = |call: &PlannedCall| ends.contains(&(call.from, call.to));
        let calls = self.scenario.calls.iter().zip(&self.entries);
        // A server waits for acknowledgements of its responses, too.
        let asking = calls.filter(|(call, entry)| {
            let may_ask = call.from == to || matches!(entry.fate, Fate::UnderWay | Fate::Failed);
            of_pair(call) && entry.fate != Fate::NotBegun && may_ask
        });
        let began = asking.map(|(_, entry)| entry.began).min().unwrap_or(self.now);
        self.is_silent(from, to, began)
    }

    /// Returns whether a node has opened no record of another one from its address for an RTO, from a time on.
    fn is_silent(&self, node: usize, peer: usize, from: Duration) -> bool {
        let heard = self.excuses.heard.get(&(node, peer)).copied().unwrap_or_default();
        self.now.saturating_sub(heard.max(from)) >= RTO_MIN
    }

    /// Notes that a node has a forged report about a client.
    pub(super) fn note_report(&mut self, node: usize, client: usize) {
        if !self.is_silent(node, client, Duration::ZERO) {
            return;
        }
        let calls = self.scenario.calls.iter().enumerate();
        let served = calls.filter(|(_, call)| (call.from, call.to) == (client, node));
        self.excuses.given_up.extend(served.map(|(number, _)| number));
    }

    pub(super) fn excuse_if_without_path(&mut self, call: usize) {
        let planned = &self.scenario.calls[call];
        let pair = (planned.from.min(planned.to), planned.from.max(planned.to));
        if self.excuses.without_path.contains_key(&pair) {
            self.excuses.calls.insert(call);
        }
    }
}
