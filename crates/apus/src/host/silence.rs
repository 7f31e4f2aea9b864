//! Neighbours from which nothing is heard: whether their processes run, and the memory that this node keeps for them.

use apus_proto::slab::Handle as _;
use apus_proto::{Endpoint, Time};
use apus_shm::PairError;
use apus_wire::PathId;

use crate::host::neighbour_key::NeighbourKey;
use crate::host::neighbours::{KEPT_FOR, Neighbours};
use crate::host::paired::{Paired, Role};

impl Neighbours {
    /// Whether the process at the end of a path runs, or the shared engine by which the path goes: it is not stopped and has not ended.
    pub(crate) fn runs(&self, local: PathId) -> bool {
        let paired = if self.attachments.attached.is_some() {
            let is_engine = |paired: &&Paired| matches!(paired.role, Role::Engine);
            self.all.keys().find_map(|key| self.paired(key).filter(is_engine))
        } else {
            self.paired(NeighbourKey::from_bits(local.name()))
        };
        paired.is_some_and(|paired| paired.pair.process().runs())
    }

    /// Gives up the memory of pairs that have not been used for long, and pairs whose neighbours do not read for the time after which
    /// a peer counts as gone.
    #[cold]
    pub(super) fn shrink(&mut self, now: Time, endpoint: &mut Endpoint) {
        let timeout = endpoint.peer_timeout();
        self.shrink_at = None;
        for key in self.all.keys().collect::<Vec<_>>() {
            let Some(paired) = self.paired_mut(key) else { continue };
            // A process that gets no processor time reads nothing either.
            let stopped = paired.reads_nothing(now, timeout)
                && (!paired.pair.process().runs()
                    || paired.reads_nothing(now, timeout * UNREAD_FACTOR));
            let takes_memory = paired.pair.has_spare_memory() || paired.pair.load() > 0;
            if stopped && takes_memory && !matches!(paired.role, Role::Engine) {
                self.end(key, &READS_NOTHING);
                continue;
            }
            let is_unread = paired.stopped.is_some();
            let mut due = paired.used + KEPT_FOR;
            if due <= now {
                paired.pair.shrink();
                paired.charge_memory(key, endpoint);
                due = now + KEPT_FOR; // It keeps the memory that the peer still reads.
            }
            if paired.pair.has_spare_memory() || is_unread {
                self.shrink_at = Some(self.shrink_at.map_or(due, |at| at.min(due)));
            }
        }
    }
}

/// A neighbour that is stopped, or makes this node keep memory that it never uses.
const READS_NOTHING: PairError = PairError::Unexpected("no sign that it reads");

/// A neighbour that runs may read nothing for this many times `peer_timeout`.
const UNREAD_FACTOR: u32 = 10;
