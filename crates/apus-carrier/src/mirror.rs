//! A program of this host, and the segment in which it sees the program at the other end.
//!
//! The carrier reads the program's own segment and tells the other carrier what has changed ([`Mirror::look`]). What the other carrier
//! tells, it writes into a segment of its own that the program reads ([`Mirror::show`]). The program works with that segment as if its
//! peer were a process of this host.
//!
//! **What the program sees is what it could see of a slow peer.** A program of the same host may stand still between two loads of its
//! peer's words, and before it acts on them. What it sees then is, for each word, the value at some moment, in the order of the loads
//! ([`words`]). Here it sees values that are older still, and in the same order: the carrier loads and stores in that order, and frames
//! arrive in theirs. No word of a direction is stored by one side *because a load of the other side's words did not yet show something*;
//! the only such pair of words are bells, and carriers have bells of their own. The model in
//! `crates/apus-sockets/src/direction/model.rs` tries all orders of events where each side sees the other one as it was before.
//!
//! **Bytes of the ring** are copied before WRITTEN is stored, and the program at the other end does not write over them before READ
//! has come back to it. A new epoch begins at the position up to which the receiver has read; the receiver's READ stands still from its
//! recall until it sees the new epoch, so the READ that the carrier shows is that position.

use std::sync::atomic::{AtomicU64, Ordering};

use apus_shm::{Memory, PeerSegment, bell};
use apus_sockets::layout;

use crate::frame::{Frame, Malformed};
use crate::program::ProgramChannel;
use crate::reactor::Source;
use crate::words::{self, COUNT, EPOCH, READ, WRITTEN, Words};

const CAPACITY: u64 = layout::FAR_CAPACITY as u64;

/// Bytes that the other program may have written and this one may have read before the other one is told: with less room than that a
/// sender may be waiting.
const UNTOLD_MAX: u64 = CAPACITY / 4;

/// A program, and what it sees of its peer.
pub(crate) struct Mirror {
    program: PeerSegment,
    shown: Memory,
    /// Its words at the last wake-ups.
    woken: [u64; 2],
    pub(crate) channel: Source<ProgramChannel>,
    /// By which either wakes the other one.
    pub(crate) bell: Source<ProgramChannel>,
    /// What the other carrier knows.
    told: Words,
    /// The position in the program's ring up to which the other carrier has the bytes.
    sent: u64,
}

impl Mirror {
    pub(crate) fn new(
        program: PeerSegment,
        shown: Memory,
        channel: Source<ProgramChannel>,
        bell: Source<ProgramChannel>,
    ) -> Self {
        Self { program, shown, woken: [0; 2], channel, bell, told: [0; COUNT], sent: 0 }
    }

    /// Appends what has changed in the program's segment to `out`, if anything has.
    ///
    /// # Errors
    ///
    /// If the program has words that it cannot have.
    pub(crate) fn look(
        &mut self,
        asks: bool,
        died: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let mut words = words::ORDER.map(|offset| self.program.load(offset, Ordering::Acquire));
        let has_begun = words[EPOCH] != self.told[EPOCH];
        let from = if has_begun { self.shown(layout::READ) } else { self.sent };
        if words[WRITTEN] < from && !has_begun {
            // The epoch begins now: its number is stored next, and the bell rings then.
            words[WRITTEN] = self.told[WRITTEN];
        }
        let length = match words[WRITTEN].checked_sub(from) {
            Some(length) if length <= CAPACITY => length,
            None if !has_begun => 0,
            _ => return Err(Malformed),
        };
        let changed = (0..COUNT).filter(|place| words[*place] != self.told[*place]);
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
        (self.told, self.sent) = (words, from + length);
        Ok(())
    }

    fn copy_out(&self, position: u64, length: usize, out: &mut Vec<u8>) {
        let at = (position % CAPACITY) as usize;
        let first = length.min(layout::FAR_CAPACITY - at);
        self.program.copy_out(layout::RING + at..layout::RING + at + first, out);
        self.program.copy_out(layout::RING..layout::RING + length - first, out);
    }

    /// Whether the program has returned to TCP for good, and the other carrier is told.
    pub(crate) fn has_left(&self) -> bool {
        self.told[words::place(layout::LEFT)] == layout::HAS_LEFT
    }

    /// Shows the program what a frame says, and wakes it if it waits for that.
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
            self.bell.get().tell();
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
            self.ask(); // TCP ends when everything was read.
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
            self.bell.get().tell();
        }
    }

    /// Has the thread of the program's library follow its peer.
    fn ask(&self) {
        self.channel.get().tell();
    }

    /// Asks the program to ring. The caller looks once more before it sleeps.
    pub(crate) fn ask_to_ring(&self) {
        bell::ask(self.shown.word(layout::BELLS[0]));
        let untold = self.shown(layout::WRITTEN).wrapping_sub(self.told[READ]);
        if (UNTOLD_MAX..=CAPACITY).contains(&untold) {
            bell::ask(self.shown.word(layout::BELLS[1]));
        }
    }

    /// Does not need to be rung for, since it looks.
    pub(crate) fn withdraw(&self) {
        layout::BELLS.iter().for_each(|word| bell::withdraw(self.shown.word(*word)));
    }

    fn shown(&self, offset: usize) -> u64 {
        self.shown.word(offset).load(Ordering::Relaxed)
    }
}
