//! State of attachments: processes that are about to attach, and the two ends of those that have. [`super::attachments`] changes it.

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
    /// When it is given up.
    pub(crate) until: Time,
    /// Which of the two it is.
    pub(crate) role: Role,
}

/// The shared engine in this process, as far as there is one: its own, that works for others, or the one of another process.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    /// Processes that are about to attach, the oldest first.
    pub(crate) attaching: Vec<NeighbourKey>,
    /// The listener for processes that want to attach.
    pub(crate) listener: Option<Listener>,
    /// Attached processes and their calls.
    pub(crate) forwarder: Option<Box<Forwarder>>,
    /// The engine of another process that this process uses.
    pub(crate) attached: Option<Box<Attached>>,
    /// The pair with that engine.
    pub(crate) engine: Option<NeighbourKey>,
}
