//! One direction of a connection: the states in which its bytes go by TCP or through a ring.
//!
//! The sender and the receiver of a direction are two processes. Each side has words in shared memory that only it writes and the
//! other one reads. A time during which bytes go through the ring is an *epoch*; epochs are counted from 1.
//!
//! | direction | receiver | sender |
//! |---|---|---|
//! | TCP | `Tcp`, or `Offered`: it would read the ring | `Tcp` |
//! | SWITCHING(n) | `Switching`: it reads TCP up to offset n | `Ring`: bytes from offset n on go into the ring |
//! | RING | `Ring` | `Ring` |
//! | SPILLED(n) | `Switching` or `Ring`: it reads the ring to its end, then TCP | `Tcp` |
//! | RETURNING(m) | `Recalled`: it has read up to position m of the ring and reads nothing more | `Ring`, until it sees the recall |
//! | TCP | `Tcp` | `Refill`: what the ring had beyond m goes into TCP first; then `Tcp` |
//!
//! The receiver begins: it *offers* an epoch. The sender *switches* when it writes next, at the offset that its kernel tells. Either
//! side may end the epoch, and neither waits for the other one to do so.
//!
//! - The sender *spills*: bytes that it has written into the ring stay there, and the bytes behind them go into TCP. A sender spills if
//!   its ring stays full, so that a direction holds the ring and all that TCP holds, and before its program goes on without this
//!   library. Between hosts no sender spills, because TCP may bring bytes before the receiver sees that the epoch has begun.
//!   While an epoch is offered, the receiver reads no more of TCP than was there before it looked and saw that the epoch had not
//!   begun: what comes later may be behind the ring.
//! - The receiver *recalls*: it stops reading the ring. The sender *answers*: it takes back what the receiver has not read and writes
//!   that into TCP, before anything else. So after an answer all bytes are in the kernel's stream, in order, and the receiver's program
//!   may go on without this library. If the ring is empty after the recall, the receiver need not wait for the answer: a sender looks
//!   for a recall after each write into the ring, and takes that write back.
//!
//! One word says that an epoch has ended, and in which of the two ways. So a recall that meets a spill has one outcome that both sides
//! see: if the sender had not seen the recall, the receiver goes on with the ring.
//!
//! If the sender dies, nothing that it has written is lost to a receiver that goes on: the receiver reads TCP up to its end, then what
//! is left in the ring. If the receiver dies, what it has not read is lost, as it is with TCP.
//!
//! A side may consist of several processes, since a socket is inherited. So the state of a side is in its words alone. Whoever acts
//! for a side holds a token, makes a [`Sender`] or [`Receiver`] of the words, and stores words in the order in which they are given
//! out. A process that dies in between leaves words with which the next one goes on.

#[cfg(test)]
mod model;
#[cfg(test)]
mod table;

/// A word of the peer that no honest peer writes. The connection is reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer's {word} is {value}, which it cannot be")]
pub struct Lie {
    /// Which word.
    pub word: &'static str,
    /// What it says.
    pub value: u64,
}

/// The words of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SenderWords {
    /// The epoch that began last; 0 before the first.
    pub epoch: u64,
    /// Bytes of the TCP stream before that epoch.
    pub offset: u64,
    /// Bytes written into the ring, counted over all epochs.
    pub written: u64,
    /// Twice the epoch that ended last, and 1 more if the sender spilled. That epoch is greater than `epoch` if the receiver withdrew an
    /// offer.
    pub ended: u64,
    /// Where the ring ended in that epoch: what the receiver has not read up to there follows in TCP.
    pub end: u64,
    /// All of that is in TCP for this epoch.
    pub refilled: u64,
}

impl SenderWords {
    /// The epoch that ended last.
    #[inline]
    fn last_ended(&self) -> u64 {
        self.ended >> 1
    }

    /// Whether the sender ended the epoch that began last, and left what it had written in the ring.
    #[inline]
    fn has_spilled(&self) -> bool {
        self.epoch > 0 && self.ended == self.epoch << 1 | SPILLED
    }
}

/// In `ended`: the sender has ended the epoch, and its bytes stay in the ring.
const SPILLED: u64 = 1;

/// One of the [`SenderWords`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the fields of the same names are documented")]
pub enum SenderWord {
    Epoch,
    Offset,
    Written,
    Ended,
    End,
    Refilled,
}

/// The words of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReceiverWords {
    /// The epoch that the receiver agrees to, or agreed to last.
    pub offered: u64,
    /// Bytes read from the ring, counted over all epochs.
    pub read: u64,
    /// The epoch that the receiver ended last. `read` does not change until the sender has answered.
    pub recalled: u64,
    /// The epoch before whose offset all of TCP was read. Only the receiver reads this.
    pub drained: u64,
}

/// One of the [`ReceiverWords`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the fields of the same names are documented")]
pub enum ReceiverWord {
    Offered,
    Read,
    Recalled,
    Drained,
}

/// Takes words that a side writes, in their order: a peer that sees one of them sees those before it.
pub trait Store<W> {
    /// Writes a word.
    fn store(&mut self, word: W, value: u64);
}

/// Where a sender's bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SenderState {
    /// Into TCP.
    Tcp,
    /// Into the ring.
    Ring,
    /// What was taken back from the ring goes into TCP first.
    Refill,
}

/// The sending side of a direction, for as long as somebody holds its write token.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    words: SenderWords,
    capacity: u64,
}

impl Sender {
    /// The sender with these words, whose ring has `capacity` bytes.
    #[must_use]
    pub fn new(words: SenderWords, capacity: u64) -> Self {
        Self { words, capacity }
    }

    /// Where the next byte goes.
    #[must_use]
    pub fn state(&self) -> SenderState {
        let words = &self.words;
        if words.last_ended() < words.epoch {
            SenderState::Ring
        } else if words.refilled < words.epoch && !words.has_spilled() {
            SenderState::Refill
        } else {
            SenderState::Tcp
        }
    }

    /// The epoch that ended last. When it changes, the receiver may be waiting for that.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.words.last_ended()
    }

    /// Answers a recall of the receiver, if there is one.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn look(
        &mut self,
        theirs: &ReceiverWords,
        out: &mut impl Store<SenderWord>,
    ) -> Result<(), Lie> {
        let next = self.words.last_ended() + 1;
        if theirs.recalled != next {
            // A recall that met a spill is behind.
            return check("recalled", theirs.recalled, theirs.recalled < next);
        }
        check("offered", theirs.offered, theirs.offered == next)?;
        if self.state() == SenderState::Ring {
            self.room(theirs)?;
            self.words.end = self.words.written;
            out.store(SenderWord::End, self.words.end);
        } else if self.words.has_spilled() {
            self.leave_in_ring(out);
        }
        self.words.ended = next << 1;
        out.store(SenderWord::Ended, self.words.ended);
        Ok(())
    }

    /// Ends the epoch: what was written into the ring stays there, and the next byte goes into TCP. Comes after a
    /// [`look`](Self::look).
    pub fn spill(&mut self, out: &mut impl Store<SenderWord>) {
        if self.state() != SenderState::Ring {
            return;
        }
        self.words.end = self.words.written;
        self.words.ended = self.words.epoch << 1 | SPILLED;
        out.store(SenderWord::End, self.words.end);
        out.store(SenderWord::Ended, self.words.ended);
    }

    /// Nothing of an epoch that was spilled is to be put into TCP.
    fn leave_in_ring(&mut self, out: &mut impl Store<SenderWord>) {
        self.words.refilled = self.words.epoch;
        out.store(SenderWord::Refilled, self.words.refilled);
    }

    /// Whether the receiver agreed to an epoch, according to the words at the last [`look`](Self::look), and the sender could begin it.
    #[must_use]
    pub fn may_switch(&self, theirs: &ReceiverWords) -> bool {
        self.state() == SenderState::Tcp && theirs.offered == self.words.last_ended() + 1
    }

    /// Begins an epoch if the receiver agreed, according to the words at the last [`look`](Self::look). `offset`: bytes of the TCP
    /// stream so far, as the kernel tells, while nobody writes into TCP.
    pub fn switch(
        &mut self,
        theirs: &ReceiverWords,
        offset: impl FnOnce() -> u64,
        out: &mut impl Store<SenderWord>,
    ) {
        if !self.may_switch(theirs) {
            return;
        }
        let next = self.words.last_ended() + 1;
        let (offset, start) = (offset(), theirs.read);
        let words = &mut self.words;
        (words.end, words.offset, words.written, words.epoch) = (start, offset, start, next);
        out.store(SenderWord::End, start); // Of the last epoch nothing is left.
        out.store(SenderWord::Offset, offset);
        out.store(SenderWord::Written, start);
        out.store(SenderWord::Epoch, next);
    }

    /// Bytes that the ring has room for.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn room(&self, theirs: &ReceiverWords) -> Result<u64, Lie> {
        let unread = between(theirs.read, self.words.written, self.capacity);
        unread.map(|unread| self.capacity - unread).ok_or(Lie { word: "read", value: theirs.read })
    }

    /// Position of the next byte in the ring.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.words.written
    }

    /// So many bytes more were copied into the ring; the receiver may read them.
    pub fn wrote(&mut self, bytes: u64, out: &mut impl Store<SenderWord>) {
        debug_assert_eq!(self.state(), SenderState::Ring);
        self.words.written += bytes;
        out.store(SenderWord::Written, self.words.written);
    }

    /// In `Refill`: the positions of the bytes in the ring that are to be put back into TCP next. `total`: bytes of the TCP stream so
    /// far, as the kernel tells. When there are none left, bytes go by TCP.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn refill(
        &mut self,
        theirs: &ReceiverWords,
        total: u64,
        out: &mut impl Store<SenderWord>,
    ) -> Result<std::ops::Range<u64>, Lie> {
        let end = self.words.end;
        let left = between(theirs.read, end, self.capacity);
        let left = left.ok_or(Lie { word: "read", value: theirs.read })?;
        let done = total.saturating_sub(self.words.offset).min(left);
        if done == left {
            self.words.refilled = self.words.epoch;
            out.store(SenderWord::Refilled, self.words.epoch);
        }
        Ok(theirs.read + done..end)
    }

    /// Bytes in the ring that the receiver has not read, and is to read there.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn unread(&self, theirs: &ReceiverWords) -> Result<u64, Lie> {
        if self.state() == SenderState::Ring || self.words.has_spilled() {
            self.room(theirs).map(|room| self.capacity - room)
        } else {
            Ok(0)
        }
    }

    /// If the receiver is dead: whether bytes are lost with it, so that a reader of this end is to see a reset. All bytes go by TCP
    /// from now on, which says that nobody reads them.
    #[must_use]
    pub fn loses(&self, theirs: &ReceiverWords) -> bool {
        match self.state() {
            SenderState::Tcp => self.words.has_spilled() && theirs.read != self.words.end,
            SenderState::Ring => theirs.read != self.words.written,
            SenderState::Refill => theirs.read != self.words.end,
        }
    }
}

/// Where a receiver's next byte comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReceiverState {
    /// From TCP. If the sender is dead, from the [rest](Receiver::rest) of the ring after the end of TCP.
    Tcp,
    /// From TCP. The sender may begin an epoch.
    Offered,
    /// From TCP up to the offset of the epoch, then from the ring.
    Switching,
    /// From the ring.
    Ring,
    /// From nowhere until the sender has answered.
    Recalled,
}

/// The receiving side of a direction, for as long as somebody holds its read token.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    words: ReceiverWords,
    capacity: u64,
    /// Whether any process can still write the sender's words.
    sender_lives: bool,
}

impl Receiver {
    /// The receiver with these words, whose ring has `capacity` bytes. `sender_lives`: any process can still write the sender's words.
    #[must_use]
    pub fn new(words: ReceiverWords, capacity: u64, sender_lives: bool) -> Self {
        Self { words, capacity, sender_lives }
    }

    /// Where the next byte comes from.
    #[must_use]
    pub fn state(&self, theirs: &SenderWords) -> ReceiverState {
        let words = &self.words;
        let begun = words.offered > 0 && theirs.epoch == words.offered;
        let is_read = !theirs.has_spilled() || words.read == theirs.end;
        if theirs.last_ended() >= words.offered {
            match is_read || !begun {
                true => ReceiverState::Tcp,
                false if words.drained == words.offered => ReceiverState::Ring,
                false => ReceiverState::Switching,
            }
        } else if words.recalled == words.offered && self.sender_lives {
            ReceiverState::Recalled
        } else if begun && words.drained == words.offered {
            ReceiverState::Ring
        } else if begun {
            ReceiverState::Switching
        } else if self.sender_lives {
            ReceiverState::Offered
        } else {
            ReceiverState::Tcp
        }
    }

    /// Agrees to an epoch, if the direction is in TCP. The sender begins it once everything of the last one is in TCP.
    pub fn offer(&mut self, theirs: &SenderWords, out: &mut impl Store<ReceiverWord>) {
        if self.state(theirs) == ReceiverState::Tcp && self.sender_lives {
            self.words.offered += 1;
            out.store(ReceiverWord::Offered, self.words.offered);
        }
    }

    /// Follows the sender. `consumed`: bytes of the TCP stream that were read; asked for only if that matters.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn look(
        &mut self,
        theirs: &SenderWords,
        consumed: impl FnOnce() -> u64,
        out: &mut impl Store<ReceiverWord>,
    ) -> Result<(), Lie> {
        let offered = self.words.offered;
        check("ended", theirs.ended, theirs.last_ended() <= offered)?;
        check("epoch", theirs.epoch, theirs.epoch <= offered)?;
        if self.state(theirs) == ReceiverState::Switching {
            let consumed = consumed();
            check("offset", theirs.offset, consumed <= theirs.offset)?;
            if consumed == theirs.offset {
                self.words.drained = offered;
                out.store(ReceiverWord::Drained, offered);
            }
        }
        Ok(())
    }

    /// Ends the epoch, or withdraws the offer. The direction is in TCP again when the sender has answered.
    pub fn recall(&mut self, theirs: &SenderWords, out: &mut impl Store<ReceiverWord>) {
        let is_open = theirs.last_ended() < self.words.offered;
        if is_open && self.words.recalled < self.words.offered && self.sender_lives {
            self.words.recalled = self.words.offered;
            out.store(ReceiverWord::Recalled, self.words.recalled);
        }
    }

    /// Whether the ring had nothing, after a [`recall`](Self::recall) whose store came before the loads of `theirs` in the order of all
    /// threads (a fence between them): then the program may go on without this library before the sender answers.
    #[must_use]
    pub fn may_leave(&self, theirs: &SenderWords) -> bool {
        // What the sender has taken back is to be in TCP: only then is it there if the sender dies.
        let is_in_tcp = || {
            theirs.last_ended() < theirs.epoch
                || theirs.refilled >= theirs.epoch
                || theirs.end <= self.words.read
        };
        match self.state(theirs) {
            ReceiverState::Tcp => is_in_tcp(),
            ReceiverState::Recalled if theirs.epoch < self.words.offered => is_in_tcp(),
            ReceiverState::Recalled => theirs.written == self.words.read,
            ReceiverState::Offered | ReceiverState::Switching | ReceiverState::Ring => false,
        }
    }

    /// Whether the sender has ended the epoch, and bytes are left that only the ring has.
    #[must_use]
    pub fn has_spilled(&self, theirs: &SenderWords) -> bool {
        theirs.has_spilled() && theirs.epoch == self.words.offered && self.words.read != theirs.end
    }

    /// Bytes that can be read from the ring now.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn readable(&self, theirs: &SenderWords) -> Result<u64, Lie> {
        if self.state(theirs) != ReceiverState::Ring {
            return Ok(0);
        }
        self.written_and_not_read(theirs)
    }

    /// Bytes in the ring that this side has not read, also those that come after bytes of TCP.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn unread(&self, theirs: &SenderWords) -> Result<u64, Lie> {
        match self.state(theirs) {
            ReceiverState::Ring | ReceiverState::Switching => self.written_and_not_read(theirs),
            ReceiverState::Tcp | ReceiverState::Offered | ReceiverState::Recalled => Ok(0),
        }
    }

    fn written_and_not_read(&self, theirs: &SenderWords) -> Result<u64, Lie> {
        let unread = between(self.words.read, theirs.written, self.capacity);
        unread.ok_or(Lie { word: "written", value: theirs.written })
    }

    /// Position of the next byte in the ring.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.words.read
    }

    /// So many bytes were copied out of the ring; the sender may write over them.
    pub fn took(&mut self, bytes: u64, out: &mut impl Store<ReceiverWord>) {
        self.words.read += bytes;
        out.store(ReceiverWord::Read, self.words.read);
    }

    /// If the sender is dead: the positions of what is still to be read from the ring after the end of TCP, whose stream had `total`
    /// bytes. Nothing is, if the sender had put all of it into TCP, which may still be on its way.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn rest(&self, theirs: &SenderWords, total: u64) -> Result<std::ops::Range<u64>, Lie> {
        let (read, end) = (self.words.read, theirs.end);
        let is_in_tcp = theirs.refilled >= theirs.epoch || theirs.has_spilled();
        if theirs.last_ended() < theirs.epoch || is_in_tcp {
            return Ok(read..read);
        }
        let left = between(read, end, self.capacity).ok_or(Lie { word: "end", value: end })?;
        let arrived = total.saturating_sub(theirs.offset).min(left);
        Ok(read + arrived..end)
    }
}

/// Bytes from position `from` to `to`, if a ring of `capacity` bytes can have them.
fn between(from: u64, to: u64, capacity: u64) -> Option<u64> {
    to.checked_sub(from).filter(|bytes| *bytes <= capacity)
}

fn check(word: &'static str, value: u64, is_possible: bool) -> Result<(), Lie> {
    if is_possible { Ok(()) } else { Err(Lie { word, value }) }
}
