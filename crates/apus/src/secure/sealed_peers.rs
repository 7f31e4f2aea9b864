//! The peers of an engine behind sealed paths, and the rules by which they are compared.

use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::Link;
use apus_proto::{CallFailed, Endpoint, PathKind, SocketKey, Time};
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
        let Some(path) = link.sealed_paths().and_then(|sealed| sealed.resolve_sealed(host)) else {
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
        endpoint.set_rights(path, rights);
        if let Some(neighbours) = neighbours {
            neighbours.local_paths(path).for_each(|local| endpoint.set_rights(local, rights));
        }
    }

    /// Reports the rights of peers without a certificate to the core.
    pub(super) fn set_default_rights(&self, endpoint: &mut Endpoint) {
        endpoint.set_default_rights(PathKind::Plain, self.rules.of_plain(self.node.plain));
        endpoint.set_default_rights(PathKind::Native, self.rules.of_native());
    }

    /// Gives a socket a rule, and returns its number.
    ///
    /// # Errors
    ///
    /// The node has too many different rules.
    pub(crate) fn set_rule(
        &mut self,
        endpoint: &mut Endpoint,
        neighbours: Option<&Neighbours>,
        socket: SocketKey,
        rule: &Rule,
    ) -> Result<u8, RuleError> {
        let (number, is_new) = self.rules.number(rule)?;
        if is_new {
            self.set_default_rights(endpoint);
            let paths: Vec<PathId> = self.paths.iter().map(|(path, _)| path).collect();
            paths.into_iter().for_each(|path| self.set_rights(endpoint, neighbours, path));
        }
        endpoint.set_rule(socket, number);
        Ok(number)
    }
}
