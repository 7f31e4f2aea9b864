//! The rules of the services in a sealed world (seal-6): each names all nodes, but for one node at one service in some worlds.

use apus_proto::{Endpoint, PathKind, Rights, SocketKey};

/// The rule of the service of a node. Rule 0 is that of its client.
const SERVICE: u8 = 1;

/// The rights of a node whose name is not known yet, or that the service does not name.
pub(super) const DENIED: Rights = Rights { requests: !(1 << SERVICE), ..Rights::ALL };

/// Gives a new endpoint its rules.
pub(super) fn prepare(endpoint: &mut Endpoint, service: SocketKey) {
    endpoint.set_default_rights(PathKind::Sealed, DENIED);
    endpoint.set_rule(service, SERVICE);
}
