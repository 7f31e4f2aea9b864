//! The table of states and events (table.txt) says what the code does. `UPDATE_EXPECT=1` writes it anew.

use std::fmt::Write;

use expect_test::expect_file;

use super::*;

/// The words that were stored, in their order.
#[derive(Default)]
struct Stored(String);

impl<W: std::fmt::Debug> Store<W> for Stored {
    fn store(&mut self, word: W, value: u64) {
        write!(self.0, " {word:?}={value}").unwrap();
    }
}

const CAPACITY: u64 = 8;

/// What the other side has said when a state is reached in its first epoch.
const OFFERED: ReceiverWords = ReceiverWords { offered: 1, read: 0, recalled: 0 };
const BEGUN: SenderWords =
    SenderWords { epoch: 1, offset: 100, written: 0, wished: 0, ended: 0, end: 0 };

type SenderEvent = fn(&mut Sender, &mut Stored);
type ReceiverEvent = fn(&mut Receiver, &mut Stored);

fn senders() -> [(&'static str, Sender); 3] {
    let nowhere = &mut Stored::default();
    let tcp = Sender::new(CAPACITY);
    let mut ring = tcp.clone();
    ring.switch(&OFFERED, 100, nowhere);
    ring.wrote(5, nowhere);
    let mut refill = ring.clone();
    refill.look(&ReceiverWords { read: 2, recalled: 1, ..OFFERED }, nowhere).unwrap();
    [("Tcp", tcp), ("Ring, 5 bytes written", ring), ("Refill, 3 bytes", refill)]
}

const SENDER_EVENTS: [(&str, SenderEvent); 8] = [
    ("writes, nothing is offered", |it, out| it.switch(&ReceiverWords::default(), 100, out)),
    ("writes, the next epoch is offered", |it, out| {
        let offered = it.ended + 1;
        it.switch(&ReceiverWords { offered, ..OFFERED }, 100, out);
    }),
    ("sees a recall, all was read", |it, out| recalled(it, it.written, out)),
    ("sees a recall, 2 bytes were read", |it, out| recalled(it, it.written.min(2), out)),
    ("has put 1 byte back into TCP", |it, _| it.refilled(1)),
    ("has put 3 bytes back into TCP", |it, _| it.refilled(3)),
    ("wishes the end", |it, out| it.wish(&OFFERED, out)),
    ("the receiver dies, 2 bytes were read", |it, out| {
        let unread = it.receiver_died(&ReceiverWords { read: 2, ..OFFERED });
        write!(out.0, " {}", if unread { "reset" } else { "end" }).unwrap();
    }),
];

fn recalled(sender: &mut Sender, read: u64, out: &mut Stored) {
    let epoch = sender.ended + 1;
    sender.look(&ReceiverWords { offered: epoch, read, recalled: epoch }, out).unwrap();
}

fn receivers() -> [(&'static str, Receiver); 5] {
    let nowhere = &mut Stored::default();
    let tcp = Receiver::new(CAPACITY);
    let mut offered = tcp.clone();
    offered.offer(nowhere);
    let mut switching = offered.clone();
    switching.look(&BEGUN, || 90, nowhere).unwrap();
    let mut ring = switching.clone();
    ring.look(&BEGUN, || 100, nowhere).unwrap();
    let mut recalled = ring.clone();
    recalled.recall(nowhere);
    let names = ["Tcp", "Offered", "Switching", "Ring", "Recalled"];
    let all = [tcp, offered, switching, ring, recalled];
    let mut all = names.into_iter().zip(all);
    std::array::from_fn(|_| all.next().unwrap())
}

const RECEIVER_EVENTS: [(&str, ReceiverEvent); 8] = [
    ("offers an epoch", |it, out| it.offer(out)),
    ("sees that the epoch has begun, TCP has more", |it, out| look(it, BEGUN, 90, out)),
    ("sees that the epoch has begun, TCP is read", |it, out| look(it, BEGUN, 100, out)),
    ("sees the wish to end it", |it, out| look(it, SenderWords { wished: 1, ..BEGUN }, 90, out)),
    ("recalls", |it, out| it.recall(out)),
    ("sees the answer, 3 bytes follow in TCP", |it, out| {
        look(it, SenderWords { ended: 1, end: 3, ..BEGUN }, 100, out);
    }),
    ("the sender dies before it began the epoch", |it, out| {
        it.sender_died();
        look(it, SenderWords::default(), 100, out);
    }),
    ("the sender dies in the epoch", |it, out| {
        it.sender_died();
        look(it, BEGUN, 100, out);
    }),
];

fn look(receiver: &mut Receiver, theirs: SenderWords, consumed: u64, out: &mut Stored) {
    // A receiver that reads the ring has read TCP up to the offset.
    let consumed =
        if matches!(receiver.state(), ReceiverState::Ring { .. }) { 100 } else { consumed };
    receiver.look(&theirs, || consumed, out).unwrap();
}

#[test]
fn the_table_says_what_the_code_does() {
    let mut table = String::from("# The sender\n");
    for (event, happen) in SENDER_EVENTS {
        writeln!(table, "\n{event}").unwrap();
        for (name, mut sender) in senders() {
            let mut out = Stored::default();
            happen(&mut sender, &mut out);
            writeln!(table, "  {name:<22}| {:<28}|{}", format!("{:?}", sender.state()), out.0)
                .unwrap();
        }
    }
    table.push_str("\n# The receiver\n");
    for (event, happen) in RECEIVER_EVENTS {
        writeln!(table, "\n{event}").unwrap();
        for (name, mut receiver) in receivers() {
            let mut out = Stored::default();
            happen(&mut receiver, &mut out);
            writeln!(table, "  {name:<22}| {:<28}|{}", format!("{:?}", receiver.state()), out.0)
                .unwrap();
        }
    }
    expect_file!["table.txt"].assert_eq(&table);
}

#[test]
fn lies_are_errors() {
    let nowhere = &mut Stored::default();
    let [_, (_, mut ring), _] = senders();
    for (read, recalled) in [(6, 1), (u64::MAX, 1), (0, 2)] {
        let theirs = ReceiverWords { offered: 1, read, recalled };
        assert!(ring.clone().look(&theirs, nowhere).is_err(), "{theirs:?}");
    }
    assert!(ring.room(&ReceiverWords { read: 6, ..OFFERED }).is_err());
    assert!(ring.look(&ReceiverWords { offered: 0, read: 0, recalled: 1 }, nowhere).is_err());
    let [.., (_, ring), (_, mut recalled)] = receivers();
    assert!(ring.readable(&SenderWords { written: CAPACITY + 1, ..BEGUN }).is_err());
    let answer = SenderWords { ended: 1, end: CAPACITY + 1, ..BEGUN };
    assert!(recalled.look(&answer, || 100, nowhere).is_err());
    let [_, (_, mut offered), ..] = receivers();
    assert!(offered.look(&BEGUN, || 101, nowhere).is_err(), "more of TCP was read than there was");
}
