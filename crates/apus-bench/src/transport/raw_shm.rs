//! The floor of calls between two processes of one host: the cost of shared memory without a protocol.
//!
//! Each side has a segment that it writes and the other side reads:
//!
//! | part | content |
//! |---|---|
//! | cursor | number of cells of the other side's ring that this side has consumed |
//! | ring | cells of two cache lines: a stamp, the header of a message, and the message if it is short |
//! | pool | pieces of longer messages, each announced by a cell |
//!
//! The sender copies a message once, and writes the stamp of its cell last. The stamp is the number of rounds of the ring, so it is
//! never reset. The receiver polls the stamp of the next cell and reads the message in place. It writes the cursor once for many
//! cells, and the sender reads the cursor only if the ring or the pool seems full. So a short message costs the transfer of its own
//! cache lines. After the start there is no system call and no lock, and both sides spin. The example `cache_line` prints the round
//! trip of one bare cache line, for comparison.
//!
//! The bytes come from where they come from with Apus: the client sends parts of four bodies in turn, and the server echoes a request
//! by a copy out of the client's memory. An echo begins when its request has arrived, except of a request that would fill half of
//! the client's pool. A reply of another length than its request is a pattern in the server's cache. The receiver checks bytes as on
//! the other transports.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus_shm::{Memory, PAGE, PeerSegment, Segment};
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::{Domain, Socket, Type};

use super::stream_socket::SocketDomain;
use apus_node::message::{MessageHeader, build, check_last, read, reads_every_byte};
use apus_node::transport::backlog::Backlog;
use apus_node::transport::interface::{Client, Ended, Failed, Request, Server};

/// Bytes of a cell: two cache lines, which hold a message of 100 bytes.
const CELL: usize = 128;

/// Cells of a ring.
const CELLS: u64 = 1024;

/// Offset of the message's tag in a cell. The stamp is at offset 0.
const TAG: usize = 8;
/// Offset of the message's two lengths.
const LENGTHS: usize = 16;
/// Offset of the body, or of the position of a piece in the pool.
const BODY: usize = 24;

/// Bytes of a body that fits into a cell.
const INLINE_MAX: usize = CELL - BODY;

/// Bytes of a pool.
const POOL: usize = 4 << 20;

/// Upper bound on bytes of a piece, so that a short message waits for the copy of one piece rather than of a whole message.
const PIECE: usize = 32 << 10;

/// Offset of the cursor in a segment.
const CURSOR_START: usize = 0;
/// Offset of the ring.
const RING_START: usize = PAGE;
/// Offset of the pool.
const POOL_START: usize = RING_START + CELL * CELLS as usize;
/// Bytes of a segment.
const SEGMENT: usize = POOL_START + POOL;

/// Number of consumed cells after which the cursor is written.
const UNREPORTED_CELLS: u64 = CELLS / 4;
/// Number of consumed bytes of the pool after which the cursor is written.
const UNREPORTED_BYTES: usize = POOL / 4;

/// Upper bound on messages taken in one `receive` before the caller may send.
const BATCH: usize = 64;

/// Checks of the ring between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 64;

/// Number of bodies from which a side sends.
const BODIES: usize = 4;

/// Length of the bodies of a client at its start: the longest message of the mix. Making a longer one delays short calls.
const BODY_USUAL: u32 = 1 << 20;

/// Upper bound on pieces in the client's pool that wait until their message is complete, in bytes.
const HELD_BYTES: usize = POOL / 2;
/// Upper bound on cells of the ring since the first such piece.
const HELD_CELLS: u64 = CELLS / 2;

/// The client's side.
pub(crate) struct ShmClient {
    sender: Writer,
    receiver: Reader,
}

impl ShmClient {
    /// Exchanges memory with the server at `address`.
    ///
    /// # Errors
    /// If the kernel refuses memory or the server is not running.
    pub(crate) fn connect(address: &str) -> Result<Self> {
        let (mut sender, receiver) = exchange(&SocketDomain::Unix.connect(address)?)?;
        for tag in 0..BODIES as u64 {
            sender.bodies.lengthen(MessageHeader { tag, length: BODY_USUAL, other_length: 0 });
        }
        Ok(Self { sender, receiver })
    }
}

impl Client for ShmClient {
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.sender.send(request.header());
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let before = ended.len();
        let mut deadline = None;
        for spins in 1_u32.. {
            self.sender.send_waiting();
            while ended.len() < before + BATCH
                && let Some(header) = self.receiver.next()?
            {
                ended.push(Ok(header.into()));
            }
            if timeout.is_zero() || ended.len() > before {
                break;
            }
            if spins.is_multiple_of(SPINS_PER_CLOCK) {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + timeout) {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The server's side, for one client.
pub(crate) struct ShmServer {
    listener: Socket,
    address: String,
}

impl ShmServer {
    /// Listens for a client with which to exchange memory.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub(crate) fn bind() -> Result<Self> {
        let (listener, address) = SocketDomain::Unix.listen()?;
        Ok(Self { listener, address })
    }
}

impl Server for ShmServer {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        let (sender, receiver) = exchange(&SocketDomain::Unix.accept(&self.listener)?)?;
        let mut answering = Answering::new(sender, receiver);
        loop {
            answering.turn()?;
        }
    }
}

/// Returns both sides, for two threads of this process.
///
/// # Errors
/// If the kernel refuses memory.
pub(crate) fn within_process() -> Result<(ShmClient, Answering)> {
    let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).context("a socket pair")?;
    let (here, there) = thread::scope(|scope| {
        let here = scope.spawn(move || exchange(&one));
        let there = exchange(&other);
        (here.join().expect("an exchange does not panic"), there)
    });
    let ((sender, receiver), (answers, requests)) = (here?, there?);
    Ok((ShmClient { sender, receiver }, Answering::new(answers, requests)))
}

/// The server at work.
pub(crate) struct Answering {
    sender: Writer,
    receiver: Reader,
    /// Pieces of long requests to be echoed, in order.
    held: VecDeque<Piece>,
    held_bytes: usize,
    /// Number of the first of them that may be echoed now.
    ready: usize,
    /// Whether a long message has been echoed in part.
    amid_echo: bool,
}

impl Answering {
    fn new(sender: Writer, receiver: Reader) -> Self {
        let held = VecDeque::new();
        Self { sender, receiver, held, held_bytes: 0, ready: 0, amid_echo: false }
    }

    /// Answers short requests, and sends one piece of a long reply, which delays no short one by more.
    ///
    /// # Errors
    /// If bytes of a request are wrong.
    pub(crate) fn turn(&mut self) -> Result<()> {
        for _ in 0..BATCH {
            let Some(piece) = self.receiver.take()? else { break };
            self.answer(piece);
        }
        self.sender.send_short();
        if self.amid_echo || !self.sender.is_amid_long() && self.ready > 0 {
            self.echo_piece();
        } else {
            self.sender.send_piece();
        }
        Ok(())
    }

    fn answer(&mut self, piece: Piece) {
        let request = piece.header;
        let reply = request.answer(request.length);
        let is_echo = reply.length == request.length;
        if is_echo && body(request) > PIECE {
            return self.hold(piece);
        }
        if is_echo {
            // There will be room, because the client takes replies whatever this side does.
            while !self.sender.push(reply, 0, Source::Peer(piece.place)) {}
        } else if piece.ends_message() {
            self.sender.send(reply);
        }
        self.release(piece);
    }

    fn hold(&mut self, piece: Piece) {
        self.held.push_back(piece);
        self.held_bytes += piece.length;
        if piece.ends_message() || self.held_bytes > HELD_BYTES {
            self.ready = self.held.len();
        }
    }

    fn echo_piece(&mut self) {
        let Some(&piece) = self.held.front().filter(|_| self.ready > 0) else { return };
        let reply = piece.header.answer(piece.header.length);
        if !self.sender.push(reply, piece.offset, Source::Peer(piece.place)) {
            return;
        }
        self.held.pop_front();
        self.held_bytes -= piece.length;
        self.ready -= 1;
        self.amid_echo = !piece.ends_message();
        self.release(piece);
    }

    /// Gives the client the room of a piece back. The room before it is free by then, unless pieces are held there.
    fn release(&mut self, piece: Piece) {
        let read = self.receiver.read;
        let free = self.held.front().map_or(read, |first| first.cell);
        if read - free > HELD_CELLS {
            self.ready = self.held.len();
        }
        self.receiver.release(free, piece.pool_bytes());
    }
}

/// Gives the other process a segment to read, and receives one from it.
fn exchange(stream: &Socket) -> Result<(Writer, Reader)> {
    let segment = Segment::create(SEGMENT).context("shared memory")?;
    send_descriptor(stream, &segment.descriptor()).context("cannot send a descriptor")?;
    let descriptor = receive_descriptor(stream)?;
    let peer = PeerSegment::open(descriptor.as_fd(), SEGMENT).context("the peer's memory")?;
    let (cursor, rest) = segment.into_memory().split(RING_START);
    let (ring, pool) = rest.split(POOL_START - RING_START);
    let sender = Writer {
        ring,
        pool,
        peer: peer.clone(),
        written: 0,
        consumed: 0,
        pool_end: 0,
        pool_freed: 0,
        pool_ends: vec![0; CELLS as usize],
        bodies: Bodies::default(),
        short: Backlog::default(),
        long: VecDeque::new(),
    };
    let receiver = Reader {
        peer,
        cursor,
        read: 0,
        reported: 0,
        unreported_bytes: 0,
        arrived: 0,
        scratch: Vec::new(),
    };
    Ok((sender, receiver))
}

fn send_descriptor(stream: &Socket, descriptor: &impl AsFd) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive_descriptor(stream: &Socket) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .context("cannot receive a descriptor")?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.next().context("the other side sent no descriptor")
}

/// The bodies from which a side sends, by the tag of a message.
#[derive(Default)]
struct Bodies([Vec<u8>; BODIES]);

impl Bodies {
    /// Makes the body of a message long enough.
    fn lengthen(&mut self, header: MessageHeader) {
        let ready = &mut self.0[header.tag as usize % BODIES];
        if ready.len() < header.length as usize {
            *ready = build(header, (header.length as usize).next_power_of_two());
        }
    }

    fn piece(&self, header: MessageHeader, offset: usize, length: usize) -> &[u8] {
        &self.0[header.tag as usize % BODIES][MessageHeader::LEN + offset..][..length]
    }
}

/// Place of the bytes of a piece.
#[derive(Clone, Copy)]
enum Source {
    /// In the sender's bodies.
    Bodies,
    /// At this offset of the other side's segment.
    Peer(usize),
}

/// The side that writes a ring and its pool. Positions count from the start of the run.
struct Writer {
    ring: Memory,
    pool: Memory,
    /// Memory with the other side's cursor.
    peer: PeerSegment,
    /// Cells written.
    written: u64,
    /// Written cells that the other side has consumed, as far as known.
    consumed: u64,
    /// End of the used part of the pool.
    pool_end: u64,
    /// End of the part of the pool that may be reused.
    pool_freed: u64,
    /// The values of `pool_end` after each cell.
    pool_ends: Vec<u64>,
    bodies: Bodies,
    /// Messages of one cell that wait for room.
    short: Backlog<MessageHeader>,
    /// Messages of several cells, with the number of body bytes sent.
    long: VecDeque<(MessageHeader, usize)>,
}

impl Writer {
    /// Sends a message of one cell at once if there is room. A longer one is sent in [`send_waiting`](Self::send_waiting), piece by
    /// piece, so that it delays no short one.
    fn send(&mut self, header: MessageHeader) {
        self.bodies.lengthen(header);
        if body(header) > PIECE {
            self.long.push_back((header, 0));
        } else {
            self.short.push(header);
            self.send_short();
        }
    }

    /// Sends as much as there is room for, at most one piece of a long message.
    fn send_waiting(&mut self) {
        self.send_short();
        self.send_piece();
    }

    /// Whether a long message has been sent in part.
    fn is_amid_long(&self) -> bool {
        self.long.front().is_some_and(|&(_, sent)| sent > 0)
    }

    fn send_piece(&mut self) {
        let Some(&(header, offset)) = self.long.front() else { return };
        if !self.push(header, offset, Source::Bodies) {
            return;
        }
        match offset + PIECE {
            sent if sent >= body(header) => drop(self.long.pop_front()),
            sent => self.long[0].1 = sent,
        }
    }

    fn send_short(&mut self) {
        let mut short = std::mem::take(&mut self.short);
        let Ok(()) = short.send(|header| Ok::<_, Infallible>(self.push(header, 0, Source::Bodies)));
        self.short = short;
    }

    /// Writes one cell: a short message, or a piece of a long one from `offset` of its body. Returns `false` if there is no room.
    #[inline]
    fn push(&mut self, header: MessageHeader, offset: usize, source: Source) -> bool {
        let body = body(header);
        let piece = (body - offset).min(PIECE);
        let is_inline = body <= INLINE_MAX;
        let start = if is_inline { self.pool_end } else { self.place(piece) };
        let end = if is_inline { start } else { start + piece as u64 };
        if self.is_full(end) {
            self.read_cursor();
            if self.is_full(end) {
                return false;
            }
        }
        let cell = (self.written % CELLS) as usize * CELL;
        let place = start as usize % POOL;
        let (memory, to) =
            if is_inline { (&mut self.ring, cell + BODY) } else { (&mut self.pool, place) };
        match source {
            Source::Bodies => memory.copy_in(to, self.bodies.piece(header, offset, piece)),
            Source::Peer(from) => memory.copy_from(to, &self.peer, from..from + piece),
        }
        if !is_inline {
            self.ring.word(cell + BODY).store(place as u64, Ordering::Relaxed);
        }
        let lengths = u64::from(header.length) | u64::from(header.other_length) << 32;
        self.ring.word(cell + TAG).store(header.tag, Ordering::Relaxed);
        self.ring.word(cell + LENGTHS).store(lengths, Ordering::Relaxed);
        self.ring.word(cell).store(stamp(self.written), Ordering::Release);
        self.pool_ends[(self.written % CELLS) as usize] = end;
        self.pool_end = end;
        self.written += 1;
        true
    }

    /// Position of the next piece: at a cache line, and not across the pool's end.
    fn place(&self, piece: usize) -> u64 {
        let start = self.pool_end.next_multiple_of(64);
        let fits = start as usize % POOL + piece <= POOL;
        if fits { start } else { start.next_multiple_of(POOL as u64) }
    }

    fn is_full(&self, pool_end: u64) -> bool {
        self.written - self.consumed == CELLS || pool_end - self.pool_freed > POOL as u64
    }

    fn read_cursor(&mut self) {
        let consumed = self.peer.load(CURSOR_START, Ordering::Acquire);
        if consumed > self.consumed {
            self.consumed = consumed;
            self.pool_freed = self.pool_ends[((consumed - 1) % CELLS) as usize];
        }
    }
}

/// A short message, or a piece of a long one, in the other side's memory.
#[derive(Clone, Copy)]
struct Piece {
    header: MessageHeader,
    /// Number of its cell.
    cell: u64,
    /// Offset of its bytes in the other side's segment.
    place: usize,
    /// Offset of its bytes in the body.
    offset: usize,
    length: usize,
}

impl Piece {
    fn ends_message(&self) -> bool {
        self.offset + self.length == body(self.header)
    }

    /// Bytes that it takes of the pool.
    fn pool_bytes(&self) -> usize {
        if body(self.header) <= INLINE_MAX { 0 } else { self.length }
    }
}

/// The side that reads a ring and its pool.
struct Reader {
    peer: PeerSegment,
    cursor: Memory,
    /// Cells consumed.
    read: u64,
    /// Consumed cells in the published cursor.
    reported: u64,
    /// Consumed bytes of the pool since that.
    unreported_bytes: usize,
    /// Body bytes that have arrived of the incomplete long message.
    arrived: usize,
    /// Buffer for bytes that are read in full.
    scratch: Vec<u8>,
}

impl Reader {
    /// The header of the next complete message, whose bytes are not needed any more.
    ///
    /// # Errors
    /// If its bytes are wrong.
    #[inline]
    fn next(&mut self) -> Result<Option<MessageHeader>> {
        loop {
            let Some(piece) = self.take()? else { return Ok(None) };
            self.release(self.read, piece.pool_bytes());
            if piece.ends_message() {
                return Ok(Some(piece.header));
            }
        }
    }

    /// Takes the next piece. Messages of one piece may arrive between pieces of a long message.
    ///
    /// # Errors
    /// If its bytes are wrong.
    #[inline]
    fn take(&mut self) -> Result<Option<Piece>> {
        let at = RING_START + (self.read % CELLS) as usize * CELL;
        if self.peer.load(at, Ordering::Acquire) != stamp(self.read) {
            return Ok(None);
        }
        let header = self.header(at);
        let body = body(header);
        let place = if body <= INLINE_MAX {
            at + BODY
        } else {
            POOL_START + self.peer.load(at + BODY, Ordering::Relaxed) as usize
        };
        let offset = if body > PIECE { self.arrived } else { 0 };
        let length = (body - offset).min(PIECE);
        self.check_last(place, offset, length)?;
        if reads_every_byte() {
            self.read_all(place, length);
        }
        let piece = Piece { header, cell: self.read, place, offset, length };
        if body > PIECE {
            self.arrived = if piece.ends_message() { 0 } else { offset + length };
        }
        self.read += 1;
        Ok(Some(piece))
    }

    fn header(&self, cell: usize) -> MessageHeader {
        let lengths = self.peer.load(cell + LENGTHS, Ordering::Relaxed);
        MessageHeader {
            tag: self.peer.load(cell + TAG, Ordering::Relaxed),
            length: lengths as u32,
            other_length: (lengths >> 32) as u32,
        }
    }

    /// Checks the last of `length` bytes at `start`, which are the body of a message from `offset`.
    fn check_last(&self, start: usize, offset: usize, length: usize) -> Result<()> {
        let Some(last) = (start + length).checked_sub(1).filter(|_| length > 0) else {
            return Ok(());
        };
        let word = self.peer.load(last & !7, Ordering::Relaxed);
        check_last(&[word.to_le_bytes()[last & 7]], MessageHeader::LEN + offset + length)
    }

    /// Reads bytes by a copy to a place in this core's cache.
    #[cold]
    fn read_all(&mut self, place: usize, length: usize) {
        self.scratch.clear();
        self.peer.copy_out(place..place + length, &mut self.scratch);
        read(&self.scratch);
    }

    /// Gives cells before `free` back, and `bytes` more of the pool. Publishes the cursor if that is much, so that the other side can
    /// reuse the room.
    fn release(&mut self, free: u64, bytes: usize) {
        self.unreported_bytes += bytes;
        if free - self.reported >= UNREPORTED_CELLS || self.unreported_bytes >= UNREPORTED_BYTES {
            self.cursor.word(CURSOR_START).store(free, Ordering::Release);
            self.reported = free;
            self.unreported_bytes = 0;
        }
    }
}

/// The stamp of the cell that is written after `written` others: never 0, and different in each round.
fn stamp(written: u64) -> u64 {
    written / CELLS + 1
}

/// Bytes of a message after its header.
fn body(header: MessageHeader) -> usize {
    header.length as usize - MessageHeader::LEN
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use apus_node::message::MESSAGE_MAX;

    /// Two sides in one process.
    fn sides() -> ((Writer, Reader), (Writer, Reader)) {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        thread::scope(|scope| {
            let here = scope.spawn(move || exchange(&one).unwrap());
            let there = exchange(&other).unwrap();
            (here.join().unwrap(), there)
        })
    }

    #[test]
    fn messages_of_all_lengths_arrive() {
        let ((mut sender, _), (_, mut receiver)) = sides();
        let powers = (4..=26).map(|power| 1_u32 << power);
        let around = |length: u32| [length - 1, length, length + 1];
        let edges = [INLINE_MAX, PIECE, POOL].map(|body| (body + MessageHeader::LEN) as u32);
        for length in powers.chain(edges.into_iter().flat_map(around)) {
            assert!(length <= MESSAGE_MAX);
            let header = MessageHeader { tag: length.into(), length, other_length: 100 };
            sender.send(header);
            let arrived = loop {
                sender.send_waiting();
                if let Some(arrived) = receiver.next().unwrap() {
                    break arrived;
                }
            };
            assert_eq!(arrived, header);
        }
    }

    #[test]
    fn messages_wait_for_room_in_their_order_and_short_ones_do_not_wait_for_long_ones() {
        let ((mut sender, _), (_, mut receiver)) = sides();
        let send = |sender: &mut Writer, tag, length| {
            sender.send(MessageHeader { tag, length, other_length: 0 });
        };
        send(&mut sender, 0, 10_000_000);
        for tag in 1..=5_000 {
            send(&mut sender, tag, 16 + (tag % 200) as u32);
        }
        let mut seen = Vec::new();
        while seen.len() < 5_001 {
            sender.send_waiting();
            seen.extend(receiver.next().unwrap().map(|header| header.tag));
        }
        assert_ne!(seen[0], 0, "the long one is not the first");
        seen.retain(|tag| *tag != 0);
        assert!(seen.into_iter().eq(1..=5_000));
    }

    /// A server answers without a client that waits: long and short requests, in any order.
    #[test]
    fn requests_are_echoed_from_the_clients_memory_whatever_their_length() {
        let ((mut sender, mut replies), (there, requests)) = sides();
        let mut answering = Answering::new(there, requests);
        let lengths = [500_000, 100, 40_000, 10_000_000, 5_000, 3_000_000, 16];
        let mut outstanding = BTreeMap::new();
        for (tag, length) in (0..).zip(lengths.into_iter().cycle().take(40)) {
            // One in three wants a reply of another length.
            let other_length = if tag % 3 == 0 { 100 + (tag as u32 % 2) * 400_000 } else { 0 };
            sender.send(MessageHeader { tag, length, other_length });
            outstanding.insert(tag, (if other_length > 0 { other_length } else { length }, length));
        }
        while !outstanding.is_empty() {
            sender.send_waiting();
            answering.turn().unwrap();
            while let Some(MessageHeader { tag, length, other_length }) = replies.next().unwrap() {
                assert_eq!(outstanding.remove(&tag), Some((length, other_length)));
            }
        }
        assert_eq!((answering.held.len(), answering.held_bytes), (0, 0));
    }

    #[test]
    fn short_requests_are_answered_between_the_pieces_of_a_long_one_however_many_they_are() {
        let ((mut sender, mut replies), (there, requests)) = sides();
        let mut answering = Answering::new(there, requests);
        sender.send(MessageHeader { tag: 0, length: 100_000, other_length: 0 });
        sender.send_waiting();
        let mut seen = 0;
        for tag in 1..=4 * CELLS {
            sender.send(MessageHeader { tag, length: 100, other_length: 0 });
            answering.turn().unwrap();
            while let Some(reply) = replies.next().unwrap() {
                seen += 1;
                assert_eq!(reply.tag, seen);
            }
        }
        assert_eq!(seen, 4 * CELLS);
        let whole = loop {
            sender.send_waiting();
            answering.turn().unwrap();
            if let Some(reply) = replies.next().unwrap() {
                break reply;
            }
        };
        assert_eq!((whole.tag, whole.length), (0, 100_000));
    }

    #[test]
    fn a_wrong_byte_is_noticed() {
        let ((mut sender, _), (_, mut receiver)) = sides();
        for length in [100, 5_000] {
            sender.send(MessageHeader { tag: 1, length, other_length: 0 });
            sender.ring.copy_in(receiver.read as usize * CELL + BODY + 83, &[0; 1]);
            sender.pool.copy_in(4_983, &[0; 1]);
            assert!(receiver.next().is_err(), "{length}");
            receiver.read += 1;
        }
    }
}
