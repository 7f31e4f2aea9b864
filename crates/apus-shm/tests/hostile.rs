//! A peer that writes arbitrary bytes at arbitrary places and times closes its own pair and does no other harm.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use apus_shm::{MessageReceiver, PAGE, Pair, PendingPair, Segment, Trust, Words};
use bytes::Bytes;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};

/// Size of a pair's segment in bytes.
const SIZE: usize = 5 * PAGE;
/// Offset of the ring in the segment.
const RING: usize = PAGE;
/// Size of the longer ring in bytes.
const LONGER: usize = 16 * PAGE;
/// Size of a segment of the pool in bytes.
const POOL: usize = 1 << 20;

/// Random numbers, the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a number that is small, near a power of two, or arbitrary.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(10),
            1 => (1u64 << self.below(64)).wrapping_add(self.below(3)).wrapping_sub(1),
            2 => self.below(300),
            _ => self.next(),
        }
    }
}

/// The hostile side: its memory, and the socket.
struct Hostile {
    segment: Segment,
    socket: OwnedFd,
    /// Number of slots of the ring written roughly as an honest peer would.
    written: usize,
}

impl Hostile {
    fn send(&self, kind: u8, descriptors: &[i32]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let control = if descriptors.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ =
            sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(&[kind])], control, flags, None);
    }

    /// Writes a frame at the next place that the honest side reads, with words as its payload.
    fn frame(&mut self, kind: u64, length: u64, payload: &[u64]) {
        let at = RING + self.written % 256 * 64;
        let slots = (24 + length.min(4_072) as usize).div_ceil(64);
        let memory = self.segment.memory();
        for (number, word) in payload.iter().enumerate() {
            memory.word((at + 24 + 8 * number).min(SIZE - 8)).store(*word, Ordering::Relaxed);
        }
        let next = RING + (self.written + slots) % 256 * 64;
        memory.word(next).store(0, Ordering::Relaxed);
        memory.word(at).store(length << 8 | kind, Ordering::Release);
        self.written += slots;
    }

    /// Writes a frame about a run in segment 0.
    fn run(&mut self, chunks: u64, number: u64, [start, length, total]: [u64; 3]) {
        let words = [
            chunks << 16 | 1 << 32,
            number | start << 32,
            start >> 32 | length << 32,
            length >> 32 | total << 32,
            total >> 32,
        ];
        self.frame(2, 36, &words);
    }

    /// Acts as an honest peer would.
    fn behave(&mut self, random: &mut Random) {
        let length = 1 + random.below(POOL as u64);
        match random.below(3) {
            0 => self.frame(1, random.below(41), &[random.next()]),
            1 => self.run(64, random.next() as u32 as u64, [0, length, length]),
            _ => {
                let (number, half) = (random.next() as u32 as u64, length / 2 + 1);
                self.run(64, number, [0, half, 2 * half]);
                self.run(64, number, [half, half, 2 * half]);
            }
        }
    }

    fn lie(&mut self, random: &mut Random) {
        match random.below(7) {
            6 => {
                let size = if random.below(4) == 0 { PAGE } else { LONGER };
                self.send(b'R', &[Segment::create(size).unwrap().descriptor().as_raw_fd()]);
            }
            0 => {
                let at = random.below(SIZE as u64 / 8) as usize * 8;
                self.segment.memory().word(at).store(random.number(), Ordering::Release);
            }
            1 => self.segment.memory().word(64).store(random.number(), Ordering::Release),
            2 => self.frame(random.below(4), random.number() & 0xffff, &[random.next()]),
            3 => {
                let bounds = [random.number(), random.number(), random.number()];
                self.run(random.below(66), random.below(3), bounds);
            }
            4 => {
                let segment =
                    Segment::create(if random.below(2) == 0 { PAGE } else { POOL }).unwrap();
                self.send(b'P', &[segment.descriptor().as_raw_fd()]);
            }
            _ => self.send(random.below(256) as u8, &[]),
        }
    }
}

struct Inbox(usize);

impl MessageReceiver for Inbox {
    fn admits(&mut self, _: Words, length: usize) -> bool {
        length <= POOL
    }

    fn message(&mut self, _: Words, body: Bytes) {
        assert!(body.len() <= POOL);
        self.0 += 1;
    }
}

fn meet(trust: Trust) -> (Hostile, Pair) {
    let kind = SockType::SeqPacket;
    let (a, b) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let pending = PendingPair::send(a, trust, || true).unwrap();
    let segment = Segment::create(SIZE).unwrap();
    segment.memory().word(0).store(u64::from_le_bytes(*b"apusshm3"), Ordering::Release);
    let hostile = Hostile { segment, socket: b, written: 0 };
    hostile.send(b'O', &[hostile.segment.descriptor().as_raw_fd()]);
    let pool = Segment::create(POOL).unwrap();
    hostile.send(b'P', &[pool.descriptor().as_raw_fd()]);
    (hostile, pending.complete().unwrap().unwrap())
}

#[test]
fn a_peer_that_scribbles_ends_its_own_pair_only() {
    let (mut taken, mut closed) = (0, 0);
    for seed in 0..600 {
        let random = &mut Random(seed);
        let trust = if seed % 2 == 0 { Trust::Copy } else { Trust::InPlace };
        let (mut hostile, mut pair) = meet(trust);
        let mut inbox = Inbox(0);
        for _ in 0..200 {
            if random.below(10) > 0 {
                hostile.behave(random);
            } else {
                hostile.lie(random);
            }
            let length = random.below(3) * random.below(70_000);
            let honest = pair
                .send([0, 0], &vec![0; length as usize].into())
                .and_then(|()| pair.receive(&mut inbox, 100))
                .and_then(|_| pair.advance(POOL))
                .and_then(|_| pair.handle_channel());
            pair.prepare_sleep();
            pair.flush();
            pair.disarm_bell();
            if honest.is_err() {
                closed += 1;
                break;
            }
        }
        taken += inbox.0;
    }
    assert!(taken > 500 && closed > 300, "{taken} messages, {closed} pairs: the test tests little");
}
