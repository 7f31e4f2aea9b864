//! The share of the process's descriptors that neighbours get.
//!
//! A pair takes two descriptors, and a meeting one or two. All pairs with nodes together get a third of `RLIMIT_NOFILE`, and the
//! pairs of another user half of that. Beyond its share, a node takes the place of a pair without calls that was not used for a
//! second; that pair goes back to UDP. Without such a pair, the node stays with UDP.

use std::time::Duration;

use apus_proto::{Endpoint, Time};
use apus_shm::{PairError, descriptor_limit, own_user};

use super::neighbour_key::NeighbourKey;
use super::neighbours::{Neighbour, Neighbours};
use super::paired::{Role, path};

/// One descriptor of this many belongs to pairs with nodes: two of six.
const PER_PAIR: u64 = 6;

/// A process may have one open meeting for this many descriptors.
const PER_MEETING: u64 = 24;

/// A pair that was unused for this time may be given up for another one.
const UNUSED_FOR: Duration = Duration::from_secs(1);

/// Upper bound on open meetings by the number of descriptors.
pub(super) fn meetings_share() -> usize {
    usize::try_from(descriptor_limit() / PER_MEETING).unwrap_or(usize::MAX).max(1)
}

impl Neighbours {
    /// Gives a process in a meeting a place among the pairs, and gives up an unused pair for it if necessary. Returns `false` if
    /// all places are in use.
    pub(super) fn place(&mut self, now: Time, key: NeighbourKey, endpoint: &Endpoint) -> bool {
        let Some(meeting) = self.meeting_mut(key) else { return false };
        let Some(uid) = meeting.placed.or_else(|| meeting.uid()) else { return false };
        let has_room = meeting.placed.is_some() || self.make_room(now, uid, endpoint);
        if let Some(meeting) = self.meeting_mut(key) {
            meeting.placed = has_room.then_some(uid);
        }
        has_room
    }

    /// Whether there is room for a pair with a node of this user. Gives up an unused pair for it if necessary.
    fn make_room(&mut self, now: Time, uid: u32, endpoint: &Endpoint) -> bool {
        let total = usize::try_from(descriptor_limit() / PER_PAIR).unwrap_or(usize::MAX);
        let of_user = if uid == own_user() { total } else { total / 2 };
        let (mut all, mut same, mut unused) = (0, 0, Vec::new());
        for key in self.all.keys().filter(|key| !self.ended.contains(key)) {
            let paired = match self.all.get(key) {
                Some(Neighbour::Paired(paired)) if matches!(paired.role, Role::Node { .. }) => {
                    paired
                }
                Some(Neighbour::Meeting(meeting)) if meeting.placed.is_some() => {
                    // Several open meetings would all find the last place free.
                    all += 1;
                    same += usize::from(meeting.placed == Some(uid));
                    continue;
                }
                _ => continue,
            };
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
