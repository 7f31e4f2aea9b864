//! A program of this host, and the segment that stands for the program at the other end.
//!
//! The carrier reads the program's own segment and sends the changes to the other carrier ([`Mirror::look`]). It writes the other
//! carrier's changes into a segment of its own that the program reads ([`Mirror::show`]). The program uses that segment as if its
//! peer were a process of this host.
//!
//! **The program sees the same as with a slow peer.** A program of the same host may be delayed between two loads of its peer's
//! words, and before it acts on them. For each word, it then sees the value at some time, in the order of the loads ([`words`]).
//! Here the program sees older values, in the same order: the carrier loads and stores in that order, and frames arrive in order.
//! Neither side stores a word of a direction *because a load of the other side's words did not yet show a value*. The only such
//! pair of words are bells, and carriers have their own bells. The model in `crates/apus-sockets/src/direction/model.rs` tries all
//! orders of events in which each side sees an earlier state of the other.
//!
//! **Bytes of the ring** are copied before WRITTEN is stored, and the program at the other end does not overwrite them before READ
//! has come back to it. A new epoch begins at the position up to which the receiver has read. The receiver's READ does not change
//! from its recall until it sees the new epoch, so the READ that the carrier shows is that position.

use std::sync::atomic::{AtomicU64, Ordering};

use apus_shm::{Memory, PeerSegment, bell};
use apus_sockets::{introduction, layout};

use crate::frame::{Frame, Malformed};
use crate::program::{ANSWER, ProgramChannel};
use crate::reactor::Source;
use crate::words::{self, COUNT, EPOCH, READ, WRITTEN, Words};

const CAPACITY: u64 = layout::FAR_CAPACITY as u64;

/// Upper bound on bytes that this program may have read before the other one is informed. With less room than that, a sender may be
/// waiting.
const UNREPORTED_MAX: u64 = CAPACITY / 4;

/// A program, and the segment that it sees as its peer's.
pub(crate) struct Mirror {
    program: PeerSegment,
    shown: Memory,
    /// The program's words at the last wake-ups.
    woken: [u64; 2],
    pub(crate) channel: Source<ProgramChannel>,
    /// The socket by which the program and the carrier wake each other.
    pub(crate) bell: Source<ProgramChannel>,
    /// The words that the other carrier knows.
    reported: Words,
    /// Position in the program's ring up to which the other carrier has the bytes.
    sent: u64,
}

impl Mirror {
    pub(crate) fn new(
        program: PeerSegment,
        shown: Memory,
        channel: Source<ProgramChannel>,
        bell: Source<ProgramChannel>,
    ) -> Self {
        Self { program, shown, woken: [0; 2], channel, bell, reported: [0; COUNT], sent: 0 }
    }

    /// Appends the changes of the program's segment to `out`, if there are any.
    ///
    /// # Errors
    ///
    /// If the program has impossible words.
    pub(crate) fn look(
        &mut self,
        asks: bool,
        died: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let mut words = words::ORDER.map(|offset| self.program.load(offset, Ordering::Acquire));
        let has_begun = words[EPOCH] != self.reported[EPOCH];
        let from = if has_begun { self.shown(layout::READ) } else { self.sent };
        if words[WRITTEN] < from && !has_begun {
            // The epoch begins now: its number is stored next, and the bell rings then.
            words[WRITTEN] = self.reported[WRITTEN];
        }
        let length = match words[WRITTEN].checked_sub(from) {
            Some(length) if length <= CAPACITY => length,
            None if !has_begun => 0,
            _ => return Err(Malformed),
        };
        let changed = (0..COUNT).filter(|place| words[*place] != self.reported[*place]);
        let mut changed = changed.fold(0, |mask, place| mask | 1 << place);
        if length > 0 {
            changed |= 1 << WRITTEN;
        }
        let frame = Frame { asks, died, changed, words, length: length as usize };
        if frame.is_empty() {
            return Ok(());
        }
        frame.encode(out);
        self.copy_out(from, frame.length, out);
        (self.reported, self.sent) = (words, from + length);
        Ok(())
    }

    fn copy_out(&self, position: u64, length: usize, out: &mut Vec<u8>) {
        let at = (position % CAPACITY) as usize;
        let first = length.min(layout::FAR_CAPACITY - at);
        self.program.copy_out(layout::RING + at..layout::RING + at + first, out);
        self.program.copy_out(layout::RING..layout::RING + length - first, out);
    }

    /// Whether the program has returned to TCP for good, and the other carrier is informed.
    pub(crate) fn has_left(&self) -> bool {
        self.reported[words::place(layout::LEFT)] == layout::HAS_LEFT
    }

    /// Shows a frame's changes to the program, and wakes it if it waits for them.
    pub(crate) fn show(&mut self, frame: &Frame, bytes: &[u8]) {
        for place in (0..COUNT).rev().filter(|place| frame.has(*place)) {
            let value = frame.words[place];
            if place == WRITTEN {
                self.copy_in(value.wrapping_sub(bytes.len() as u64), bytes);
            }
            self.shown.word(words::ORDER[place]).store(value, Ordering::Release);
        }
        if frame.died {
            self.shown.word(layout::DIED).store(1, Ordering::Release);
        }
        let often = 1 << WRITTEN | 1 << READ;
        if frame.asks || frame.died || frame.changed & !often != 0 {
            self.ring();
            self.ask();
            return;
        }
        for (what, place) in [WRITTEN, READ].into_iter().enumerate() {
            if frame.has(place) {
                self.ring_if_asked(what);
            }
        }
        let is_to_end = || self.program.load(layout::SHUT, Ordering::Acquire) == layout::ENDS;
        if frame.has(READ) && is_to_end() {
            self.ask(); // TCP ends after everything is read.
        }
    }

    fn copy_in(&mut self, position: u64, bytes: &[u8]) {
        let at = (position % CAPACITY) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(layout::FAR_CAPACITY - at));
        self.shown.copy_in(layout::RING + at, first);
        self.shown.copy_in(layout::RING, rest);
    }

    fn ring_if_asked(&mut self, what: usize) {
        let word = layout::BELLS[what];
        let asked = bell::asked::<AtomicU64>(|| self.program.load(word, Ordering::Relaxed));
        if let Some(count) = asked
            && self.woken[what] != count
        {
            self.woken[what] = count;
            self.ring();
        }
    }

    /// Wakes the program's threads.
    fn ring(&self) {
        if !self.bell.get().notify(ANSWER) {
            self.channel.get().notify(introduction::FULL);
        }
    }

    /// Asks the thread of the program's library to follow its peer.
    fn ask(&self) {
        self.channel.get().notify(ANSWER);
    }

    /// Asks the program to ring. The caller must check once more before it sleeps.
    pub(crate) fn ask_to_ring(&self) {
        bell::ask(self.shown.word(layout::BELLS[0]));
        let unreported = self.shown(layout::WRITTEN).wrapping_sub(self.reported[READ]);
        if (UNREPORTED_MAX..=CAPACITY).contains(&unreported) {
            bell::ask(self.shown.word(layout::BELLS[1]));
        }
    }

    /// Withdraws the request to ring, because the carrier polls.
    pub(crate) fn withdraw(&self) {
        layout::BELLS.iter().for_each(|word| bell::withdraw(self.shown.word(*word)));
    }

    fn shown(&self, offset: usize) -> u64 {
        self.shown.word(offset).load(Ordering::Relaxed)
    }
}
