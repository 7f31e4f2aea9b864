//! How many of the process's descriptors go to neighbours.
//!
//! A pair takes two, and a meeting one or two. All pairs with nodes together get a third of `RLIMIT_NOFILE`, and those of another user
//! half of that. Beyond, a node gets the place of one that has no calls and was not used for a second, which goes back to UDP; if there
//! is none, it stays with UDP itself.

use std::time::Duration;

use apus_proto::{Endpoint, Time};
use apus_shm::{PairError, descriptor_limit, own_user};

use super::neighbours::Neighbours;
use super::paired::{Role, path};

/// Of this many descriptors, pairs with nodes have one: two of six.
const PER_PAIR: u64 = 6;

/// Of this many descriptors, one process is met at a time.
const PER_MEETING: u64 = 24;

/// A pair that was not used for so long may be given up for another one.
const UNUSED_FOR: Duration = Duration::from_secs(1);

/// Processes that may be met at a time, as far as descriptors go.
pub(super) fn meetings_share() -> usize {
    usize::try_from(descriptor_limit() / PER_MEETING).unwrap_or(usize::MAX).max(1)
}

impl Neighbours {
    /// Whether there is room for a pair with a node of this user; gives another one up for it if need be.
    pub(super) fn make_room(&mut self, now: Time, uid: u32, endpoint: &Endpoint) -> bool {
        let total = usize::try_from(descriptor_limit() / PER_PAIR).unwrap_or(usize::MAX);
        let of_user = if uid == own_user() { total } else { total / 2 };
        let (mut all, mut same, mut unused) = (0, 0, Vec::new());
        for key in self.all.keys().filter(|key| !self.ended.contains(key)) {
            let Some(paired) = self.paired(key) else { continue };
            if !matches!(paired.role, Role::Node { .. }) {
                continue;
            }
            let is_same = paired.pair.process().uid() == uid;
            all += 1;
            same += usize::from(is_same);
            let is_unused = paired.used + UNUSED_FOR <= now
                && !paired.pair.is_sending()
                && endpoint.is_local_idle(path(key));
            if is_unused {
                unused.push((paired.used, is_same, key));
            }
        }
        if all < total && same < of_user {
            return true;
        }
        unused.retain(|(_, is_same, _)| same < of_user || *is_same);
        let least = unused.iter().min_by_key(|(used, ..)| *used);
        let Some(&(_, _, key)) = least else { return false };
        self.end(key, &PairError::System(std::io::ErrorKind::QuotaExceeded.into()));
        true
    }
}
