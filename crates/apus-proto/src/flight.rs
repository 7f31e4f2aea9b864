//! Unscheduled bytes on their way to one peer.
//!
//! Every message may send its first bytes without asking, so many of them together may overflow the
//! buffer of a receiver that pauses. What was sent counts as in flight until something shows that the
//! peer has read as far: any sign about a message shows it of all that was begun before. While too
//! much is in flight, no further message is begun (rule `unsched-2`).

use std::collections::BTreeSet;

use crate::slab::RpcKey;

/// Charged for a message beside its bytes: a short one takes a whole buffer of the receiver's kernel.
const MESSAGE: u64 = 512;

#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Bytes sent, and how many of them are known to have arrived.
    sent: u64,
    arrived: u64,
    /// Messages that were not begun for this, shortest first, then oldest.
    held: BTreeSet<(u32, u64, RpcKey)>,
}

impl Flight {
    /// Whether a message may be begun while `most` bytes may be in flight: one always may.
    #[inline]
    pub(crate) fn has_room(&self, most: u64) -> bool {
        self.sent - self.arrived < most
    }

    /// A message is begun with `bytes` that nobody asked for. Returns its mark: a sign of the peer
    /// about it shows that everything up to there arrived.
    #[inline]
    pub(crate) fn begin(&mut self, bytes: u32) -> u64 {
        self.sent += u64::from(bytes) + MESSAGE;
        self.sent
    }

    /// The peer gave a sign about the message with this mark, or it ended.
    #[inline]
    pub(crate) fn arrived(&mut self, mark: u64) {
        self.arrived = self.arrived.max(mark);
    }

    pub(crate) fn hold(&mut self, length: u32, birth: u64, key: RpcKey) {
        self.held.insert((length, birth, key));
    }

    /// A message that was held has ended.
    pub(crate) fn forget(&mut self, length: u32, birth: u64, key: RpcKey) {
        self.held.remove(&(length, birth, key));
    }

    #[inline]
    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// The messages that have room now.
    pub(crate) fn release(&mut self, most: u64) -> impl Iterator<Item = RpcKey> {
        let mut room = most.saturating_sub(self.sent - self.arrived);
        std::iter::from_fn(move || {
            if room == 0 {
                return None;
            }
            let (length, _, key) = self.held.pop_first()?;
            room = room.saturating_sub(u64::from(length) + MESSAGE);
            Some(key)
        })
    }
}
