//! Differences for a peer at another host: the kernel's socket may be ahead of the peer's words or behind them.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::Side;
use crate::carry::connection::last_words;
use crate::carry::kernel;

impl Side {
    /// The same side with its peer at another host.
    pub(crate) fn between_hosts(self) -> Self {
        Self { is_between_hosts: true, ..self }
    }

    /// The carrier asks this side to return to TCP for good because it was switched off.
    pub(crate) fn ask_to_leave(&self) {
        if self.is_between_hosts {
            self.give_way();
        }
    }

    /// Bytes of the stream that were written into TCP.
    pub(super) fn written_by_tcp(&self, fd: c_int) -> Option<u64> {
        kernel::written(fd, self.accepted)
    }

    /// Whether the peer was lost without last words, because a carrier ended or cannot reach the other carrier. Bytes may be
    /// lost.
    pub(crate) fn peer_was_lost(&self) -> bool {
        self.is_between_hosts && last_words::was_lost(&self.peer)
    }

    /// The connection is about to be reset because the peer was lost.
    pub(crate) fn lose(&self) {
        self.ending.lose();
    }

    /// Whether this side has reset the connection because the peer was lost. As with TCP, the first call gets the reset, and
    /// later calls get the end of the stream.
    pub(super) fn is_lost(&self) -> bool {
        self.ending.is_lost()
    }

    /// TCP has ended. Returns whether every word that the peer wrote before is visible. Always true within a host.
    pub(super) fn sees_end(&self) -> bool {
        let sees = !self.is_between_hosts || self.has_last_words();
        if !sees && self.ending.meet_end() {
            self.ask_peer(); // The peer may have ended TCP before the connection was carried.
        }
        sees
    }

    fn has_last_words(&self) -> bool {
        last_words::have_come(&self.peer) || self.peer_is_dead.load(Ordering::Acquire)
    }

    /// Whether the kernel reports an end while the peer's last words are still on their way.
    pub(crate) fn awaits_end(&self) -> bool {
        self.ending.has_met_end() && !self.has_last_words()
    }

    /// Whether TCP has ended and the peer's last words have arrived.
    pub(super) fn knows_end(&self) -> bool {
        self.ending.has_met_end() && self.has_last_words()
    }

    /// Whether bytes that the ring has a copy of may be on their way by TCP.
    pub(crate) fn may_get_rest(&self, fd: c_int) -> bool {
        self.is_between_hosts && self.has_rest(fd) && !kernel::has_ended(fd)
    }
}
