//! The peers of an engine behind sealed paths, and the rules by which they are compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::{Link, SealedKey};
use apus_proto::{CallFailed, Endpoint, PathKind, Rights, SocketKey, Time};
use apus_seal::Rule;
use apus_wire::{PathId, is_native};

use crate::address::Address;
use crate::error::{CallError, RuleError, WrongPeer};
use crate::host::neighbours::Neighbours;
use crate::secure::node_identity::{NodeIdentity, Plain};
use crate::secure::paths::{SealedPathTable, time_of};
use crate::secure::peer::Peer;
use crate::secure::rules::{HANDSHAKE, NOBODY, Rules};

/// The peers of an engine behind sealed paths. During a turn of the [driver](super::driver), that has them.
pub(crate) struct SealedPeers {
    /// The identities of this node, its own first.
    pub(super) nodes: Vec<Arc<NodeIdentity>>,
    pub(super) paths: SealedPathTable,
    pub(super) rules: Rules,
    /// Number of the rules of the configuration, and of the defaults of identities.
    pinned_rules: usize,
    /// The addresses of nodes with several identities.
    several: SeveralIdentities,
    /// Whether sockets without an identity speak plain with everybody.
    is_open: bool,
    /// Ports of this node that an identity serves since a moment ago, each with that identity.
    pub(super) served: BTreeMap<u16, u8>,
    /// The socket by which the driver is called.
    driver: SocketKey,
}

//= docs/protocol.md#seal-18
/// Addresses of nodes with several identities, each of which has its own ports.
#[derive(Default)]
struct SeveralIdentities {
    known: BTreeSet<SocketAddr>,
    /// Oldest first.
    order: VecDeque<SocketAddr>,
}

/// Upper bound on these addresses. The oldest is forgotten; its next handshake makes it known again.
const SEVERAL_MAX: usize = 4_096;

impl SealedPeers {
    /// `nodes`: the identities of this node, its own first. `is_open`: sockets without an identity speak plain with everybody.
    pub(super) fn new(nodes: &[Arc<NodeIdentity>], is_open: bool, driver: SocketKey) -> Self {
        let others = (1..).zip(&nodes[1..]).map(|(number, _)| number);
        let nobody = (nodes.len() > 1).then_some(NOBODY);
        let mut paths = SealedPathTable::default();
        paths.share_among(nodes.len());
        let rules = Rules::of(&nodes[0].allow, others.chain(nobody));
        Self {
            pinned_rules: rules.len(),
            rules,
            nodes: nodes.to_vec(),
            paths,
            several: SeveralIdentities::default(),
            is_open,
            served: BTreeMap::new(),
            driver,
        }
    }

    /// Returns the node's own identity, whose settings are those of all.
    pub(super) fn node(&self) -> &Arc<NodeIdentity> {
        &self.nodes[0]
    }

    /// Returns an identity by its number.
    pub(super) fn identity(&self, local: u8) -> &Arc<NodeIdentity> {
        self.nodes.get(usize::from(local)).unwrap_or(&self.nodes[0])
    }

    /// Returns the number of times that files of identities were read.
    pub(super) fn generation(&self) -> u64 {
        self.nodes.iter().map(|node| node.generation()).sum()
    }

    //= docs/protocol.md#seal-18
    /// Notes that the node at an address has several identities.
    pub(super) fn note_several(&mut self, address: SocketAddr) {
        if self.several.known.insert(address) {
            self.several.order.push_back(address);
        }
        if self.several.order.len() > SEVERAL_MAX
            && let Some(oldest) = self.several.order.pop_front()
        {
            self.several.known.remove(&oldest);
        }
    }

    //= docs/protocol.md#seal-18
    /// Notes that the node at an address has one identity now.
    pub(super) fn forget_several(&mut self, address: SocketAddr) {
        if self.several.known.remove(&address) {
            self.several.order.retain(|known| *known != address);
        }
    }

    //= docs/protocol.md#seal-18
    /// Notes that sockets of an identity serve a port. Paths for the port under another identity end.
    pub(crate) fn note_served(&mut self, port: u16, local: u8) {
        if self.nodes.len() > 1 {
            self.served.insert(port, local);
        }
    }

    /// Returns the socket by which the driver is called.
    pub(crate) fn driver(&self) -> SocketKey {
        self.driver
    }

    /// Returns the path to a service of a node, for sockets of an identity of this node: a sealed one, unless plain ones are to be used.
    ///
    /// # Errors
    ///
    /// The last handshake with the node has failed, and the next one may not begin yet.
    #[inline]
    pub(crate) fn resolve(
        &self,
        link: &mut dyn Link,
        (Address { host, port, .. }, local): (Address, u8),
        now: impl FnOnce() -> Time,
    ) -> Result<Option<PathId>, CallError> {
        if local == NOBODY && !self.is_open {
            return Err(CallError::NoIdentity);
        }
        if is_native(host) || self.node().plain == Plain::Use || local == NOBODY {
            return Ok(link.resolve(host));
        }
        //= docs/protocol.md#seal-18
        let port = if self.several.known.contains(&host) { port } else { 0 };
        let key = SealedKey { local, port };
        let Some(path) = link.sealed_paths().and_then(|sealed| sealed.resolve_sealed(host, key))
        else {
            return Ok(None);
        };
        if let Some(entry) = self.paths.get(path)
            && let Some(error) = &entry.error
            && entry.attempts.error(time_of(now())).is_some()
        {
            return Err(error.clone());
        }
        Ok(Some(path))
    }

    /// Returns the peer at the end of a path.
    pub(crate) fn peer(&self, path: PathId) -> Option<Peer> {
        self.paths.get(path)?.peer.clone().map(Peer)
    }

    //= docs/protocol.md#seal-6
    /// Returns the error of a call to a peer that its client, whose rule has this number, does not expect.
    pub(crate) fn unexpected(&self, path: PathId, rule: u8) -> CallError {
        let Some(entry) = self.paths.get(path) else { return CallError::PlainOnly };
        let expected = match self.rules.get(rule) {
            Some(rule) => rule.to_string(),
            None => self.identity(entry.usage.local).expected_at(entry.address).to_string(),
        };
        let name = entry.peer.as_ref().map_or_else(String::new, |peer| peer.name.to_string());
        CallError::WrongPeer(Box::new(WrongPeer { address: entry.address, name, expected }))
    }

    /// Returns the error of a call that has ended because of its first contact, which the core does not know in words.
    #[cold]
    pub(crate) fn contact_error(
        &self,
        path: PathId,
        rule: u8,
        error: &CallFailed,
    ) -> Option<CallError> {
        match error {
            CallFailed::NotExpected => Some(self.unexpected(path, rule)),
            CallFailed::HandshakeFailed | CallFailed::NotSent => {
                self.paths.get(path)?.error.clone()
            }
            //= docs/protocol.md#seal-2
            // The request was sent before the server had verified this node, which it then did not.
            CallFailed::MayHaveExecuted => match self.paths.get(path)?.error.clone()? {
                CallError::HandshakeFailed { reason, .. } => {
                    Some(CallError::HandshakeFailed { reason, sent: true })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Reports the rights of a peer to the core.
    pub(crate) fn set_rights(
        &self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        path: PathId,
    ) {
        let Some(entry) = self.paths.get(path) else { return };
        let Some(peer) = &entry.peer else { return };
        let local = entry.usage.local;
        let rights = self.rules.of_peer((local, self.identity(local)), entry.address, peer);
        set_rights_of(endpoint, neighbours, path, rights);
    }

    /// Reports the rights of peers without a certificate to the core.
    pub(super) fn set_default_rights(&self, endpoint: &mut Endpoint) {
        let plain = self.rules.of_plain(self.node().plain, self.is_open);
        endpoint.set_default_rights(PathKind::Plain, plain);
        endpoint.set_default_rights(PathKind::Native, self.rules.of_native());
    }

    /// Gives a socket a rule in place of the one with the number `before`, and returns its number.
    ///
    /// # Errors
    ///
    /// The node has too many different rules.
    pub(crate) fn set_rule(
        &mut self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        (socket, before): (SocketKey, u8),
        rule: &Rule,
    ) -> Result<u8, RuleError> {
        let number = self.keep_rule(endpoint, neighbours, (0, rule))?;
        endpoint.set_rule(socket, number);
        self.release_rule(before);
        Ok(number)
    }

    /// Returns the number of a rule for a socket of an identity, until [`release_rule`](Self::release_rule). Compares the peers of the
    /// identity with a new rule.
    ///
    /// # Errors
    ///
    /// The node has too many different rules.
    pub(crate) fn keep_rule(
        &mut self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        (local, rule): (u8, &Rule),
    ) -> Result<u8, RuleError> {
        let (number, is_new) = self.rules.number(local, Some(rule))?;
        if is_new {
            self.set_default_rights(endpoint);
            self.compare(endpoint, neighbours, (local, number), rule);
        }
        Ok(number)
    }

    /// Compares all peers with a rule that has a number since a moment ago. An earlier rule, perhaps of another identity, may have had
    /// the number, so peers of other identities lose that right.
    //= docs/protocol.md#seal-18
    fn compare(
        &self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        (local, number): (u8, u8),
        rule: &Rule,
    ) {
        for (path, entry) in self.paths.iter() {
            let Some(peer) = &entry.peer else { continue };
            let is_named = entry.usage.local == local && rule.admits(Some(peer));
            let rights = with_rule(endpoint.rights(path), number, is_named);
            set_rights_of(endpoint, neighbours, path, rights);
        }
    }

    /// Returns the number of the rule of a socket of an identity to which no rule was given, as [`keep_rule`](Self::keep_rule) does: that
    /// of the configuration for services at a port, or the default. `None` if there are too many rules.
    pub(crate) fn keep_rule_at(
        &mut self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        (local, port): (u8, u16),
    ) -> Option<u8> {
        let node = Arc::clone(self.node());
        match node.allowed_at(port).filter(|_| local != NOBODY) {
            Some(rule) => self.keep_rule(endpoint, neighbours, (local, rule)).ok(),
            None => Some(self.rules.number(local, None).ok()?.0),
        }
    }

    /// Returns whether this node has several identities.
    pub(crate) fn has_several(&self) -> bool {
        self.nodes.len() > 1
    }

    //= docs/protocol.md#seal-18
    /// Returns the number of different rules that the sockets of one identity may be given.
    pub(crate) fn rules_share(&self) -> usize {
        (usize::from(HANDSHAKE) - 1 - self.pinned_rules).div_euclid(self.nodes.len()).max(1)
    }

    /// Returns whether a number is that of a rule, which a socket or a setting was given. Defaults are none.
    pub(crate) fn is_given(&self, number: u8) -> bool {
        self.rules.get(number).is_some()
    }

    /// Returns whether the peers are compared with a rule.
    pub(crate) fn has_rule(&self, local: u8, rule: &Rule) -> bool {
        self.rules.has(local, rule)
    }

    /// Notes that a socket has no longer the rule with this number.
    pub(crate) fn release_rule(&mut self, number: u8) {
        self.rules.release(number);
    }

    /// Returns an identity of this node, as its peers see it.
    pub(crate) fn own_peer(&self, local: u8) -> Option<Peer> {
        self.nodes.get(usize::from(local))?.tls().identity().cloned().map(Peer)
    }

    //= docs/protocol.md#seal-6
    /// Returns whether the rule with a number admits requests of a process of this engine.
    pub(crate) fn admits_within(&self, rule: u8, caller: Option<&Peer>) -> bool {
        let caller = caller.map(|peer| &*peer.0);
        match self.rules.get(rule) {
            Some(rule) => rule.admits(caller),
            None => Rule::of_service().admits(caller),
        }
    }

    //= docs/protocol.md#seal-6
    /// Returns the error of a call from a process of this engine to another one, at an address of this node, if the client's rule, which
    /// has this number, does not name the other. By default, a client also expects its own identity.
    pub(crate) fn unexpected_within(
        &self,
        address: SocketAddr,
        (local, rule): (u8, u8),
        [caller, called]: [Option<&Peer>; 2],
    ) -> Option<CallError> {
        if local == NOBODY {
            return None; // It knows nobody by name.
        }
        let named = called.map(|peer| &*peer.0);
        let (is_expected, expected) = match self.rules.get(rule) {
            Some(rule) => (rule.admits(named), rule.to_string()),
            None => {
                let is_own = caller.map(|peer| &peer.0.name) == called.map(|peer| &peer.0.name);
                let rule = self.identity(local).expected_at(address);
                (is_own || rule.admits(named), rule.to_string())
            }
        };
        let name = called.map_or_else(String::new, |peer| peer.name().to_owned());
        (!is_expected)
            .then(|| CallError::WrongPeer(Box::new(WrongPeer { address, name, expected })))
    }
}

/// Returns rights with or without the rule with a number.
fn with_rule(rights: Rights, number: u8, is_named: bool) -> Rights {
    let (bit, named) = (1 << number, u64::from(is_named) << number);
    Rights { requests: rights.requests & !bit | named, calls: rights.calls & !bit | named }
}

/// Reports the rights of a peer to the core, on its path and in memory that is shared with it.
fn set_rights_of(
    endpoint: &mut Endpoint,
    neighbours: Option<&Neighbours>,
    path: PathId,
    rights: Rights,
) {
    endpoint.set_rights(path, rights);
    if let Some(neighbours) = neighbours {
        neighbours.local_paths(path).for_each(|local| endpoint.set_rights(local, rights));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apus_proto::Config;
    use apus_seal::{Identity, Name};

    use super::*;
    use crate::secure::paths::PathUse;

    //= docs/protocol.md#seal-18
    #[test]
    fn a_number_that_a_rule_of_another_identity_had_gives_no_right() {
        let mut endpoint = Endpoint::new(Config::default(), 1);
        let mut peers = SealedPeers {
            nodes: Vec::new(),
            paths: SealedPathTable::default(),
            rules: Rules::default(),
            pinned_rules: 0,
            several: SeveralIdentities::default(),
            is_open: false,
            served: BTreeMap::new(),
            driver: endpoint.open(None).unwrap(),
        };
        let rule = Rule::parse(["any"]).unwrap();
        let paths = [1, 2].map(|number| PathId::new(number, 1).sealed());
        for (path, local) in paths.into_iter().zip([1, 2]) {
            let usage = PathUse { local, port: 0, has_arrived: true };
            let address = SocketAddr::from(([10, 0, 0, local], 20_146));
            assert!(peers.paths.add(path, (address, usage), Duration::ZERO));
            let identity = Identity::named(Name::parse("spiffe://example.org/front").unwrap());
            peers.paths.update(path, |entry| entry.peer = Some(Arc::new(identity)));
        }
        let has = |endpoint: &Endpoint, path| endpoint.rights(path).requests & (1 << 5) != 0;
        peers.compare(&mut endpoint, None, (1, 5), &rule);
        assert_eq!(paths.map(|path| has(&endpoint, path)), [true, false]);
        // The number is free again, and a rule of the other identity gets it.
        peers.compare(&mut endpoint, None, (2, 5), &rule);
        assert_eq!(paths.map(|path| has(&endpoint, path)), [false, true]);
    }
}
