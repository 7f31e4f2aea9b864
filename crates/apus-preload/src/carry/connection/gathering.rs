//! Short waits of stream reads, so that each read takes more bytes.
//!
//! A reader that takes each write at once slows the writer down: the cache line with the number of written bytes moves to the
//! reader's processor and back for each write, and the writer's stores wait for it. A later read takes several writes at once. So
//! a read waits while more bytes arrive, if this side only reads from the connection. A read never waits for a response: the side
//! that sent the request has written.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::carry::spin::Clock;

/// The reads of a connection.
pub(crate) struct Gathering {
    /// Reads since this side last wrote, or since its last wait that ended without bytes.
    reads: AtomicU32,
}

/// Number of reads after which the connection counts as a stream.
const READS: u32 = 16;
/// The wait of a read: about one round trip of a cache line between processors without a common cache.
const WAIT: Duration = Duration::from_nanos(200);

impl Gathering {
    pub(crate) const fn new() -> Self {
        Self { reads: AtomicU32::new(0) }
    }

    /// Notes a write of this side.
    #[inline]
    pub(crate) fn note_write(&self) {
        if self.reads.load(Ordering::Relaxed) != 0 {
            self.reads.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the next read waits. Counts the read.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        let reads = self.reads.load(Ordering::Relaxed);
        if reads < READS {
            self.reads.store(reads + 1, Ordering::Relaxed);
        }
        reads >= READS
    }

    /// Waits if fewer than `enough` bytes are `there`. If no more arrive, the next reads do not wait.
    pub(crate) fn wait(&self, enough: u64, there: impl Fn() -> u64) {
        let before = there();
        if before == 0 || before >= enough {
            return;
        }
        let until = Clock::now() + WAIT;
        while Clock::now() < until {
            std::hint::spin_loop();
        }
        if there() == before {
            self.reads.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn reads_wait_as_long_as_more_comes_and_nothing_is_written() {
        let gathering = Gathering::new();
        let waits = || (0..=READS).filter(|_| gathering.waits()).count();
        assert_eq!(waits(), 1);
        assert_eq!(waits(), READS as usize + 1);
        gathering.note_write();
        assert_eq!(waits(), 1);

        let there = Cell::new(1);
        let more = || there.replace(there.get() + 1);
        gathering.wait(100, more);
        assert!(there.get() == 3 && gathering.waits(), "more has come");
        gathering.wait(100, || 1);
        assert_eq!(waits(), 1);
        gathering.wait(100, || 0);
        gathering.wait(100, || 100);
        assert!(gathering.waits(), "there is nothing to take so far, or enough");
    }
}
