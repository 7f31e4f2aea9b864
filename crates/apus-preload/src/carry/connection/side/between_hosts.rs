//! What a side does otherwise if its peer is at another host: the kernel's socket may be ahead of the peer's words, and behind them.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::Side;
use crate::carry::connection::last_words;
use crate::carry::kernel;

impl Side {
    /// The same side, whose peer is at another host.
    pub(crate) fn between_hosts(self) -> Self {
        Self { is_between_hosts: true, ..self }
    }

    /// The carrier asks this side to return to TCP for good, because it was switched off.
    pub(crate) fn ask_to_leave(&self) {
        if self.is_between_hosts {
            self.give_way();
        }
    }

    /// Bytes of the stream that were written into TCP.
    pub(super) fn written_by_tcp(&self, fd: c_int) -> Option<u64> {
        kernel::written(fd, self.accepted)
    }

    /// The peer was lost without a word of its end, because a carrier ended or cannot reach the other one. Bytes may be lost with it.
    pub(crate) fn peer_was_lost(&self) -> bool {
        self.is_between_hosts && last_words::was_lost(&self.peer)
    }

    /// The connection is about to be reset, because the peer was lost.
    pub(crate) fn lose(&self) {
        self.ending.lose();
    }

    /// Whether this side has reset the connection because the peer was lost. The program is to be told as by TCP: of the reset by the
    /// first call, and of the end of the connection by later ones.
    pub(super) fn is_lost(&self) -> bool {
        self.ending.is_lost()
    }

    /// TCP has ended. Whether all words are here that the peer has written before: within a host they always are.
    pub(super) fn sees_end(&self) -> bool {
        let sees = !self.is_between_hosts || self.has_last_words();
        if !sees && self.ending.meet_end() {
            self.ask_peer(); // It may have ended TCP before the connection was carried.
        }
        sees
    }

    fn has_last_words(&self) -> bool {
        last_words::have_come(&self.peer) || self.peer_is_dead.load(Ordering::Acquire)
    }

    /// Whether the kernel reports an end, and the last words of the peer are still on their way.
    pub(crate) fn awaits_end(&self) -> bool {
        self.ending.has_met_end() && !self.has_last_words()
    }

    /// Whether the last words of the peer have come after the end of TCP.
    pub(super) fn knows_end(&self) -> bool {
        self.ending.has_met_end() && self.has_last_words()
    }

    /// Whether bytes may be on their way by TCP of which the ring has a copy.
    pub(crate) fn may_get_rest(&self, fd: c_int) -> bool {
        self.is_between_hosts && self.has_rest(fd) && !kernel::has_ended(fd)
    }
}
