//! The rules of the services in a sealed world (seal-6): each names all nodes, but for one node at one service in some worlds.

use apus_proto::{Endpoint, PathKind, Rights, SocketKey};
use apus_seal::Role;

use crate::check::holes::Hole;
use crate::check::world::World;

/// The rule of the service of a node. Rule 0 is that of its client.
const SERVICE: u8 = 1;

/// The rights of a node whose name is not known yet, or that the service does not name.
const DENIED: Rights = Rights { requests: !(1 << SERVICE), ..Rights::ALL };

/// Gives a new endpoint its rules.
pub(super) fn prepare(endpoint: &mut Endpoint, service: SocketKey) {
    endpoint.set_default_rights(PathKind::Sealed, DENIED);
    endpoint.set_rule(service, SERVICE);
}

impl World<'_> {
    /// Returns whether the rule of a service names a node.
    pub(super) fn is_allowed(&self, node: usize, from: usize) -> bool {
        let plan = self.sealing.as_ref().map(|sealing| &sealing.plan);
        plan.is_none_or(|plan| plan.denied != Some((node, from)))
    }

    /// Tells the core of a node what the peer of a path may do. `role` is that of the node in the handshake.
    pub(super) fn set_rights(&mut self, node: usize, index: usize, role: Option<Role>) {
        let place = &self.sealing().nodes[node].paths[index];
        let (path, peer) = (place.path, place.peer);
        let is_open = role == Some(Role::Server) && self.has(Hole::RightsOfAll);
        let is_allowed = peer.is_some_and(|peer| self.is_allowed(node, peer.node));
        let rights = if is_allowed || is_open { Rights::ALL } else { DENIED };
        self.nodes[node].endpoint.set_rights(path, rights);
    }
}
