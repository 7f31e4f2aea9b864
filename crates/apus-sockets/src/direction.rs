//! One direction of a connection: the states in which its bytes travel by TCP or through a ring.
//!
//! The sender and the receiver of a direction are two processes. Each side has words in shared memory that it alone writes and the
//! other side reads. A time during which bytes travel through the ring is an *epoch*; epochs are counted from 1.
//!
//! | direction | receiver | sender |
//! |---|---|---|
//! | TCP | `Tcp`, or `Offered`: it would read the ring | `Tcp` |
//! | SWITCHING(n) | `Switching`: it reads TCP up to offset n | `Ring`: bytes from offset n on go into the ring |
//! | RING | `Ring` | `Ring` |
//! | SPILLED(n) | `Switching` or `Ring`: it reads the ring to its end, then TCP | `Tcp` |
//! | RETURNING(m) | `Recalled`: it has read up to position m of the ring and reads nothing more | `Ring`, until it sees the recall |
//! | TCP | `Tcp` | `Refill`: the ring's bytes beyond m go into TCP first; then `Tcp` |
//!
//! The receiver begins: it *offers* an epoch. The sender *switches* at its next write, at the offset that its kernel reports.
//! Either side may end the epoch, and neither waits for the other one to do so.
//!
//! - The sender *spills*: its bytes in the ring stay there, and later bytes go into TCP. A sender spills if its ring stays full, so
//!   that a direction holds the ring and the capacity of TCP, and before its program continues without this library. Between hosts
//!   no sender spills, because TCP may bring bytes before the receiver sees that the epoch has begun. While an epoch is offered,
//!   the receiver reads only those bytes of TCP that were there before it checked that the epoch had not begun: later bytes may
//!   belong behind the ring.
//! - The receiver *recalls*: it stops reading the ring. The sender *answers*: it takes back the unread bytes and writes them into
//!   TCP, before any other byte. So after an answer all bytes are in the kernel's stream, in order, and the receiver's program may
//!   continue without this library. If the ring is empty after the recall, the receiver need not wait for the answer: a sender
//!   checks for a recall after each write into the ring, and takes that write back.
//!
//! One word states that an epoch has ended, and in which of the two ways. So a recall that meets a spill has one outcome that both
//! sides see: if the sender had not seen the recall, the receiver continues with the ring.
//!
//! If the sender dies, a receiver that continues loses none of its bytes: the receiver reads TCP up to its end, then the rest of
//! the ring. If the receiver dies, its unread bytes are lost, as with TCP.
//!
//! A side may consist of several processes, because a socket is inherited. So the state of a side is in its words alone. A process
//! that acts for a side holds a token, creates a [`Sender`] or [`Receiver`] from the words, and stores words in the order in which
//! it receives them. A process that dies in between leaves words from which the next one continues.

#[cfg(test)]
mod model;
#[cfg(test)]
mod table;

/// An impossible value in a word of the peer. The connection is reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer's {word} is {value}, which it cannot be")]
pub struct Violation {
    /// Name of the word.
    pub word: &'static str,
    /// Its value.
    pub value: u64,
}

/// The words of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SenderWords {
    /// The last epoch that began; 0 before the first.
    pub epoch: u64,
    /// Number of bytes of the TCP stream before that epoch.
    pub offset: u64,
    /// Number of bytes written into the ring, over all epochs.
    pub written: u64,
    /// Twice the last epoch that ended, plus 1 if the sender spilled. That epoch is greater than `epoch` if the receiver withdrew
    /// an offer.
    pub ended: u64,
    /// Position of the ring's end in that epoch: the bytes up to it that the receiver has not read follow in TCP.
    pub end: u64,
    /// The last epoch for which all of these bytes are in TCP.
    pub refilled: u64,
}

impl SenderWords {
    /// Returns the last epoch that ended.
    #[inline]
    fn last_ended(&self) -> u64 {
        self.ended >> 1
    }

    /// Returns whether the sender ended the epoch that began last, and left its bytes in the ring.
    #[inline]
    fn has_spilled(&self) -> bool {
        self.epoch > 0 && self.ended == self.epoch << 1 | SPILLED
    }
}

/// Flag in `ended`: the sender ended the epoch, and its bytes stay in the ring.
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
    /// The epoch that the receiver offers, or offered last.
    pub offered: u64,
    /// Number of bytes read from the ring, over all epochs.
    pub read: u64,
    /// The last epoch that the receiver ended. `read` does not change until the sender has answered.
    pub recalled: u64,
    /// The last epoch before whose offset all of TCP was read. Only the receiver reads this word.
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

/// Destination of the words that a side writes, in order: a peer that sees one of them sees the earlier ones.
pub trait Store<W> {
    /// Writes a word.
    fn store(&mut self, word: W, value: u64);
}

/// Destination of a sender's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SenderState {
    /// Into TCP.
    Tcp,
    /// Into the ring.
    Ring,
    /// The bytes taken back from the ring go into TCP first.
    Refill,
}

/// The sending side of a direction, while a process holds its write token.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    words: SenderWords,
    capacity: u64,
}

impl Sender {
    /// Creates the sender with these words, whose ring has `capacity` bytes.
    #[must_use]
    pub fn new(words: SenderWords, capacity: u64) -> Self {
        Self { words, capacity }
    }

    /// Returns the destination of the next byte.
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

    /// Returns the last epoch that ended. The receiver may be waiting for a change of it.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.words.last_ended()
    }

    /// Answers a recall of the receiver, if there is one.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn look(
        &mut self,
        theirs: &ReceiverWords,
        out: &mut impl Store<SenderWord>,
    ) -> Result<(), Violation> {
        let next = self.words.last_ended() + 1;
        if theirs.recalled != next {
            // A recall that met a spill lags behind.
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

    /// Ends the epoch: its bytes stay in the ring, and the next byte goes into TCP. The caller must [`look`](Self::look) first.
    pub fn spill(&mut self, out: &mut impl Store<SenderWord>) {
        if self.state() != SenderState::Ring {
            return;
        }
        self.words.end = self.words.written;
        self.words.ended = self.words.epoch << 1 | SPILLED;
        out.store(SenderWord::End, self.words.end);
        out.store(SenderWord::Ended, self.words.ended);
    }

    /// Marks the bytes of a spilled epoch as staying in the ring.
    fn leave_in_ring(&mut self, out: &mut impl Store<SenderWord>) {
        self.words.refilled = self.words.epoch;
        out.store(SenderWord::Refilled, self.words.refilled);
    }

    /// Returns whether the receiver agreed to an epoch that the sender could begin, according to the words at the last
    /// [`look`](Self::look).
    #[must_use]
    pub fn may_switch(&self, theirs: &ReceiverWords) -> bool {
        self.state() == SenderState::Tcp && theirs.offered == self.words.last_ended() + 1
    }

    /// Begins an epoch if the receiver agreed, according to the words at the last [`look`](Self::look). `offset` returns the number
    /// of bytes of the TCP stream so far, from the kernel; no process may write into TCP meanwhile.
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
        out.store(SenderWord::End, start); // No byte of the last epoch is left.
        out.store(SenderWord::Offset, offset);
        out.store(SenderWord::Written, start);
        out.store(SenderWord::Epoch, next);
    }

    /// Returns the bytes of free room in the ring.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn room(&self, theirs: &ReceiverWords) -> Result<u64, Violation> {
        let unread = between(theirs.read, self.words.written, self.capacity);
        unread
            .map(|unread| self.capacity - unread)
            .ok_or(Violation { word: "read", value: theirs.read })
    }

    /// Returns the position of the next byte in the ring.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.words.written
    }

    /// Records `bytes` more in the ring, which the receiver may read.
    pub fn wrote(&mut self, bytes: u64, out: &mut impl Store<SenderWord>) {
        debug_assert_eq!(self.state(), SenderState::Ring);
        self.words.written += bytes;
        out.store(SenderWord::Written, self.words.written);
    }

    /// In `Refill`: returns the positions of the ring's bytes to put into TCP next. `total`: number of bytes of the TCP stream so
    /// far, from the kernel. Once there are none left, bytes go by TCP.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn refill(
        &mut self,
        theirs: &ReceiverWords,
        total: u64,
        out: &mut impl Store<SenderWord>,
    ) -> Result<std::ops::Range<u64>, Violation> {
        let end = self.words.end;
        let left = between(theirs.read, end, self.capacity);
        let left = left.ok_or(Violation { word: "read", value: theirs.read })?;
        let done = total.saturating_sub(self.words.offset).min(left);
        if done == left {
            self.words.refilled = self.words.epoch;
            out.store(SenderWord::Refilled, self.words.epoch);
        }
        Ok(theirs.read + done..end)
    }

    /// Returns the number of bytes in the ring that the receiver has not read, and must read there.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn unread(&self, theirs: &ReceiverWords) -> Result<u64, Violation> {
        if self.state() == SenderState::Ring || self.words.has_spilled() {
            self.room(theirs).map(|room| self.capacity - room)
        } else {
            Ok(0)
        }
    }

    /// After the receiver's death: returns whether bytes are lost with it, so that a reader of this end must see a reset. From now
    /// on all bytes go by TCP, which reports the lack of a reader.
    #[must_use]
    pub fn loses(&self, theirs: &ReceiverWords) -> bool {
        match self.state() {
            SenderState::Tcp => self.words.has_spilled() && theirs.read != self.words.end,
            SenderState::Ring => theirs.read != self.words.written,
            SenderState::Refill => theirs.read != self.words.end,
        }
    }
}

/// Source of a receiver's next byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReceiverState {
    /// TCP. If the sender is dead, the [rest](Receiver::rest) of the ring after the end of TCP.
    Tcp,
    /// TCP. The sender may begin an epoch.
    Offered,
    /// TCP up to the offset of the epoch, then the ring.
    Switching,
    /// The ring.
    Ring,
    /// None until the sender has answered.
    Recalled,
}

/// The receiving side of a direction, while a process holds its read token.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    words: ReceiverWords,
    capacity: u64,
    /// Whether any process can still write the sender's words.
    sender_is_alive: bool,
}

impl Receiver {
    /// Creates the receiver with these words, whose ring has `capacity` bytes. `sender_is_alive`: any process can still write the
    /// sender's words.
    #[must_use]
    pub fn new(words: ReceiverWords, capacity: u64, sender_is_alive: bool) -> Self {
        Self { words, capacity, sender_is_alive }
    }

    /// Returns the source of the next byte.
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
        } else if words.recalled == words.offered && self.sender_is_alive {
            ReceiverState::Recalled
        } else if begun && words.drained == words.offered {
            ReceiverState::Ring
        } else if begun {
            ReceiverState::Switching
        } else if self.sender_is_alive {
            ReceiverState::Offered
        } else {
            ReceiverState::Tcp
        }
    }

    /// Offers an epoch, if the direction is in TCP. The sender begins it once all bytes of the last one are in TCP.
    pub fn offer(&mut self, theirs: &SenderWords, out: &mut impl Store<ReceiverWord>) {
        if self.state(theirs) == ReceiverState::Tcp && self.sender_is_alive {
            self.words.offered += 1;
            out.store(ReceiverWord::Offered, self.words.offered);
        }
    }

    /// Follows the sender. `consumed` returns the number of bytes read from the TCP stream; it is called only if that matters.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn look(
        &mut self,
        theirs: &SenderWords,
        consumed: impl FnOnce() -> u64,
        out: &mut impl Store<ReceiverWord>,
    ) -> Result<(), Violation> {
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

    /// Ends the epoch, or withdraws the offer. The direction is in TCP again after the sender's answer.
    pub fn recall(&mut self, theirs: &SenderWords, out: &mut impl Store<ReceiverWord>) {
        let is_open = theirs.last_ended() < self.words.offered;
        if is_open && self.words.recalled < self.words.offered && self.sender_is_alive {
            self.words.recalled = self.words.offered;
            out.store(ReceiverWord::Recalled, self.words.recalled);
        }
    }

    /// Returns whether the ring was empty after a [`recall`](Self::recall) whose store precedes the loads of `theirs` in the order
    /// of all threads (a fence between them). The program may then continue without this library before the sender answers.
    #[must_use]
    pub fn may_leave(&self, theirs: &SenderWords) -> bool {
        // The bytes that the sender has taken back must be in TCP: only then do they survive the sender's death.
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

    /// Returns whether the sender has ended the epoch and left bytes that only the ring has.
    #[must_use]
    pub fn has_spilled(&self, theirs: &SenderWords) -> bool {
        theirs.has_spilled() && theirs.epoch == self.words.offered && self.words.read != theirs.end
    }

    /// Returns the number of bytes that can be read from the ring now.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn readable(&self, theirs: &SenderWords) -> Result<u64, Violation> {
        if self.state(theirs) != ReceiverState::Ring {
            return Ok(0);
        }
        self.written_and_not_read(theirs)
    }

    /// Returns the number of unread bytes in the ring, including those that follow bytes of TCP.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn unread(&self, theirs: &SenderWords) -> Result<u64, Violation> {
        match self.state(theirs) {
            ReceiverState::Ring | ReceiverState::Switching => self.written_and_not_read(theirs),
            ReceiverState::Tcp | ReceiverState::Offered | ReceiverState::Recalled => Ok(0),
        }
    }

    fn written_and_not_read(&self, theirs: &SenderWords) -> Result<u64, Violation> {
        let unread = between(self.words.read, theirs.written, self.capacity);
        unread.ok_or(Violation { word: "written", value: theirs.written })
    }

    /// Returns the position of the next byte in the ring.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.words.read
    }

    /// Records `bytes` copied out of the ring, which the sender may overwrite.
    pub fn took(&mut self, bytes: u64, out: &mut impl Store<ReceiverWord>) {
        self.words.read += bytes;
        out.store(ReceiverWord::Read, self.words.read);
    }

    /// After the sender's death: returns the positions of the bytes to read from the ring after the end of TCP, whose stream had
    /// `total` bytes. The range is empty if the sender had put all of them into TCP, where they may still be on their way.
    ///
    /// # Errors
    ///
    /// [`Violation`].
    pub fn rest(
        &self,
        theirs: &SenderWords,
        total: u64,
    ) -> Result<std::ops::Range<u64>, Violation> {
        let (read, end) = (self.words.read, theirs.end);
        let is_in_tcp = theirs.refilled >= theirs.epoch || theirs.has_spilled();
        if theirs.last_ended() < theirs.epoch || is_in_tcp {
            return Ok(read..read);
        }
        let left =
            between(read, end, self.capacity).ok_or(Violation { word: "end", value: end })?;
        let arrived = total.saturating_sub(theirs.offset).min(left);
        Ok(read + arrived..end)
    }
}

/// Returns the number of bytes from position `from` to `to`, if a ring of `capacity` bytes can hold them.
fn between(from: u64, to: u64, capacity: u64) -> Option<u64> {
    to.checked_sub(from).filter(|bytes| *bytes <= capacity)
}

fn check(word: &'static str, value: u64, is_possible: bool) -> Result<(), Violation> {
    if is_possible { Ok(()) } else { Err(Violation { word, value }) }
}
