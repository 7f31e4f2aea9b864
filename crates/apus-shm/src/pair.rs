//! A pair: two processes and the memory between them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{io, mem};

use bytes::{Bytes, BytesMut};

use crate::bell;
use crate::body::{self, Bell, IsCurrent, Receipts, WAKE};
use crate::channel::Channel;
use crate::layout::{self, MAGIC};
use crate::pool::{Pool, Run, SEGMENT_SIZE, SEGMENTS_MAX};
use crate::process::{PeerProcess, Trust};
use crate::ring::{Broken, Consumer, Frame, LONGER, Producer, Words};
use crate::segment::{Memory, PeerSegment, Segment, SegmentError, fits_file_limit};
use crate::sending::{BEGUN_MAX, Long, QueuedMessage, Sending, Target};
use crate::spare::Spare;

/// Bytes of a long message that are copied at a time. A short message waits for at most one copy of this size, 6 to 12 µs.
const STEP: usize = 64 << 10;

/// Upper bound on the length of a body that shares an allocation, in bytes.
const SHARING_MAX: usize = 256;
/// Size of an allocation that short bodies share, in bytes. A body that is kept keeps all of it. The last [`SHARING_MAX`] bytes are
/// used only in part, because the length of the next body is not known.
const CHUNK: usize = (2 << 10) + SHARING_MAX;
/// Upper bound on short messages that are copied out of the ring before the first of them is passed on. Copies that follow each
/// other let the processor fetch several cache lines of the peer at a time.
const BURST: usize = 16;

/// Upper bound on the bytes of bodies in place that a process may hold for one peer: half of the pool. Further bodies are copied.
const HELD_MAX: usize = SEGMENTS_MAX * SEGMENT_SIZE / 2;

/// Upper bound on the length of a message that arrives as a whole, in bytes. Longer ones arrive in parts.
pub const WHOLE_MAX: usize = SEGMENT_SIZE;

/// Kind of a frame with a short message as its payload.
const SHORT: u8 = 1;
/// Kind of a frame about a run with a message, or with a part of one.
const RUN: u8 = 2;

/// Upper bound on messages of the channel before a segment: unread wake-ups, one for each sleep.
const CHANNEL_MAX: usize = 1_024;

/// Kinds of messages on the channel.
const OFFER: u8 = b'O';
const POOL: u8 = b'P';
/// The segment of a longer ring.
const RING: u8 = b'R';
/// The sender gives its pool up: all runs of it are released, and later segments belong to another pool.
const GONE: u8 = b'G';

/// Reason why a pair is unusable. Calls under way by it have failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// The peer's memory has content that no honest peer writes.
    #[error("the peer broke the protocol: {0}")]
    Broken(#[from] Broken),
    /// A descriptor from the peer is not its memory.
    #[error("the peer's memory was refused: {0}")]
    Segment(#[from] SegmentError),
    /// The peer sent a message out of turn.
    #[error("the peer sent {0}")]
    Unexpected(&'static str),
    /// A system call failed. [`io::ErrorKind::UnexpectedEof`] and [`io::ErrorKind::BrokenPipe`] mean that the peer is gone.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<nix::Error> for PairError {
    fn from(error: nix::Error) -> Self {
        Self::System(error.into())
    }
}

/// Checks whether this process may create the memory of a pair, including that for long messages.
///
/// # Errors
///
/// The errors of [`fits_file_limit`].
pub fn fits_limits() -> io::Result<()> {
    fits_file_limit(SEGMENT_SIZE.max(layout::SIZE) as u64)
}

/// Receives the messages of a peer.
pub trait MessageReceiver {
    /// Decides about the beginning of a long message of `length` bytes. If it returns `false`, the message is dropped without a
    /// call of [`message`](Self::message).
    fn admits(&mut self, words: Words, length: usize) -> bool;

    /// Takes an arrived message.
    fn message(&mut self, words: Words, body: Bytes);
}

/// This process's half of a pair whose peer has not answered.
#[derive(Debug)]
pub struct PendingPair {
    channel: Channel,
    memory: Memory,
    process: PeerProcess,
    trust: Trust,
    is_current: IsCurrent,
}

impl PendingPair {
    /// Creates memory and sends it over `socket`, a connected unix socket of type `SOCK_SEQPACKET`. The peer is trusted as far as
    /// its process is ([`PeerProcess::trust`]), and no further than `trust`. `is_current` returns whether the calling process is
    /// the one that made the pair, and not a child of it.
    ///
    /// # Errors
    ///
    /// [`PairError::System`].
    pub fn send(
        socket: OwnedFd,
        trust: Trust,
        is_current: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<Self, PairError> {
        let channel = Channel::new(socket);
        fits_limits()?;
        let process = PeerProcess::of(channel.descriptor())?;
        let trust = match trust {
            Trust::InPlace => process.trust(),
            Trust::Copy => Trust::Copy,
        };
        let is_current = IsCurrent(Box::new(is_current));
        let segment = Segment::create(layout::SIZE)?;
        segment.memory().word(0).store(MAGIC, Ordering::Release);
        channel.send(&[OFFER], &[segment.descriptor()])?;
        let memory = segment.into_memory();
        Ok(Self { channel, memory, process, trust, is_current })
    }

    /// Returns the pair, once the peer's memory has arrived.
    ///
    /// # Errors
    ///
    /// Returns the pending pair if the peer's memory has not arrived; otherwise [`PairError`].
    pub fn complete(self) -> Result<Result<Pair, Self>, PairError> {
        let mut kind = [0];
        let taken = match self.channel.take(&mut kind, 1) {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Err(self)),
            Err(error) => return Err(error.into()),
        };
        let (OFFER, [segment]) = (kind[0], &taken.descriptors[..]) else {
            return Err(PairError::Unexpected("no offer"));
        };
        let peer = PeerSegment::open(segment.as_fd(), layout::SIZE)?;
        if peer.load(0, Ordering::Acquire) != MAGIC {
            return Err(PairError::Unexpected("memory of another layout"));
        }
        let (words, ring) = self.memory.split(layout::RING);
        let receipts = Receipts::new(words, self.channel, peer.clone(), self.is_current);
        Ok(Ok(Pair {
            outbound: Outbound {
                ring: Producer::new(ring),
                read_at: layout::READ,
                growth: Growth::No,
            },
            consumer: Consumer::new(peer.clone(), layout::RING, layout::RING_SIZE),
            reports_at: layout::READ,
            longer: None,
            pool: Pool::for_user(self.process.uid()),
            sending: Sending::default(),
            streams: Vec::new(),
            spare: Arc::default(),
            chunk: BytesMut::new(),
            burst: Vec::with_capacity(BURST),
            segments: Vec::new(),
            epoch: 0,
            receipts: Arc::new(receipts),
            process: self.process,
            trust: self.trust,
            peer,
            unflushed: false,
        }))
    }

    /// Returns the descriptor, which is readable when [`complete`](Self::complete) has input.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }
}

/// This process's end of the memory between two processes.
///
/// The methods that move messages never block, wait or sleep. A turn of the owner is [`receive`](Self::receive),
/// [`advance`](Self::advance), [`flush`](Self::flush).
#[derive(Debug)]
pub struct Pair {
    outbound: Outbound,
    consumer: Consumer,
    /// Offset of the word in which this process reports the slots that it has read.
    reports_at: usize,
    /// The peer's longer ring, which it has sent and not yet continued in.
    longer: Option<PeerSegment>,
    pool: Pool,
    sending: Sending,
    /// Messages that have arrived in part.
    streams: Vec<Stream>,
    spare: Arc<Spare>,
    /// Memory for the next short bodies, and those that are being taken.
    chunk: BytesMut,
    /// Short messages that are being taken: the words and lengths of their bodies in `chunk`.
    burst: Vec<(Words, usize)>,
    /// The received segments of the peer's pool.
    segments: Vec<PeerSegment>,
    /// Number of times that the peer has given its pool up.
    epoch: u8,
    receipts: Arc<Receipts>,
    peer: PeerSegment,
    process: PeerProcess,
    trust: Trust,
    /// Whether frames were written since the last [`flush`](Self::flush).
    unflushed: bool,
}

/// The ring for messages to the peer.
#[derive(Debug)]
struct Outbound {
    ring: Producer,
    /// Offset of the word in which the peer reports the slots that it has read.
    read_at: usize,
    growth: Growth,
}

/// The exchange of the ring for a longer one: once in the life of a pair, so that memory is taken for peers with bursts only.
#[derive(Debug)]
enum Growth {
    No,
    /// The peer has the longer ring, and the frame that names it has found no room yet.
    Announced(Memory),
    /// The longer ring is in use, or there is no memory for it.
    Done,
}

/// Result of a step of a long message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    Bytes(usize),
    /// The pool has no run of this length.
    NoRun,
    /// The frame of the run has no room in the ring.
    RingFull,
}

/// A message that arrives in parts.
#[derive(Debug)]
struct Stream {
    number: u32,
    words: Words,
    length: usize,
    received: usize,
    /// `None` if the message is dropped.
    body: Option<Vec<u8>>,
}

impl Pair {
    /// Sends a message, after earlier short ones if it is short. Bodies of up to [`short_max`](Self::short_max) bytes are copied at
    /// once if there is room; [`advance`](Self::advance) copies all others.
    ///
    /// # Errors
    ///
    /// [`PairError::Broken`].
    #[inline(always)]
    pub fn send(&mut self, words: Words, body: &Bytes) -> Result<(), PairError> {
        let is_short = body.len() <= self.short_max();
        if !is_short || self.sending.has_short() || !self.push(SHORT, words, body)? {
            self.queue(words, body, is_short);
        }
        Ok(())
    }

    /// Sends a message in two parts, as [`send`](Self::send) does. A long one is copied once: into the memory of the peer.
    ///
    /// # Errors
    ///
    /// [`PairError::Broken`].
    #[cold]
    pub fn send_parts(&mut self, words: Words, parts: [&Bytes; 2]) -> Result<(), PairError> {
        let [first, second] = parts;
        if first.len().saturating_add(second.len()) <= self.short_max() {
            return self.send(words, &[&first[..], &second[..]].concat().into());
        }
        self.sending.push_long(words, parts.map(Bytes::clone));
        Ok(())
    }

    /// Queues a message for which the ring has no room now.
    #[cold]
    fn queue(&mut self, words: Words, body: &Bytes, is_short: bool) {
        if is_short {
            self.sending.push_short(words, body.clone());
        } else {
            self.sending.push_long(words, [body.clone(), Bytes::new()]);
        }
    }

    /// Withdraws a message for which `is_it` is true, if the peer has received none of it. Returns `false` if there is no such
    /// message.
    pub fn withdraw(&mut self, is_it: &dyn Fn(Words) -> bool) -> bool {
        self.sending.withdraw(is_it)
    }

    /// Returns the words of messages whose last byte the peer has not received, and will never receive once the pair has ended.
    pub fn unsent(&self) -> impl Iterator<Item = Words> {
        self.sending.words()
    }

    /// Sends a message without a body after the long one in progress for which `is_it` is true, because short messages overtake
    /// long ones. Returns `false` if there is no such message.
    pub fn send_after(&mut self, words: Words, is_it: &dyn Fn(Words) -> bool) -> bool {
        self.sending.follow(words, is_it)
    }

    /// Returns the length of the longest body in the ring, in bytes: 4,072.
    #[inline]
    #[must_use]
    pub fn short_max(&self) -> usize {
        layout::PAYLOAD_MAX
    }

    #[inline(always)]
    fn push(&mut self, kind: u8, words: Words, payload: &[u8]) -> Result<bool, Broken> {
        let (peer, read_at) = (&self.peer, self.outbound.read_at);
        let read = || peer.load(read_at, Ordering::Acquire);
        let pushed = self.outbound.ring.push(kind, words, payload, read)?;
        self.unflushed |= pushed;
        Ok(pushed)
    }

    /// Continues in a longer ring, as far as that is possible now.
    #[cold]
    fn grow_ring(&mut self) -> Result<(), Broken> {
        let Growth::Announced(longer) = mem::replace(&mut self.outbound.growth, Growth::Done)
        else {
            // Without memory, or with a full socket, the ring stays as it is.
            let Ok(segment) = Segment::create(layout::LONGER_SIZE) else { return Ok(()) };
            if self.receipts.channel.send(&[RING], &[segment.descriptor()]).is_ok() {
                self.outbound.growth = Growth::Announced(segment.into_memory());
            }
            return Ok(());
        };
        if !self.push(LONGER, [0, 0], &[])? {
            self.outbound.growth = Growth::Announced(longer);
            return Ok(());
        }
        let (ring, read_at) = (Producer::new(longer), layout::READ_LONGER);
        self.outbound = Outbound { ring, read_at, growth: Growth::Done };
        Ok(())
    }

    /// Copies queued messages, with at most `budget` bytes of long ones. Returns `true` if it can continue at once, and `false` if
    /// no message is left or there is no room until the peer has read.
    ///
    /// # Errors
    ///
    /// [`PairError`]. A lack of memory for a message is an error of the system.
    pub fn advance(&mut self, budget: usize) -> Result<bool, PairError> {
        if self.sending.has_short() && !matches!(self.outbound.growth, Growth::Done) {
            self.grow_ring()?;
        }
        let mut left = budget;
        loop {
            while let Some(QueuedMessage { words, body }) = self.sending.first_short() {
                let (words, body) = (*words, body.clone());
                if !self.push(SHORT, words, &body)? {
                    return Ok(false);
                }
                self.sending.pop_short();
            }
            if left == 0 {
                return Ok(!self.sending.is_empty());
            }
            let Some(long) = self.sending.take_long() else { return Ok(false) };
            let mut copied = self.advance_long(long)?;
            if copied == Copied::NoRun
                && let Some(long) = self.sending.take_filling()
            {
                // Otherwise preempted messages would keep the memory that the shortest message waits for.
                copied = self.advance_long(long)?;
            }
            let Copied::Bytes(copied) = copied else { return Ok(false) };
            left = left.saturating_sub(copied);
        }
    }

    /// Copies a part of a message that was removed from the queue, and puts its rest back.
    fn advance_long(&mut self, mut long: Long) -> Result<Copied, PairError> {
        let was_begun = long.is_begun();
        let copied = self.copy_step(&mut long)?;
        if long.left() == 0 && long.target.is_none() {
            self.sending.ended(&long, was_begun);
        } else {
            self.sending.put_back(long, was_begun);
        }
        Ok(copied)
    }

    /// Copies the next [`STEP`] of a message, and reports a full run to the peer.
    fn copy_step(&mut self, long: &mut Long) -> Result<Copied, PairError> {
        let target = match long.target {
            Some(target) => target,
            None => {
                let whole = long.len() <= WHOLE_MAX;
                let length = if whole { long.left() } else { long.left().min(STEP) };
                let Some(run) = self.take_run(length)? else { return Ok(Copied::NoRun) };
                *long.target.insert(Target { run, start: long.copied, length })
            }
        };
        let end = target.start + target.length;
        let step = STEP.min(end - long.copied);
        let mut offset = long.copied - target.start;
        for bytes in long.next(step) {
            self.pool.copy_in(target.run, offset, bytes);
            offset += bytes.len();
        }
        long.copied += step;
        if long.copied == end {
            let payload = RunFrame::of(long, target, self.pool.epoch).encode();
            if !self.push(RUN, long.words, &payload)? {
                return Ok(Copied::RingFull);
            }
            long.target = None;
        }
        Ok(Copied::Bytes(step))
    }

    fn take_run(&mut self, length: usize) -> Result<Option<Run>, PairError> {
        let peer = &self.peer;
        let released =
            |segment, chunk| peer.load_u32(layout::released(segment, chunk), Ordering::Acquire);
        if let Some(run) = self.pool.take(length, released) {
            return Ok(Some(run));
        }
        let Some(descriptor) = self.pool.grow()? else { return Ok(None) };
        self.receipts.channel.send(&[POOL], &[descriptor.as_fd()])?;
        Ok(self.pool.take(length, released))
    }

    /// Wakes the peer if it sleeps and there are new frames: once for all messages since the last call.
    #[inline]
    pub fn flush(&mut self) {
        if mem::take(&mut self.unflushed) {
            self.receipts.ring(Bell::Frame);
        }
    }

    /// Returns whether messages wait to be copied.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Passes up to `frames` frames to `receiver`. Returns their number.
    ///
    /// # Errors
    ///
    /// [`PairError`].
    #[inline]
    pub fn receive(
        &mut self,
        receiver: &mut impl MessageReceiver,
        frames: usize,
    ) -> Result<usize, PairError> {
        let mut count = 0;
        while count < frames {
            let next = self.take_burst(frames - count);
            count += self.burst.len();
            let is_last = self.burst.is_empty();
            let mut bodies = self.chunk.split().freeze();
            for (words, length) in self.burst.drain(..) {
                receiver.message(words, bodies.split_to(length));
            }
            match next? {
                Some(frame) => {
                    count += 1;
                    self.take_other(&frame, receiver)?;
                }
                // A look at the next frame is one load, and another burst more than a hundred instructions.
                None if is_last || !self.consumer.is_ready() => break,
                None => {}
            }
        }
        if count > 0 {
            self.consumer.report(self.receipts.words.word(self.reports_at));
            self.receipts.ring(Bell::Room);
        }
        Ok(count)
    }

    /// Copies short messages out of the ring. Returns the first frame that is none of them.
    #[inline]
    fn take_burst(&mut self, frames: usize) -> Result<Option<Frame>, Broken> {
        if self.chunk.capacity() < SHARING_MAX {
            self.chunk.reserve(CHUNK); // Without a kept body the memory is used again.
        }
        let mut room = self.chunk.capacity();
        for _ in 0..frames.min(BURST) {
            if room < SHARING_MAX {
                break;
            }
            let Some(frame) = self.consumer.pop()? else { break };
            if frame.kind != SHORT || frame.length > SHARING_MAX {
                return Ok(Some(frame));
            }
            self.consumer.segment().append_to(frame.at..frame.at + frame.length, &mut self.chunk);
            room -= frame.length;
            self.burst.push((frame.words, frame.length));
        }
        Ok(None)
    }

    /// Takes a frame other than a short message with a shared allocation.
    fn take_other(
        &mut self,
        frame: &Frame,
        receiver: &mut impl MessageReceiver,
    ) -> Result<(), PairError> {
        match frame.kind {
            SHORT => {
                let body = self.copy(frame.at, frame.length);
                receiver.message(frame.words, body);
                Ok(())
            }
            RUN => self.take_in(frame, receiver),
            LONGER => self.continue_in_longer(),
            kind => Err(Broken::Kind(kind).into()),
        }
    }

    /// Copies bytes of the ring.
    fn copy(&self, at: usize, length: usize) -> Bytes {
        let mut body = Vec::with_capacity(length);
        self.consumer.segment().copy_out(at..at + length, &mut body);
        body.into()
    }

    /// Reads the peer's longer ring from now on.
    #[cold]
    fn continue_in_longer(&mut self) -> Result<(), PairError> {
        for _ in 0..CHANNEL_MAX {
            if let Some(longer) = self.longer.take() {
                self.consumer = Consumer::new(longer, 0, layout::LONGER_SIZE);
                self.reports_at = layout::READ_LONGER;
                return Ok(());
            }
            if !self.handle_channel()? {
                break;
            }
        }
        Err(PairError::Unexpected("a frame for a ring that it has not sent"))
    }

    /// Takes a run of a long message.
    fn take_in(
        &mut self,
        frame: &Frame,
        receiver: &mut impl MessageReceiver,
    ) -> Result<(), PairError> {
        let part = RunFrame::decode(&self.copy(frame.at, frame.length))?;
        let segment = self.segment(part.run.segment.into(), part.epoch)?;
        if part.start == 0 && part.length == part.total {
            if !receiver.admits(frame.words, part.total) {
                self.receipts.release(part.run);
                return Ok(());
            }
            let body = self.whole(segment, &part);
            receiver.message(frame.words, body);
            return Ok(());
        }
        let index = self.stream(frame.words, &part, receiver)?;
        let stream = &mut self.streams[index];
        if let Some(body) = &mut stream.body {
            let at = part.run.offset();
            segment.copy_out(at..at + part.length, body);
        }
        self.receipts.release(part.run);
        stream.received += part.length;
        if stream.received == stream.length {
            let Stream { words, body, .. } = self.streams.swap_remove(index);
            if let Some(body) = body {
                receiver.message(words, self.spare.body(body));
            }
        }
        Ok(())
    }

    /// Returns the body of a message that one run holds.
    fn whole(&self, segment: PeerSegment, part: &RunFrame) -> Bytes {
        let receipts = &self.receipts;
        if self.trust == Trust::InPlace && receipts.held() + part.length <= HELD_MAX {
            // SAFETY: `PendingPair::send` has found that the peer's process is trusted.
            return unsafe { body::in_place(segment, part.run, part.length, Arc::clone(receipts)) };
        }
        let mut body = self.spare.take(part.length);
        let at = part.run.offset();
        segment.copy_out(at..at + part.length, &mut body);
        receipts.release(part.run);
        self.spare.body(body)
    }

    /// Returns the message that a run is a part of.
    fn stream(
        &mut self,
        words: Words,
        part: &RunFrame,
        receiver: &mut impl MessageReceiver,
    ) -> Result<usize, PairError> {
        let found = self.streams.iter().position(|stream| stream.number == part.number);
        if let Some(index) = found {
            let stream = &self.streams[index];
            if (stream.received, stream.length) != (part.start, part.total) {
                return Err(PairError::Unexpected("a part of a message out of order"));
            }
            return Ok(index);
        }
        if part.start != 0 || self.streams.len() == BEGUN_MAX {
            return Err(PairError::Unexpected("a part of a message without a beginning"));
        }
        let body = receiver.admits(words, part.total).then(|| self.spare.take(part.total));
        let (number, length) = (part.number, part.total);
        self.streams.push(Stream { number, words, length, received: 0, body });
        Ok(self.streams.len() - 1)
    }

    /// Returns a segment of the peer's pool, which the peer sends before the first run in it.
    fn segment(&mut self, index: usize, epoch: u8) -> Result<PeerSegment, PairError> {
        for _ in 0..CHANNEL_MAX {
            if let Some(segment) = self.segments.get(index)
                && epoch == self.epoch
            {
                return Ok(segment.clone());
            }
            if !self.handle_channel()? {
                break;
            }
        }
        Err(PairError::Unexpected("a run of an unknown segment"))
    }

    /// Handles a message of the channel. Returns `false` if there is none.
    ///
    /// # Errors
    ///
    /// [`PairError`], also if the peer is gone.
    pub fn handle_channel(&mut self) -> Result<bool, PairError> {
        let mut kind = [0];
        let taken = match self.receipts.channel.take(&mut kind, 1) {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match (kind[0], &taken.descriptors[..]) {
            (WAKE, []) => {}
            (GONE, []) => {
                self.segments.clear();
                self.epoch = self.epoch.wrapping_add(1);
            }
            (RING, [descriptor]) if self.longer.is_none() && self.reports_at == layout::READ => {
                self.longer = Some(PeerSegment::open(descriptor.as_fd(), layout::LONGER_SIZE)?);
            }
            (POOL, [descriptor]) if self.segments.len() < SEGMENTS_MAX => {
                self.segments.push(PeerSegment::open(descriptor.as_fd(), SEGMENT_SIZE)?);
            }
            _ => {
                return Err(PairError::Unexpected(
                    "a message that is neither a wake-up nor a segment",
                ));
            }
        }
        Ok(true)
    }

    /// Returns whether a frame is ready. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.consumer.is_ready()
    }

    /// Arms the bells, so that the peer wakes this process for later input. The caller checks once more afterwards
    /// ([`receive`](Self::receive), [`advance`](Self::advance)). If there is input, it calls [`disarm_bell`](Self::disarm_bell)
    /// instead of sleeping on the [`descriptor`](Self::descriptor).
    pub fn prepare_sleep(&self) {
        let words = &self.receipts.words;
        if self.is_sending() {
            bell::ask(words.word(layout::BELLS[Bell::Room as usize]));
        }
        bell::ask(words.word(layout::BELLS[Bell::Frame as usize]));
    }

    /// Gives up the memory for later messages, because few are expected. Gives up nothing while the peer holds some of it or a
    /// message to the peer is in progress.
    pub fn shrink(&mut self) {
        self.spare.clear();
        let peer = &self.peer;
        let released =
            |segment, chunk| peer.load_u32(layout::released(segment, chunk), Ordering::Acquire);
        if self.pool.size() == 0 || self.is_sending() || self.pool.is_lent(released) {
            return;
        }
        // If the socket is full, the peer has not been awake for long, and a later call gives the memory up.
        if self.receipts.channel.send(&[GONE], &[]).is_ok() {
            self.pool.clear();
        }
    }

    /// Returns whether there is memory to [give up](Self::shrink).
    #[must_use]
    pub fn has_spare_memory(&self) -> bool {
        self.pool.size() > 0 || !self.spare.is_empty()
    }

    /// Disarms the bells, because the process is awake.
    pub fn disarm_bell(&self) {
        for bell in layout::BELLS {
            bell::withdraw(self.receipts.words.word(bell));
        }
    }

    /// Returns the descriptor, which is readable when the peer wakes this process, sends memory, or is gone: call
    /// [`handle_channel`](Self::handle_channel).
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.receipts.channel.descriptor()
    }

    /// Returns the bytes that this process holds for the pair: messages that wait to be copied, and partly received ones.
    #[must_use]
    pub fn load(&self) -> usize {
        let arriving = self.streams.iter().filter(|stream| stream.body.is_some());
        self.sending.bytes() + arriving.map(|stream| stream.length).sum::<usize>()
    }

    /// Returns the peer's process.
    #[must_use]
    pub fn process(&self) -> &PeerProcess {
        &self.process
    }

    /// Returns the position up to which the peer has read, if it has not read everything.
    #[must_use]
    pub fn unread_from(&self) -> Option<u64> {
        let read = self.peer.load(self.outbound.read_at, Ordering::Acquire);
        let (read, written) = self.outbound.ring.progress(read);
        (read != written).then_some(read)
    }

    /// Returns the bytes of memory that this process has created for the peer.
    #[must_use]
    pub fn memory(&self) -> usize {
        layout::SIZE + self.extra_memory()
    }

    /// Returns the bytes of memory that this process has created for long messages and bursts to the peer.
    #[must_use]
    pub fn extra_memory(&self) -> usize {
        let ring = match self.outbound.read_at {
            layout::READ_LONGER => layout::LONGER_SIZE,
            _ => 0,
        };
        self.pool.size() + ring
    }
}

/// The payload of a frame about a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RunFrame {
    run: Run,
    /// Epoch of the pool.
    epoch: u8,
    number: u32,
    /// Bytes of the message before this run.
    start: usize,
    /// Bytes of the message in this run.
    length: usize,
    /// Bytes of the whole message.
    total: usize,
}

impl RunFrame {
    const LENGTH: usize = 36;

    fn of(long: &Long, target: Target, epoch: u8) -> Self {
        let Target { run, start, length } = target;
        Self { run, epoch, number: long.number, start, length, total: long.len() }
    }

    fn encode(&self) -> [u8; Self::LENGTH] {
        let Run { segment, first, chunks, generation } = self.run;
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&[segment, first, chunks, self.epoch]);
        bytes[4..8].copy_from_slice(&generation.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        for (at, value) in [(12, self.start), (20, self.length), (28, self.total)] {
            bytes[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, PairError> {
        let lie = PairError::Unexpected("an invalid run");
        let Ok(bytes) = <&[u8; Self::LENGTH]>::try_from(bytes) else { return Err(lie) };
        let word = |at| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let long = |at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let [segment, first, chunks, epoch] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let run = Run { segment, first, chunks, generation: word(4) };
        let (start, length, total) = (long(12), long(20), long(28));
        let fits = run.is_possible() && length > 0 && length <= run.size() as u64;
        if !fits || total > u32::MAX.into() || start > total || length > total - start {
            return Err(lie);
        }
        let [start, length, total] = [start, length, total].map(|bytes| bytes as usize);
        Ok(Self { run, epoch, number: word(8), start, length, total })
    }
}
