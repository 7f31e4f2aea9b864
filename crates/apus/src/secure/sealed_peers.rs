//! The peers of an engine behind sealed paths, and the rules by which they are compared.

use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::{Link, SealedKey};
use apus_proto::{CallFailed, Endpoint, PathKind, Rights, SocketKey, Time};
use apus_seal::Rule;
use apus_wire::{PathId, is_native};

use crate::error::{CallError, RuleError, WrongPeer};
use crate::host::neighbours::Neighbours;
use crate::secure::node_identity::{NodeIdentity, Plain};
use crate::secure::paths::{SealedPathTable, time_of};
use crate::secure::peer::Peer;
use crate::secure::rules::Rules;

/// The peers of an engine behind sealed paths. During a turn of the [driver](super::driver), that has them.
pub(crate) struct SealedPeers {
    pub(super) node: Arc<NodeIdentity>,
    pub(super) paths: SealedPathTable,
    pub(super) rules: Rules,
    /// The socket by which the driver is called.
    driver: SocketKey,
}

impl SealedPeers {
    pub(super) fn new(node: &Arc<NodeIdentity>, driver: SocketKey) -> Self {
        let rules = Rules::of(&node.allow);
        Self { node: Arc::clone(node), paths: SealedPathTable::default(), rules, driver }
    }

    /// Returns the socket by which the driver is called.
    pub(crate) fn driver(&self) -> SocketKey {
        self.driver
    }

    /// Returns the path to a node: a sealed one, unless plain ones are to be used.
    ///
    /// # Errors
    ///
    /// The last handshake with the node has failed, and the next one may not begin yet.
    #[inline]
    pub(crate) fn resolve(
        &self,
        link: &mut dyn Link,
        host: SocketAddr,
        now: impl FnOnce() -> Time,
    ) -> Result<Option<PathId>, CallError> {
        if is_native(host) || self.node.plain == Plain::Use {
            return Ok(link.resolve(host));
        }
        let key = SealedKey::default();
        let Some(path) = link.sealed_paths().and_then(|it| it.resolve_sealed(host, key)) else {
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
            None => self.node.expected_at(entry.address).to_string(),
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
        let rights = self.rules.of_peer(&self.node, entry.address, peer);
        set_rights_of(endpoint, neighbours, path, rights);
    }

    /// Reports the rights of peers without a certificate to the core.
    pub(super) fn set_default_rights(&self, endpoint: &mut Endpoint) {
        endpoint.set_default_rights(PathKind::Plain, self.rules.of_plain(self.node.plain));
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
        let number = self.keep_rule(endpoint, neighbours, rule)?;
        endpoint.set_rule(socket, number);
        self.release_rule(before);
        Ok(number)
    }

    /// Returns the number of a rule for a socket, until [`release_rule`](Self::release_rule). Compares all peers with a new rule.
    ///
    /// # Errors
    ///
    /// The node has too many different rules.
    pub(crate) fn keep_rule(
        &mut self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        rule: &Rule,
    ) -> Result<u8, RuleError> {
        let (number, is_new) = self.rules.number(rule)?;
        if is_new {
            self.set_default_rights(endpoint);
            for (path, entry) in self.paths.iter() {
                let Some(peer) = &entry.peer else { continue };
                let rights = with_rule(endpoint.rights(path), number, rule.admits(Some(peer)));
                set_rights_of(endpoint, neighbours, path, rights);
            }
        }
        Ok(number)
    }

    /// Returns the number of the rule that the configuration has for the services at a port, as [`keep_rule`](Self::keep_rule) does.
    pub(crate) fn keep_rule_at(
        &mut self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        port: u16,
    ) -> Option<u8> {
        let node = Arc::clone(&self.node);
        let kept = self.keep_rule(endpoint, neighbours, node.allowed_at(port)?);
        debug_assert!(kept.is_ok(), "the rules of the configuration have numbers");
        kept.ok()
    }

    /// Returns whether the peers are compared with a rule.
    pub(crate) fn has_rule(&self, rule: &Rule) -> bool {
        self.rules.has(rule)
    }

    /// Notes that a socket has no longer the rule with this number.
    pub(crate) fn release_rule(&mut self, number: u8) {
        self.rules.release(number);
    }

    /// Returns the identity of this node, as its peers see it.
    pub(crate) fn own_peer(&self) -> Option<Peer> {
        self.node.tls().identity().cloned().map(Peer)
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
        rule: u8,
        [caller, called]: [Option<&Peer>; 2],
    ) -> Option<CallError> {
        let named = called.map(|peer| &*peer.0);
        let (is_expected, expected) = match self.rules.get(rule) {
            Some(rule) => (rule.admits(named), rule.to_string()),
            None => {
                let is_own = caller.map(|peer| &peer.0.name) == called.map(|peer| &peer.0.name);
                let rule = self.node.expected_at(address);
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
