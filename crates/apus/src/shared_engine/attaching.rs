//! State of attachments: processes that are about to attach, and the two ends of those that have. [`super::attachments`] changes it.

use apus_proto::Time;
use apus_shm::{Listener, Offer};

use crate::host::neighbour_key::NeighbourKey;
use crate::host::paired::Role;
use crate::shared_engine::attached::Attached;
use crate::shared_engine::forwarder::Forwarder;

/// A process that has not offered memory yet.
#[derive(Debug)]
pub(crate) struct Attaching {
    pub(crate) offer: Offer,
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
    /// Where processes connect that want to use the engine of this one,
    pub(crate) listener: Option<Listener>,
    /// and those that do.
    pub(crate) forwarder: Option<Box<Forwarder>>,
    /// The engine that this process uses, if it is another process's,
    pub(crate) attached: Option<Box<Attached>>,
    /// and the pair with it, once there is one.
    pub(crate) engine: Option<NeighbourKey>,
}
