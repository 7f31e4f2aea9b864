//! A process that shares memory with an honest one, and writes any value anywhere, between and during the honest one's reads.
#![no_main]

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::thread;

use apus_shm::{MessageReceiver, PAGE, Pair, PendingPair, Segment, Trust, Words};
use bytes::Bytes;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};

/// Bytes of a pair's segment.
const SIZE: usize = 5 * PAGE;
/// Bytes of its ring.
const RING: usize = PAGE;
/// Bytes of a segment of its pool.
const POOL: usize = 1 << 20;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Action {
    /// The hostile process stores a word.
    Store { at: u16, value: u64 },
    /// The hostile process writes a frame at the honest one's read position, like an honest one.
    Frame { kind: u8, length: u16, payload: [u64; 5] },
    /// The hostile process sends a message over the socket, with or without memory.
    Say { kind: u8, memory: Option<bool> },
    /// The honest process sends a message.
    Send { length: u16, times: u8 },
    /// The honest process does a turn, while the hostile one stores words.
    Turn { scribbles: [(u16, u64); 4] },
}

struct Hostile {
    segment: Segment,
    socket: OwnedFd,
    written: usize,
}

impl Hostile {
    fn store(&self, at: u16, value: u64) {
        let at = usize::from(at) * 8 % SIZE;
        self.segment.memory().word(at).store(value, Ordering::Release);
    }

    fn say(&self, kind: u8, descriptors: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let control = if descriptors.is_empty() { &[][..] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // A full socket accepts no more, which harms only the hostile process.
        let _ =
            sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(&[kind])], control, flags, None);
    }

    fn frame(&mut self, kind: u8, length: u16, payload: [u64; 5]) {
        let at = RING + self.written % 256 * 64;
        let slots = (24 + usize::from(length).min(4_072)).div_ceil(64);
        let memory = self.segment.memory();
        for (number, word) in payload.into_iter().enumerate() {
            memory.word((at + 24 + 8 * number).min(SIZE - 8)).store(word, Ordering::Relaxed);
        }
        memory.word(RING + (self.written + slots) % 256 * 64).store(0, Ordering::Relaxed);
        memory.word(at).store(u64::from(length) << 8 | u64::from(kind), Ordering::Release);
        self.written += slots;
    }
}

struct Inbox;

impl MessageReceiver for Inbox {
    fn admits(&mut self, _: Words, length: usize) -> bool {
        length <= POOL
    }

    fn message(&mut self, _: Words, body: Bytes) {
        assert!(body.len() <= POOL);
        assert_eq!(body.iter().count(), body.len(), "every byte is readable");
    }
}

fn meet() -> (Hostile, Pair) {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)
        .expect("descriptors are closed after each run");
    let pending = PendingPair::send(a, Trust::Copy, || true).expect("there is memory");
    let segment = Segment::create(SIZE).expect("there is memory");
    segment.memory().word(0).store(u64::from_le_bytes(*b"apusshm2"), Ordering::Release);
    let hostile = Hostile { segment, socket: b, written: 0 };
    hostile.say(b'O', &[hostile.segment.descriptor().as_raw_fd()]);
    (hostile, pending.complete().expect("an offer").expect("it has come"))
}

fn turn(pair: &mut Pair) -> bool {
    let done = pair
        .receive(&mut Inbox, 100)
        .and_then(|_| pair.advance(POOL))
        .and_then(|_| pair.handle_channel());
    pair.prepare_sleep();
    pair.flush();
    pair.disarm_bell();
    done.is_ok()
}

fuzz_target!(|actions: Vec<Action>| {
    let (mut hostile, mut pair) = meet();
    for action in actions {
        match action {
            Action::Store { at, value } => hostile.store(at, value),
            Action::Frame { kind, length, payload } => hostile.frame(kind, length, payload),
            Action::Say { kind, memory: None } => hostile.say(kind, &[]),
            Action::Say { kind, memory: Some(whole) } => {
                let size = if whole { POOL } else { PAGE };
                let memory = Segment::create(size).expect("there is memory");
                hostile.say(kind, &[memory.descriptor().as_raw_fd()]);
            }
            Action::Send { length, times } => {
                let body = Bytes::from(vec![7; usize::from(length) * usize::from(times).min(32)]);
                if pair.send([0, 0], &body).is_err() {
                    return;
                }
            }
            Action::Turn { scribbles } => {
                let goes_on = thread::scope(|scope| {
                    scope.spawn(|| {
                        scribbles.into_iter().for_each(|(at, value)| hostile.store(at, value))
                    });
                    turn(&mut pair)
                });
                if !goes_on {
                    return;
                }
            }
        }
    }
});
