//! Two ends of a pair exchange messages.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};

use apus_shm::{MessageReceiver, Pair, PairError, PendingPair, Trust, Words};
use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};

const MIB: usize = 1 << 20;

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn pair(trust: Trust) -> (Pair, Pair) {
    let (a, b) = sockets();
    let a = PendingPair::send(a, trust, || true).unwrap().complete().unwrap().unwrap_err();
    let b = PendingPair::send(b, trust, || true).unwrap().complete().unwrap().unwrap();
    (a.complete().unwrap().unwrap(), b)
}

/// Takes all messages of up to `limit` bytes.
struct Inbox {
    limit: usize,
    messages: VecDeque<(Words, Bytes)>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { limit: usize::MAX, messages: VecDeque::new() }
    }
}

impl MessageReceiver for Inbox {
    fn admits(&mut self, _: Words, length: usize) -> bool {
        length <= self.limit
    }

    fn message(&mut self, words: Words, body: Bytes) {
        self.messages.push_back((words, body));
    }
}

fn body(number: usize, length: usize) -> Bytes {
    let period: Vec<u8> = (0..251).map(|at| (at * 31 + number) as u8).collect();
    let mut body = period.repeat(length / period.len() + 1);
    body.truncate(length);
    body.into()
}

/// Copies and receives until no message is left.
fn settle(from: &mut Pair, to: &mut Pair, inbox: &mut Inbox) {
    loop {
        let more = from.advance(MIB).unwrap();
        let came = to.receive(inbox, usize::MAX).unwrap();
        if !more && came == 0 && !from.is_sending() {
            return;
        }
    }
}

#[test]
fn messages_of_all_lengths_arrive_whole() {
    for trust in [Trust::InPlace, Trust::Copy] {
        let (mut a, mut b) = pair(trust);
        let mut inbox = Inbox::default();
        let powers = (0..=24).map(|power| 1 << power);
        for length in
            powers.flat_map(|length| [length - 1, length, length + 1]).chain([4_072, 4_073])
        {
            a.send([length as u64, 7], &body(1, length)).unwrap();
            settle(&mut a, &mut b, &mut inbox);
            let message = inbox.messages.pop_front();
            assert!(message == Some(([length as u64, 7], body(1, length))), "{length}");
        }
        assert!(a.memory() <= 8 * MIB + 20 * 1024, "the pool is bounded");
    }
}

#[test]
fn messages_in_two_parts_arrive_whole() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let mut inbox = Inbox::default();
    for (first, second) in [
        (0, 0),
        (10, 20),
        (72, 4_000),
        (72, 4_001),
        (100, 100_000),
        (100_000, 100),
        (0, MIB),
        (100, MIB),
        (3 * MIB, 5 * MIB + 1),
    ] {
        let whole = body(1, first + second);
        let words = [first as u64, second as u64];
        a.send_parts(words, [&whole.slice(..first), &whole.slice(first..)]).unwrap();
        settle(&mut a, &mut b, &mut inbox);
        let message = inbox.messages.pop_front();
        assert!(message == Some((words, whole)), "{first} and {second} bytes");
    }
    let whole = body(2, MIB);
    a.send([9, 9], &body(3, 5_000)).unwrap();
    a.send_parts([1, 0], [&whole.slice(..100), &whole.slice(100..)]).unwrap();
    assert_eq!(a.unsent().count(), 2);
    assert!(a.withdraw(&|words| words[0] == 1), "it was not begun");
    settle(&mut a, &mut b, &mut inbox);
    assert_eq!(inbox.messages.drain(..).map(|(words, _)| words[0]).collect::<Vec<_>>(), [9]);
}

#[test]
fn short_messages_arrive_in_their_order_also_when_the_ring_is_full() {
    let (mut a, mut b) = pair(Trust::InPlace);
    for number in 0..10_000 {
        a.send([number, 0], &body(number as usize, number as usize % 300)).unwrap();
    }
    assert!(a.is_sending(), "they do not fit the ring");
    let mut inbox = Inbox::default();
    settle(&mut a, &mut b, &mut inbox);
    for number in 0..10_000 {
        let expected = body(number as usize, number as usize % 300);
        assert_eq!(inbox.messages.pop_front(), Some(([number, 0], expected)));
    }
}

#[test]
fn a_burst_of_short_messages_fits_the_ring_once_it_was_full() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let mut inbox = Inbox::default();
    let before = a.memory();
    let burst = |a: &mut Pair| {
        (0..500).for_each(|number| a.send([number, 0], &body(number as usize, 100)).unwrap());
        a.is_sending()
    };
    assert!(burst(&mut a), "it is longer than the first ring");
    settle(&mut a, &mut b, &mut inbox);
    assert_eq!(a.memory() - before, 64 << 10);
    for _ in 0..10 {
        assert!(!burst(&mut a), "it fits");
        settle(&mut a, &mut b, &mut inbox);
    }
    let arrived = inbox.messages.drain(..).map(|(words, body)| (words[0], body));
    assert!(arrived.eq((0..11 * 500).map(|at| (at % 500, body(at as usize % 500, 100)))));
    // The ring has grown in one direction only.
    b.send([1, 0], &body(1, 100)).unwrap();
    settle(&mut b, &mut a, &mut inbox);
    assert_eq!((inbox.messages.len(), b.memory()), (1, before));
}

#[test]
fn a_short_message_does_not_wait_for_a_long_one() {
    let (mut a, mut b) = pair(Trust::InPlace);
    a.send([1, 0], &body(1, 64 * MIB)).unwrap();
    assert!(a.advance(1).unwrap(), "one step was copied, and more is left");
    a.send([2, 0], &body(2, 100)).unwrap();
    let mut inbox = Inbox::default();
    b.receive(&mut inbox, usize::MAX).unwrap();
    assert_eq!(inbox.messages.pop_front(), Some(([2, 0], body(2, 100))));
    settle(&mut a, &mut b, &mut inbox);
    assert!(inbox.messages.pop_front() == Some(([1, 0], body(1, 64 * MIB))));
}

#[test]
fn of_long_messages_the_shortest_is_first() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let lengths = [3 * MIB, MIB / 2, 20 * MIB, 2 * MIB];
    for (number, length) in (0..).zip(lengths) {
        a.send([number, 0], &body(0, length)).unwrap();
    }
    let mut inbox = Inbox::default();
    settle(&mut a, &mut b, &mut inbox);
    let order: Vec<_> = inbox.messages.iter().map(|(words, _)| words[0]).collect();
    assert_eq!(order, [1, 3, 0, 2]);
}

#[test]
fn bodies_that_are_held_block_nothing() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let mut inbox = Inbox::default();
    for number in 0..100 {
        a.send([number, 0], &body(number as usize, MIB)).unwrap();
        settle(&mut a, &mut b, &mut inbox);
        assert_eq!(inbox.messages.len() as u64, number + 1);
    }
    drop((a, b));
    for (number, (words, held)) in (0..).zip(&inbox.messages) {
        assert!(
            words[0] == number && *held == body(number as usize, MIB),
            "also after the pair's end"
        );
    }
}

/// Each message preempts the previous one, until partly copied messages occupy all memory that the peer does not hold.
#[test]
fn preempted_messages_go_on_when_the_shortest_has_no_room() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let mut inbox = Inbox::default();
    for _ in 0..4 {
        a.send([0, 0], &body(0, MIB)).unwrap();
        settle(&mut a, &mut b, &mut inbox);
    }
    let lengths = [MIB, 980_000, 910_000, 840_000, 770_000];
    for length in lengths {
        a.send([0, 0], &body(0, length)).unwrap();
        a.advance(1).unwrap();
    }
    for _ in 0..100 {
        a.advance(MIB).unwrap();
        b.receive(&mut inbox, usize::MAX).unwrap();
    }
    assert_eq!(inbox.messages.len(), 4 + lengths.len(), "bodies that are held block nothing");
}

#[test]
fn what_is_not_admitted_is_dropped_and_the_rest_goes_on() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let mut inbox = Inbox { limit: MIB / 2, ..Inbox::default() };
    for length in [MIB, 100, 20 * MIB, MIB / 2] {
        a.send([length as u64, 0], &body(0, length)).unwrap();
    }
    settle(&mut a, &mut b, &mut inbox);
    let lengths: Vec<_> = inbox.messages.iter().map(|(_, body)| body.len()).collect();
    assert_eq!(lengths, [100, MIB / 2]);
}

fn is_woken(pair: &Pair) -> bool {
    let mut descriptors = [PollFd::new(pair.descriptor(), PollFlags::POLLIN)];
    poll(&mut descriptors, PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn who_sleeps_is_woken_once_and_who_is_awake_is_not() {
    let (mut a, mut b) = pair(Trust::InPlace);
    a.send([0, 0], &Bytes::new()).unwrap();
    a.flush();
    assert!(!is_woken(&b), "it did not sleep");
    b.receive(&mut Inbox::default(), 1).unwrap();
    b.prepare_sleep();
    assert!(!b.is_ready());
    for _ in 0..2 {
        a.send([0, 0], &Bytes::new()).unwrap();
        a.flush();
    }
    assert!(is_woken(&b) && b.handle_channel().unwrap());
    assert!(!is_woken(&b), "one wake-up for both");
    b.disarm_bell();
    a.send([0, 0], &Bytes::new()).unwrap();
    a.flush();
    assert!(!is_woken(&b));
}

#[test]
fn who_waits_for_room_is_woken_for_room() {
    let (mut a, mut b) = pair(Trust::InPlace);
    let mut inbox = Inbox::default();
    // Bodies in place occupy the pool, and a message waits.
    for _ in 0..4 {
        a.send([0, 0], &body(0, MIB)).unwrap();
        settle(&mut a, &mut b, &mut inbox);
    }
    for _ in 0..5 {
        a.send([0, 0], &body(0, MIB)).unwrap();
        a.advance(MIB).unwrap();
    }
    assert!(a.is_sending());
    a.prepare_sleep();
    assert!(!a.advance(MIB).unwrap() && !is_woken(&a));
    inbox.messages.pop_front();
    assert!(is_woken(&a), "a body was dropped");
    a.disarm_bell();
    settle(&mut a, &mut b, &mut inbox);
    assert_eq!(inbox.messages.len(), 8);
}

#[test]
fn the_end_of_the_peer_is_noticed() {
    let (mut a, b) = pair(Trust::InPlace);
    drop(b);
    assert!(is_woken(&a));
    let PairError::System(error) = a.handle_channel().unwrap_err() else {
        panic!("no other error")
    };
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    a.send([0, 0], &body(0, 100)).unwrap();
    a.flush();
}

#[test]
fn an_offer_of_something_else_is_refused() {
    let (a, b) = sockets();
    let pending = PendingPair::send(a, Trust::Copy, || true).unwrap();
    let file = File::open("/dev/null").unwrap();
    let other = [file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&other)];
    sendmsg::<()>(b.as_raw_fd(), &[IoSlice::new(b"O")], &rights, MsgFlags::empty(), None).unwrap();
    assert!(matches!(pending.complete().unwrap_err(), PairError::Segment(_)));
}

#[test]
fn memory_that_nothing_needs_is_given_up() {
    for trust in [Trust::InPlace, Trust::Copy] {
        let (mut a, mut b) = pair(trust);
        let mut inbox = Inbox::default();
        let small = a.memory();
        for round in 0..300 {
            assert!(!a.has_spare_memory());
            for length in [5_000, 1 << 20, 3 << 20] {
                a.send([round, 0], &body(length, length)).unwrap();
                settle(&mut a, &mut b, &mut inbox);
            }
            a.shrink();
            let held = inbox.messages.iter().any(|(_, body)| body.len() == 1 << 20);
            assert!(a.memory() > small || trust == Trust::Copy || !held, "a body is held");
            for (_, received) in inbox.messages.drain(..) {
                assert_eq!(received, body(received.len(), received.len()));
            }
            a.shrink();
            b.shrink();
            assert_eq!(a.memory(), small);
        }
    }
}
