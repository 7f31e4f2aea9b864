//! Empty types in place of the driver and the identity, and the behaviour of a node without them.

use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::Link;
use apus_proto::{CallFailed, SocketKey, Time};
use apus_seal::Rule;
use apus_wire::PathId;

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::lock::Shared;
use crate::error::{CallError, IdentityError, RuleError, StartError};
use crate::secure::peer::Peer;

/// The identity of a node, which has none.
pub(crate) enum NodeIdentity {}

impl NodeIdentity {
    /// Returns none. A configuration with a certificate was refused.
    pub(crate) fn of(_: &Config) -> Result<Option<Arc<Self>>, IdentityError> {
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
    pub(crate) fn begin(_: &Arc<Shared>, node: &Arc<NodeIdentity>) -> Result<(), StartError> {
        match **node {}
    }
}

impl SealedPeers {
    pub(crate) fn driver(&self) -> SocketKey {
        match *self {}
    }

    pub(crate) fn resolve(
        &self,
        _: &mut dyn Link,
        _: SocketAddr,
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
}

impl Engine {
    pub(crate) fn set_rule(&mut self, _: SocketKey, _: &Rule) -> Result<(), RuleError> {
        Err(RuleError::NoIdentity)
    }

    #[inline]
    pub(crate) fn apply_rule_of_port(&mut self, _: SocketKey, _: u16) {}

    pub(crate) fn name_has_changed(&mut self, _: SocketAddr) {}

    pub(crate) fn peer(&self, _: PathId) -> Option<Peer> {
        None
    }
}
