//! A process that is about to use an engine: [`super::attachments`].

use apus_proto::Time;
use apus_shm::Offer;

use super::paired::Role;

/// A process that has not offered memory yet.
#[derive(Debug)]
pub(super) struct Attaching {
    pub(super) offer: Offer,
    /// When it is given up.
    pub(super) until: Time,
    /// Which of the two it is.
    pub(super) role: Role,
}
