//! State of attachments: attaching processes, and the two ends of attached ones. [`super::attachments`] changes it.

use apus_proto::Time;
use apus_shm::{Listener, PendingPair};

use crate::host::neighbour_key::NeighbourKey;
use crate::host::paired::Role;
use crate::shared_engine::attached::Attached;
use crate::shared_engine::forwarder::Forwarder;

/// A process that has not offered memory yet.
#[derive(Debug)]
pub(crate) struct Attaching {
    pub(crate) pending: PendingPair,
    /// Time at which the attempt is given up.
    pub(crate) until: Time,
    /// The role of the process.
    pub(crate) role: Role,
}

/// The shared engine of this process, if it has one: its own, which serves other processes, or that of another process.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    /// Attaching processes, the oldest first.
    pub(crate) attaching: Vec<NeighbourKey>,
    /// The listener for attaching processes.
    pub(crate) listener: Option<Listener>,
    /// Attached processes and their calls.
    pub(crate) forwarder: Option<Box<Forwarder>>,
    /// The engine of another process that this process uses.
    pub(crate) attached: Option<Box<Attached>>,
    /// The pair with that engine.
    pub(crate) engine: Option<NeighbourKey>,
}
