//! The table of states and events (table.txt) equals the behaviour of the code. `UPDATE_EXPECT=1` rewrites it.

use std::fmt::Write;

use expect_test::expect_file;

use super::*;

/// The stored words, in order.
#[derive(Default)]
struct Stored(String);

impl<W: std::fmt::Debug> Store<W> for Stored {
    fn store(&mut self, word: W, value: u64) {
        write!(self.0, " {word:?}={value}").unwrap();
    }
}

const CAPACITY: u64 = 8;

/// The words of the other side in the first epoch.
const OFFERED: ReceiverWords = ReceiverWords { offered: 1, read: 0, recalled: 0, drained: 0 };
const RECALLED: ReceiverWords = ReceiverWords { offered: 1, read: 2, recalled: 1, drained: 1 };
const NOT_BEGUN: SenderWords =
    SenderWords { epoch: 0, offset: 0, written: 0, ended: 0, end: 0, refilled: 0 };
const BEGUN: SenderWords = SenderWords { epoch: 1, offset: 100, ..NOT_BEGUN };

type SenderEvent = fn(&mut Sender, &mut Stored);
type ReceiverEvent = fn(&mut Receiver, &mut SenderWords, &mut Stored);

fn senders() -> [(&'static str, Sender); 4] {
    let sender = |words| Sender::new(words, CAPACITY);
    [
        ("Tcp", sender(NOT_BEGUN)),
        ("Ring, 5 bytes written", sender(SenderWords { written: 5, ..BEGUN })),
        ("Refill, 3 bytes", sender(SenderWords { written: 5, ended: 2, end: 5, ..BEGUN })),
        ("Tcp, 5 bytes spilled", sender(SenderWords { written: 5, ended: 3, end: 5, ..BEGUN })),
    ]
}

const SENDER_EVENTS: [(&str, SenderEvent); 7] = [
    ("writes, nothing is offered", |it, out| it.switch(&ReceiverWords::default(), || 100, out)),
    ("writes, the next epoch is offered", |it, out| {
        let offered = it.ended() + 1;
        it.switch(&ReceiverWords { offered, ..OFFERED }, || 100, out);
    }),
    ("sees a recall", |it, out| {
        let epoch = it.ended() + 1;
        it.look(&ReceiverWords { offered: epoch, recalled: epoch, ..RECALLED }, out).unwrap();
    }),
    ("has put 1 byte back into TCP", |it, out| refill(it, 101, out)),
    ("has put all 3 bytes back into TCP", |it, out| refill(it, 103, out)),
    ("spills", |it, out| it.spill(out)),
    ("the receiver dies, 2 bytes were read", |it, out| {
        let loses = it.loses(&ReceiverWords { read: 2, ..OFFERED });
        out.0.push_str(if loses { " reset" } else { " end" });
    }),
];

fn refill(sender: &mut Sender, total: u64, out: &mut Stored) {
    if sender.state() == SenderState::Refill {
        let left = sender.refill(&RECALLED, total, out).unwrap();
        write!(out.0, " left={}", left.end - left.start).unwrap();
    }
}

fn receivers() -> [(&'static str, Receiver, SenderWords); 5] {
    let receiver = |words| Receiver::new(words, CAPACITY, true);
    [
        ("Tcp", receiver(ReceiverWords::default()), NOT_BEGUN),
        ("Offered", receiver(OFFERED), NOT_BEGUN),
        ("Switching", receiver(OFFERED), BEGUN),
        ("Ring", receiver(ReceiverWords { drained: 1, ..OFFERED }), BEGUN),
        ("Recalled", receiver(RECALLED), BEGUN),
    ]
}

const RECEIVER_EVENTS: [(&str, ReceiverEvent); 9] = [
    ("offers an epoch", |it, theirs, out| it.offer(theirs, out)),
    ("sees that the epoch has begun, TCP has more", |it, theirs, out| begun(it, theirs, 90, out)),
    ("sees that the epoch has begun, TCP is read", |it, theirs, out| begun(it, theirs, 100, out)),
    ("sees that the sender has spilled 5 bytes", |it, theirs, out| {
        if theirs.epoch == 1 {
            (theirs.ended, theirs.written, theirs.end) = (3, 5, 5);
        }
        it.look(theirs, || 90, out).unwrap();
    }),
    ("sees the same, and has read them", |it, theirs, out| {
        if theirs.epoch == 1 {
            (theirs.ended, theirs.written, theirs.end) = (3, 5, 5);
            it.words.read = 5;
        }
        it.look(theirs, || 100, out).unwrap();
    }),
    ("recalls", |it, theirs, out| it.recall(theirs, out)),
    ("sees the answer", |it, theirs, out| {
        if it.words.recalled == 1 {
            (theirs.ended, theirs.end) = (2, 5);
        }
        it.look(theirs, || 100, out).unwrap();
    }),
    ("the sender dies, TCP has more", |it, theirs, out| {
        it.sender_is_alive = false;
        it.look(theirs, || 90, out).unwrap();
    }),
    ("the sender dies, TCP is read", |it, theirs, out| {
        it.sender_is_alive = false;
        it.look(theirs, || 100, out).unwrap();
    }),
];

fn begun(receiver: &mut Receiver, theirs: &mut SenderWords, consumed: u64, out: &mut Stored) {
    if receiver.words.offered == 1 {
        *theirs = BEGUN;
    }
    receiver.look(theirs, || consumed, out).unwrap();
}

#[test]
fn the_table_says_what_the_code_does() {
    let mut table = String::from("# The sender\n");
    for (event, happen) in SENDER_EVENTS {
        writeln!(table, "\n{event}").unwrap();
        for (name, mut sender) in senders() {
            let mut out = Stored::default();
            happen(&mut sender, &mut out);
            writeln!(table, "  {name:<22}| {:<10}|{}", format!("{:?}", sender.state()), out.0)
                .unwrap();
        }
    }
    table.push_str("\n# The receiver\n");
    for (event, happen) in RECEIVER_EVENTS {
        writeln!(table, "\n{event}").unwrap();
        for (name, mut receiver, mut theirs) in receivers() {
            let mut out = Stored::default();
            happen(&mut receiver, &mut theirs, &mut out);
            writeln!(
                table,
                "  {name:<22}| {:<10}|{}",
                format!("{:?}", receiver.state(&theirs)),
                out.0
            )
            .unwrap();
        }
    }
    expect_file!["table.txt"].assert_eq(&table);
}

#[test]
fn a_dead_sender_leaves_what_it_did_not_put_into_tcp() {
    let [.., (_, recalled, _)] = receivers();
    let dead = SenderWords { ended: 2, end: recalled.read() + 5, ..BEGUN };
    assert_eq!(recalled.rest(&dead, BEGUN.offset + 2).unwrap().count(), 3);
    let on_its_way = SenderWords { refilled: 1, ..dead };
    assert_eq!(recalled.rest(&on_its_way, BEGUN.offset + 2).unwrap().count(), 0);
}

#[test]
fn lies_are_errors() {
    let nowhere = &mut Stored::default();
    let [_, (_, mut ring), (_, mut refill), _] = senders();
    for (read, recalled) in [(6, 1), (u64::MAX, 1), (0, 2)] {
        let theirs = ReceiverWords { read, recalled, ..OFFERED };
        assert!(ring.look(&theirs, nowhere).is_err(), "{theirs:?}");
    }
    assert!(ring.room(&ReceiverWords { read: 6, ..OFFERED }).is_err());
    assert!(ring.look(&ReceiverWords { offered: 0, ..RECALLED }, nowhere).is_err());
    assert!(refill.refill(&ReceiverWords { read: 6, ..RECALLED }, 100, nowhere).is_err());
    let [_, (_, mut offered, _), _, (_, reading, _), (_, recalled, _)] = receivers();
    assert!(reading.readable(&SenderWords { written: CAPACITY + 1, ..BEGUN }).is_err());
    assert!(recalled.rest(&SenderWords { ended: 2, end: 1, ..BEGUN }, 100).is_err());
    for theirs in [SenderWords { epoch: 2, ..BEGUN }, SenderWords { ended: 4, ..BEGUN }] {
        assert!(offered.look(&theirs, || 100, nowhere).is_err(), "{theirs:?}");
    }
    assert!(offered.look(&BEGUN, || 101, nowhere).is_err(), "more of TCP was read than there was");
}
