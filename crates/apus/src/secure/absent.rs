//! Empty types in place of the driver and the identity, and the behaviour of a node without them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use apus_net::Link;
use apus_proto::{CallFailed, Endpoint, SocketKey, Time};
use apus_seal::Rule;
use apus_wire::PathId;

use crate::address::Address;
use crate::config::Config;
use crate::engine::Engine;
use crate::engine::lock::Shared;
use crate::error::{CallError, IdentityError, RuleError, StartError};
use crate::host::neighbours::Neighbours;
use crate::secure::peer::Peer;

/// The identity of a node, which has none.
pub(crate) enum NodeIdentity {}

impl NodeIdentity {
    /// Returns none. A configuration with a certificate was refused.
    pub(crate) fn of(_: &Config) -> Result<Option<Arc<Self>>, IdentityError> {
        Ok(None)
    }

    /// Returns none, as [`of`](Self::of) does.
    pub(crate) fn of_users(
        _: &Config,
        _: &(PathBuf, PathBuf),
    ) -> Result<Option<Arc<Self>>, IdentityError> {
        Ok(None)
    }

    pub(crate) fn reload(&self) -> Result<bool, IdentityError> {
        match *self {}
    }

    pub(crate) fn remember(&self, _: SocketAddr, _: &str) {
        match *self {}
    }
}

/// The handshakes of an engine, which makes none.
pub(crate) enum Driver {}

/// The peers of an engine behind sealed paths, of which there are none.
pub(crate) enum SealedPeers {}

impl Driver {
    pub(crate) fn begin(
        _: &Arc<Shared>,
        nodes: &[Arc<NodeIdentity>],
        _: bool,
    ) -> Result<(), StartError> {
        match *nodes[0] {}
    }
}

impl SealedPeers {
    pub(crate) fn driver(&self) -> SocketKey {
        match *self {}
    }

    pub(crate) fn resolve(
        &self,
        _: &mut dyn Link,
        _: (Address, u8),
        _: impl FnOnce() -> Time,
    ) -> Result<Option<PathId>, CallError> {
        match *self {}
    }

    pub(crate) fn contact_error(&self, _: PathId, _: u8, _: &CallFailed) -> Option<CallError> {
        match *self {}
    }

    pub(crate) fn unexpected(&self, _: PathId, _: u8) -> CallError {
        match *self {}
    }

    pub(crate) fn peer(&self, _: PathId) -> Option<Peer> {
        match *self {}
    }

    pub(crate) fn own_peer(&self, _: u8) -> Option<Peer> {
        match *self {}
    }

    pub(crate) fn keep_rule(
        &mut self,
        _: &mut Endpoint,
        _: Option<&Neighbours>,
        _: (u8, &Rule),
    ) -> Result<u8, RuleError> {
        match *self {}
    }

    pub(crate) fn keep_rule_at(
        &mut self,
        _: &mut Endpoint,
        _: Option<&Neighbours>,
        _: (u8, u16),
    ) -> Option<u8> {
        match *self {}
    }

    pub(crate) fn has_rule(&self, _: u8, _: &Rule) -> bool {
        match *self {}
    }

    pub(crate) fn has_several(&self) -> bool {
        match *self {}
    }

    pub(crate) fn rules_share(&self) -> usize {
        match *self {}
    }

    pub(crate) fn is_given(&self, _: u8) -> bool {
        match *self {}
    }

    pub(crate) fn note_served(&mut self, _: u16, _: u8) {
        match *self {}
    }

    pub(crate) fn release_rule(&mut self, _: u8) {
        match *self {}
    }

    pub(crate) fn admits_within(&self, _: u8, _: Option<&Peer>) -> bool {
        match *self {}
    }

    pub(crate) fn unexpected_within(
        &self,
        _: SocketAddr,
        _: (u8, u8),
        _: [Option<&Peer>; 2],
    ) -> Option<CallError> {
        match *self {}
    }
}

impl Engine {
    pub(crate) fn set_rule(&mut self, _: SocketKey, _: &Rule) -> Result<(), RuleError> {
        Err(RuleError::NoIdentity)
    }

    #[inline]
    pub(crate) fn apply_rule_of_port(&mut self, _: SocketKey, _: u16) {}

    pub(crate) fn name_has_changed(&mut self, _: SocketAddr) {}

    /// Returns the peer at the end of a path, if the engine of another process has named it.
    pub(crate) fn peer(&self, path: PathId) -> Option<Peer> {
        let attached = self.neighbours.as_ref()?.attachments.attached.as_ref()?;
        attached.peer(path).filter(|_| path.is_local()).cloned()
    }
}
