//! One direction of a connection: the states in which its bytes go by TCP or through a ring.
//!
//! The sender and the receiver of a direction are two processes. Each of them has a state of its own, and words in shared memory that
//! only it writes and the other one reads. A time during which bytes go through the ring is an *epoch*; epochs are counted from 1.
//!
//! | direction | receiver | sender |
//! |---|---|---|
//! | TCP | `Tcp`, or `Offered`: it would read the ring | `Tcp` |
//! | SWITCHING(n) | `Switching`: it reads TCP up to offset n | `Ring`: bytes from offset n on go into the ring |
//! | RING | `Ring` | `Ring` |
//! | RETURNING(m) | `Recalled`: it has read up to position m of the ring and reads nothing more | `Ring`, until it sees the recall |
//! | TCP | `Tcp` | `Refill`: what the ring had beyond m goes into TCP first; then `Tcp` |
//!
//! The receiver begins: it *offers* an epoch. The sender *switches* when it writes next, at the offset that its kernel tells. Either
//! side may end the epoch. The sender *wishes* it, which only asks the receiver. The receiver *recalls* it and stops reading. The
//! sender *answers*: it takes back what the receiver has not read and writes that into TCP, before anything else. So after an answer
//! all bytes are in the kernel's stream, in order, and either program may go on without this library.
//!
//! If the sender dies, nothing that it has written is lost to a receiver that goes on: the receiver reads TCP up to its end, then what
//! is left in the ring. If the receiver dies, what it has not read is lost, as it is with TCP.

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

/// The words of a sender. [`store`](SenderWord) them in the order in which they are given out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SenderWords {
    /// The epoch that began last; 0 before the first.
    pub epoch: u64,
    /// Bytes of the TCP stream before this epoch. Valid once `epoch` tells of it.
    pub offset: u64,
    /// Bytes written into the ring, counted over all epochs.
    pub written: u64,
    /// The epoch that the sender wishes to end; 0: none.
    pub wished: u64,
    /// The epoch that ended last.
    pub ended: u64,
    /// Where the ring ended then: what the receiver has not read up to there follows in TCP. Valid once `ended` tells of it.
    pub end: u64,
}

/// One of the [`SenderWords`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the fields of the same names are documented")]
pub enum SenderWord {
    Epoch,
    Offset,
    Written,
    Wished,
    Ended,
    End,
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
}

/// One of the [`ReceiverWords`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the fields of the same names are documented")]
pub enum ReceiverWord {
    Offered,
    Read,
    Recalled,
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
    /// Bytes from `from` to `to` of the ring go into TCP first.
    Refill {
        /// Position of the next one.
        from: u64,
        /// Position behind the last one.
        to: u64,
    },
}

/// The sending side of a direction. One thread at a time uses it: the one that holds the direction's write token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sender {
    state: SenderState,
    capacity: u64,
    epoch: u64,
    ended: u64,
    written: u64,
    wished: u64,
    receiver_is_dead: bool,
}

impl Sender {
    /// A direction whose ring has `capacity` bytes. Its bytes go by TCP.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let (epoch, ended, written, wished) = (0, 0, 0, 0);
        let state = SenderState::Tcp;
        Self { state, capacity, epoch, ended, written, wished, receiver_is_dead: false }
    }

    /// Where the next byte goes.
    #[must_use]
    pub fn state(&self) -> SenderState {
        self.state
    }

    /// Answers a recall of the receiver, if there is one.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn look(
        &mut self,
        theirs: &ReceiverWords,
        words: &mut impl Store<SenderWord>,
    ) -> Result<(), Lie> {
        let next = self.ended + 1;
        if self.receiver_is_dead {
            return Ok(());
        }
        if theirs.recalled != next {
            return check("recalled", theirs.recalled, theirs.recalled == self.ended);
        }
        check("offered", theirs.offered, theirs.offered == next)?;
        let end = self.written;
        if self.state == SenderState::Ring {
            self.room(theirs)?;
            self.written = theirs.read;
            if theirs.read < end {
                self.state = SenderState::Refill { from: theirs.read, to: end };
            } else {
                self.state = SenderState::Tcp;
            }
        }
        words.store(SenderWord::End, end);
        words.store(SenderWord::Ended, next);
        words.store(SenderWord::Written, self.written); // Last: a receiver whose sender dies before the answer reads the ring.
        self.ended = next;
        Ok(())
    }

    /// Whether the receiver agrees that the next byte goes into the ring, according to the words at the last [`look`](Self::look).
    #[must_use]
    pub fn may_switch(&self, theirs: &ReceiverWords) -> bool {
        let agrees = theirs.offered == self.ended + 1;
        self.state == SenderState::Tcp && agrees && !self.receiver_is_dead
    }

    /// Begins an epoch, if the receiver [agrees](Self::may_switch). `offset`: bytes of the TCP stream so far, as the kernel tells, while
    /// nobody writes into TCP.
    pub fn switch(
        &mut self,
        theirs: &ReceiverWords,
        offset: u64,
        words: &mut impl Store<SenderWord>,
    ) {
        if self.may_switch(theirs) {
            self.epoch = self.ended + 1;
            self.state = SenderState::Ring;
            words.store(SenderWord::Offset, offset);
            words.store(SenderWord::Epoch, self.epoch);
        }
    }

    /// Bytes that the ring has room for.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn room(&self, theirs: &ReceiverWords) -> Result<u64, Lie> {
        let unread = between(theirs.read, self.written, self.capacity);
        unread.map(|unread| self.capacity - unread).ok_or(Lie { word: "read", value: theirs.read })
    }

    /// Position of the next byte in the ring.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// So many bytes more were copied into the ring; the receiver may read them.
    pub fn wrote(&mut self, bytes: u64, words: &mut impl Store<SenderWord>) {
        debug_assert_eq!(self.state, SenderState::Ring);
        self.written += bytes;
        words.store(SenderWord::Written, self.written);
    }

    /// So many bytes that were taken back from the ring are in TCP now.
    pub fn refilled(&mut self, bytes: u64) {
        if let SenderState::Refill { from, to } = &mut self.state {
            *from += bytes;
            if *from >= *to {
                self.state = SenderState::Tcp;
            }
        }
    }

    /// Asks the receiver to end the epoch, or not to begin one that it has offered.
    pub fn wish(&mut self, theirs: &ReceiverWords, words: &mut impl Store<SenderWord>) {
        let epoch = self.ended + 1;
        let is_open = theirs.offered == epoch || self.state == SenderState::Ring;
        if is_open && self.wished != epoch {
            self.wished = epoch;
            words.store(SenderWord::Wished, epoch);
        }
    }

    /// The receiver is dead. What is left goes by TCP, which says that nobody reads it. True if the receiver had bytes that it has not
    /// read: a reader of this end is to see a reset.
    pub fn receiver_died(&mut self, theirs: &ReceiverWords) -> bool {
        let unread = match self.state {
            SenderState::Tcp => false,
            SenderState::Ring => theirs.read != self.written,
            SenderState::Refill { .. } => true,
        };
        self.state = SenderState::Tcp;
        self.receiver_is_dead = true;
        unread
    }
}

/// Where a receiver's next byte comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReceiverState {
    /// From TCP. After the end of TCP, from what an epoch has [left](Left).
    Tcp,
    /// From TCP. The sender may begin an epoch.
    Offered,
    /// From TCP up to the offset, then from the ring.
    Switching {
        /// Bytes of the TCP stream before the epoch.
        offset: u64,
    },
    /// From the ring.
    Ring {
        /// Bytes of the TCP stream before the epoch, all of which were read.
        offset: u64,
    },
    /// From nowhere until the sender has answered.
    Recalled,
}

/// What the ring had when an epoch ended, and follows in TCP. If the sender dies on the way, the rest is read from the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    /// Bytes of the TCP stream before it.
    pub offset: u64,
    /// Position of its first byte in the ring.
    pub from: u64,
    /// Position behind its last byte.
    pub to: u64,
}

/// The receiving side of a direction. One thread at a time uses it: the one that holds the direction's read token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Receiver {
    state: ReceiverState,
    capacity: u64,
    /// The epoch that is offered, or was the last one.
    epoch: u64,
    read: u64,
    left: Option<Left>,
    sender_is_dead: bool,
}

impl Receiver {
    /// A direction whose ring has `capacity` bytes. Its bytes go by TCP.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        let state = ReceiverState::Tcp;
        Self { state, capacity, epoch: 0, read: 0, left: None, sender_is_dead: false }
    }

    /// Where the next byte comes from.
    #[must_use]
    pub fn state(&self) -> ReceiverState {
        self.state
    }

    /// Agrees to an epoch, if the direction is in TCP. The sender begins it once everything of the last one is in TCP.
    pub fn offer(&mut self, words: &mut impl Store<ReceiverWord>) {
        if self.state == ReceiverState::Tcp && !self.sender_is_dead {
            self.epoch += 1;
            self.state = ReceiverState::Offered;
            words.store(ReceiverWord::Offered, self.epoch);
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
        words: &mut impl Store<ReceiverWord>,
    ) -> Result<(), Lie> {
        if self.state == ReceiverState::Tcp {
            return Ok(());
        }
        let begun = theirs.epoch == self.epoch;
        if self.state == ReceiverState::Recalled {
            if theirs.ended == self.epoch {
                if begun {
                    self.left = self.left(theirs)?;
                }
                self.state = ReceiverState::Tcp;
            } else if self.sender_is_dead {
                // It will never answer: the epoch goes on to its end.
                self.state = ReceiverState::Offered;
            }
        }
        if self.state == ReceiverState::Offered {
            if begun {
                self.state = ReceiverState::Switching { offset: theirs.offset };
            } else if self.sender_is_dead {
                self.state = ReceiverState::Tcp;
            }
        }
        if let ReceiverState::Switching { offset } = self.state {
            let consumed = consumed();
            check("offset", offset, consumed <= offset)?;
            if consumed == offset {
                self.state = ReceiverState::Ring { offset };
            }
        }
        if theirs.wished == self.epoch {
            self.recall(words);
        }
        Ok(())
    }

    fn left(&self, theirs: &SenderWords) -> Result<Option<Left>, Lie> {
        let unread = between(self.read, theirs.end, self.capacity);
        let unread = unread.ok_or(Lie { word: "end", value: theirs.end })?;
        let left = Left { offset: theirs.offset, from: self.read, to: theirs.end };
        Ok((unread > 0).then_some(left))
    }

    /// Ends the epoch, or withdraws the offer. The direction is in TCP again when the sender has answered.
    pub fn recall(&mut self, words: &mut impl Store<ReceiverWord>) {
        let is_open = matches!(
            self.state,
            ReceiverState::Offered | ReceiverState::Switching { .. } | ReceiverState::Ring { .. }
        );
        if is_open && !self.sender_is_dead {
            self.state = ReceiverState::Recalled;
            words.store(ReceiverWord::Recalled, self.epoch);
        }
    }

    /// Bytes that can be read from the ring now.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn readable(&self, theirs: &SenderWords) -> Result<u64, Lie> {
        if !matches!(self.state, ReceiverState::Ring { .. }) {
            return Ok(0);
        }
        let unread = between(self.read, theirs.written, self.capacity);
        unread.ok_or(Lie { word: "written", value: theirs.written })
    }

    /// Position of the next byte in the ring.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// So many bytes were copied out of the ring; the sender may write over them.
    pub fn took(&mut self, bytes: u64, words: &mut impl Store<ReceiverWord>) {
        self.read += bytes;
        words.store(ReceiverWord::Read, self.read);
    }

    /// The sender is dead: no word of it changes any more. [`look`](Self::look) follows.
    pub fn sender_died(&mut self) {
        self.sender_is_dead = true;
    }

    /// What is still to be read from the ring after the end of TCP, whose stream had `total` bytes.
    #[must_use]
    pub fn rest(&self, total: u64) -> Option<(u64, u64)> {
        let left = self.left.filter(|_| self.state == ReceiverState::Tcp)?;
        let arrived = total.saturating_sub(left.offset);
        (arrived < left.to - left.from).then_some((left.from + arrived, left.to))
    }
}

/// Bytes from position `from` to `to`, if a ring of `capacity` bytes can have them.
fn between(from: u64, to: u64, capacity: u64) -> Option<u64> {
    to.checked_sub(from).filter(|bytes| *bytes <= capacity)
}

fn check(word: &'static str, value: u64, is_possible: bool) -> Result<(), Lie> {
    if is_possible { Ok(()) } else { Err(Lie { word, value }) }
}
