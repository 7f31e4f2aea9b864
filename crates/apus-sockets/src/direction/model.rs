//! All interleavings of the two sides of a direction, within bounds, including the death of either side at each step.
//!
//! Within a host, a side sees the present words of the other. Between hosts it sees the words, and the ring, of some earlier
//! moment, and TCP brings bytes at any time. A second test covers that: stored words become visible by moves of their own.

use std::collections::{HashSet, VecDeque};

use super::*;

/// Bounds of a test.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Bounds {
    /// Number of bytes that the sender writes: byte number `n` has the value `n`.
    bytes: u8,
    /// Number of times that the receiver offers, that it ends its offers, and that the sender spills.
    times: u8,
    /// Number of times that a process of a side dies and another one of the side continues.
    takeovers: u8,
    /// Whether a side sees an earlier state of the other.
    lags: bool,
    /// Whether a call, while an epoch is offered, reads only those bytes of TCP that were there before it checked that the epoch
    /// had not begun.
    counts: bool,
}

/// Size of the ring in bytes.
const CAPACITY: usize = 2;
/// A store that a side is about to make.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Out {
    Data(u64, u8),
    /// With the previous store, the byte belongs to the receiver.
    Accepted,
    Sender(SenderWord, u64),
    Receiver(ReceiverWord, u64),
}

impl Store<SenderWord> for VecDeque<Out> {
    fn store(&mut self, word: SenderWord, value: u64) {
        self.push_back(Out::Sender(word, value));
    }
}

impl Store<ReceiverWord> for VecDeque<Out> {
    fn store(&mut self, word: ReceiverWord, value: u64) {
        self.push_back(Out::Receiver(word, value));
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Model {
    bounds: Bounds,
    /// The sender as the receiver sees it.
    shown_sender: SenderSnapshot,
    /// The words of the receiver as the sender sees them.
    shown_receiver: ReceiverWords,
    /// Number of bytes that TCP has brought.
    arrived: usize,
    sender_words: SenderWords,
    sender_out: VecDeque<Out>,
    sender_is_alive: bool,
    /// Number of bytes given to the sender.
    written: u8,
    /// Number of those bytes whose write has returned.
    accepted: u8,
    /// Number of times that a process of a side died and another one of the side continued.
    takeovers: u8,
    spills: u8,
    receiver_words: ReceiverWords,
    receiver_out: VecDeque<Out>,
    receiver_is_alive: bool,
    /// Number of bytes that the receiver has got.
    got: u8,
    /// A call that reads TCP while an epoch is offered.
    reading: Option<Reading>,
    offers: u8,
    recalls: u8,
    /// Whether the receiver's program continues without this library, and reads TCP.
    has_left: bool,
    tcp: Vec<u8>,
    consumed: usize,
    ring: [u8; CAPACITY],
}

/// Progress of a call that reads TCP while an epoch is offered: the sender continues between its steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reading {
    /// The call has checked that the epoch had not begun.
    Looked,
    /// The call has asked for the number of bytes in TCP.
    Counted(usize),
    /// The call has checked once more that the epoch had not begun.
    LookedAgain(usize),
}

/// The sender at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SenderSnapshot {
    words: SenderWords,
    ring: [u8; CAPACITY],
    is_alive: bool,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// The receiver sees the present sender.
    ShowSender,
    /// The sender sees the present receiver.
    ShowReceiver,
    /// TCP brings a byte.
    Arrive,
    /// One of the side's stores becomes visible.
    SenderStores,
    Write,
    /// The sender looks, and moves one byte that it has taken back into TCP.
    Answer,
    Spill,
    SenderDies,
    /// The process that acts for the sender dies in the middle of an action. The sender has others.
    SenderTakesOver,
    ReceiverStores,
    Read,
    /// The call that reads TCP while an epoch is offered continues.
    ReadOn,
    Offer,
    Recall,
    /// The receiver sees an empty ring after its recall, or the answer.
    Leave,
    ReceiverDies,
    ReceiverTakesOver,
}

const MOVES: [Move; 17] = [
    Move::ShowSender,
    Move::ShowReceiver,
    Move::Arrive,
    Move::SenderStores,
    Move::Write,
    Move::Answer,
    Move::Spill,
    Move::SenderDies,
    Move::SenderTakesOver,
    Move::ReceiverStores,
    Move::Read,
    Move::ReadOn,
    Move::Offer,
    Move::Recall,
    Move::Leave,
    Move::ReceiverDies,
    Move::ReceiverTakesOver,
];

impl Model {
    fn new(bounds: Bounds) -> Self {
        let ring = [u8::MAX; CAPACITY];
        Self {
            bounds,
            shown_sender: SenderSnapshot { words: SenderWords::default(), ring, is_alive: true },
            shown_receiver: ReceiverWords::default(),
            arrived: 0,
            sender_words: SenderWords::default(),
            sender_out: VecDeque::new(),
            sender_is_alive: true,
            written: 0,
            accepted: 0,
            takeovers: 0,
            spills: 0,
            receiver_words: ReceiverWords::default(),
            receiver_out: VecDeque::new(),
            receiver_is_alive: true,
            got: 0,
            reading: None,
            offers: 0,
            recalls: 0,
            has_left: false,
            tcp: Vec::new(),
            consumed: 0,
            ring,
        }
    }

    /// Makes all stores visible.
    fn show_all(&mut self) {
        self.show_sender();
        self.shown_receiver = self.receiver_words;
        self.arrived = self.tcp.len();
    }

    fn show_sender(&mut self) {
        let (words, ring, is_alive) = (self.sender_words, self.ring, self.sender_is_alive);
        self.shown_sender = SenderSnapshot { words, ring, is_alive };
    }

    /// Returns the model after a move, or `None` if the move is impossible.
    fn after(&self, step: Move) -> Option<Self> {
        let mut next = self.clone();
        let sender_acts = self.sender_is_alive && self.sender_out.is_empty();
        let receiver_acts = self.receiver_is_alive
            && self.receiver_out.is_empty()
            && self.reading.is_none()
            && !self.has_left;
        let bounds = self.bounds;
        let moved = match step {
            Move::ShowSender => {
                next.show_sender();
                bounds.lags
            }
            Move::ShowReceiver => {
                next.shown_receiver = self.receiver_words;
                bounds.lags
            }
            Move::Arrive => {
                next.arrived += 1;
                bounds.lags && self.arrived < self.tcp.len()
            }
            Move::SenderStores => next.sender_stores(),
            Move::Write => sender_acts && self.written < bounds.bytes && next.write(),
            Move::Answer => sender_acts && next.answer(),
            Move::Spill => sender_acts && self.spills < bounds.times && next.spill(),
            Move::SenderDies => {
                next.sender_out.clear();
                std::mem::replace(&mut next.sender_is_alive, false)
            }
            Move::SenderTakesOver => {
                next.takeovers += 1;
                next.written -= u8::from(self.sender_out.contains(&Out::Accepted));
                next.sender_out.clear();
                self.sender_is_alive
                    && !self.sender_out.is_empty()
                    && self.takeovers < bounds.takeovers
            }
            Move::ReceiverStores => next.receiver_stores(),
            Move::Read => (receiver_acts || self.has_left && self.receiver_is_alive) && next.read(),
            Move::ReadOn => self.receiver_out.is_empty() && next.read_on(),
            Move::Offer => {
                next.offers += 1;
                next.receiver().offer(&self.shown_sender.words, &mut next.receiver_out);
                receiver_acts && self.offers < bounds.times
            }
            Move::Recall => {
                next.recalls += 1;
                next.receiver().recall(&self.shown_sender.words, &mut next.receiver_out);
                receiver_acts && self.recalls < bounds.times
            }
            Move::Leave => receiver_acts && self.sender_is_alive && next.leave(),
            Move::ReceiverDies => {
                next.receiver_out.clear();
                next.reading = None;
                std::mem::replace(&mut next.receiver_is_alive, false)
            }
            Move::ReceiverTakesOver => next.receiver_takes_over(),
        };
        if !bounds.lags {
            next.show_all();
        }
        (moved && next != *self).then_some(next)
    }

    fn spill(&mut self) -> bool {
        self.spills += 1;
        let (theirs, mut sender) = (self.shown_receiver, self.sender());
        sender.look(&theirs, &mut self.sender_out).unwrap();
        sender.spill(&mut self.sender_out);
        // Between hosts, TCP may bring bytes before the receiver sees that an epoch has begun.
        !self.bounds.lags
    }

    fn leave(&mut self) -> bool {
        let offers = self.receiver_words.offered > self.receiver_words.recalled;
        let (theirs, shown) = (&self.sender_words, &self.shown_sender.words);
        let receiver = self.receiver();
        // Between hosts, a side sees an earlier state, so the receiver waits for the answer.
        let may = match self.bounds.lags {
            true => receiver.state(shown) == ReceiverState::Tcp && receiver.may_leave(shown),
            false => receiver.may_leave(theirs),
        };
        self.has_left = true;
        !offers && may
    }

    /// A byte that was copied out belongs to the process that died, unless that process reported it as read.
    fn receiver_takes_over(&mut self) -> bool {
        let is_possible = self.receiver_is_alive
            && (!self.receiver_out.is_empty() || self.reading.is_some())
            && self.takeovers < self.bounds.takeovers;
        self.takeovers += 1;
        let read = Out::Receiver(ReceiverWord::Read, self.receiver_words.read + 1);
        self.got -= u8::from(self.receiver_out.contains(&read));
        self.receiver_out.clear();
        self.reading = None;
        is_possible
    }

    fn sender(&self) -> Sender {
        Sender::new(self.sender_words, CAPACITY as u64)
    }

    fn receiver(&self) -> Receiver {
        Receiver::new(self.receiver_words, CAPACITY as u64, self.shown_sender.is_alive)
    }

    fn sender_stores(&mut self) -> bool {
        let Some(out) = self.sender_out.pop_front() else { return false };
        match out {
            Out::Data(position, byte) => self.ring[position as usize % CAPACITY] = byte,
            Out::Accepted => unreachable!("it goes with the word before"),
            Out::Sender(word, value) => {
                let words = &mut self.sender_words;
                *match word {
                    SenderWord::Epoch => &mut words.epoch,
                    SenderWord::Offset => &mut words.offset,
                    SenderWord::Written => &mut words.written,
                    SenderWord::Ended => &mut words.ended,
                    SenderWord::End => &mut words.end,
                    SenderWord::Refilled => &mut words.refilled,
                } = value;
            }
            Out::Receiver(..) => unreachable!("the sender has none"),
        }
        if self.sender_out.front() == Some(&Out::Accepted) {
            self.sender_out.pop_front();
            // The sender checks for a recall before the write returns. A write that it takes back returns once it is in TCP.
            let seen = if self.bounds.lags { self.shown_receiver } else { self.receiver_words };
            if seen.recalled <= self.sender_words.last_ended() {
                self.accepted = self.written;
            }
        }
        true
    }

    fn receiver_stores(&mut self) -> bool {
        let Some(Out::Receiver(word, value)) = self.receiver_out.pop_front() else { return false };
        *match word {
            ReceiverWord::Offered => &mut self.receiver_words.offered,
            ReceiverWord::Read => &mut self.receiver_words.read,
            ReceiverWord::Recalled => &mut self.receiver_words.recalled,
            ReceiverWord::Drained => &mut self.receiver_words.drained,
        } = value;
        true
    }

    /// Makes the program write a byte.
    fn write(&mut self) -> bool {
        let (theirs, total) = (self.shown_receiver, self.tcp.len() as u64);
        let mut sender = self.sender();
        sender.look(&theirs, &mut self.sender_out).unwrap();
        sender.switch(&theirs, || total, &mut self.sender_out);
        match sender.state() {
            SenderState::Tcp if self.sender_out.is_empty() => {
                self.tcp.push(self.written);
                self.accepted = self.written + 1;
            }
            SenderState::Ring if sender.room(&theirs).unwrap() > 0 => {
                self.sender_out.push_back(Out::Data(sender.written(), self.written));
                sender.wrote(1, &mut self.sender_out);
                self.sender_out.push_back(Out::Accepted);
            }
            _ => return true, // The sender looked.
        }
        self.written += 1;
        true
    }

    fn answer(&mut self) -> bool {
        let (theirs, total) = (self.shown_receiver, self.tcp.len() as u64);
        let mut sender = self.sender();
        sender.look(&theirs, &mut self.sender_out).unwrap();
        if sender.state() == SenderState::Refill && self.sender_out.is_empty() {
            let left = sender.refill(&theirs, total, &mut self.sender_out).unwrap();
            match left.into_iter().next() {
                Some(position) => self.tcp.push(self.ring[position as usize % CAPACITY]),
                None => self.accepted = self.written,
            }
        }
        true
    }

    /// Makes the program read a byte.
    fn read(&mut self) -> bool {
        if self.has_left {
            if let Some(byte) = self.tcp[..self.arrived].get(self.consumed).copied() {
                self.consumed += 1;
                assert_eq!(byte, self.got, "{self:#?}");
                self.got += 1;
            }
            return true;
        }
        let (theirs, consumed) = (self.shown_sender.words, self.consumed as u64);
        let mut receiver = self.receiver();
        receiver.look(&theirs, || consumed, &mut self.receiver_out).unwrap();
        let byte = match receiver.state(&theirs) {
            ReceiverState::Recalled => None,
            ReceiverState::Ring if receiver.readable(&theirs).unwrap() == 0 => None,
            ReceiverState::Ring => {
                let position = receiver.read();
                receiver.took(1, &mut self.receiver_out);
                Some(self.shown_sender.ring[position as usize % CAPACITY])
            }
            ReceiverState::Offered if !self.bounds.lags => {
                self.reading = Some(Reading::Looked);
                None
            }
            _ => {
                let byte = self.tcp[..self.arrived].get(self.consumed).copied();
                self.consumed += usize::from(byte.is_some());
                byte
            }
        };
        if let Some(byte) = byte {
            assert_eq!(byte, self.got, "{self:#?}");
            self.got += 1;
        }
        true
    }

    /// Takes the next step of a call that reads TCP while an epoch is offered, as `receive_before_epoch` of the preloaded library
    /// does.
    fn read_on(&mut self) -> bool {
        let theirs = self.shown_sender.words;
        let is_offered = || self.receiver().state(&theirs) == ReceiverState::Offered;
        self.reading = match self.reading {
            None => return false,
            Some(Reading::Looked) => Some(Reading::Counted(self.tcp.len() - self.consumed)),
            Some(Reading::Counted(there)) => is_offered().then_some(Reading::LookedAgain(there)),
            Some(Reading::LookedAgain(there)) => {
                let most = if self.bounds.counts { there } else { self.tcp.len() - self.consumed };
                for _ in 0..most {
                    assert_eq!(self.tcp[self.consumed], self.got, "{self:#?}");
                    self.consumed += 1;
                    self.got += 1;
                }
                None
            }
        };
        true
    }

    /// Lets both sides continue until nothing more happens, and checks that all written bytes arrive.
    fn ends_well(mut self) {
        if !self.receiver_is_alive {
            // The loss is known.
            while self.sender_stores() {}
            let arrived = self.tcp.len() + usize::from(self.sender().loses(&self.receiver_words));
            assert!(self.got >= self.accepted || arrived > self.consumed, "{self:#?}");
            return;
        }
        loop {
            let before = self.clone();
            while self.sender_stores() {}
            while self.receiver_stores() {}
            self.show_all();
            if self.sender_is_alive {
                self.answer();
                while self.sender_stores() {}
            }
            self.show_all();
            while self.read_on() {}
            self.read();
            while self.read_on() {}
            if self == before {
                break;
            }
        }
        if !self.sender_is_alive && !self.has_left {
            let rest = self.receiver().rest(&self.sender_words, self.tcp.len() as u64).unwrap();
            for position in rest {
                assert_eq!(self.ring[position as usize % CAPACITY], self.got, "{self:#?}");
                self.got += 1;
            }
        }
        assert!(self.got >= self.accepted && self.got <= self.written, "{self:#?}");
        if self.sender_is_alive {
            assert_ne!(self.receiver().state(&self.sender_words), ReceiverState::Recalled);
        }
    }
}

/// Tries all moves. Returns the number of states.
fn all_states(bounds: Bounds) -> usize {
    let mut seen = HashSet::from([Model::new(bounds)]);
    let mut new = vec![Model::new(bounds)];
    while let Some(model) = new.pop() {
        for step in MOVES {
            if let Some(next) = model.after(step)
                && seen.insert(next.clone())
            {
                new.push(next);
            }
        }
        model.ends_well();
    }
    println!("{} states", seen.len());
    seen.len()
}

/// Without optimization, the tests take ten times as long.
const IS_SLOW: bool = cfg!(debug_assertions);

#[test]
fn no_byte_is_lost_repeated_or_out_of_order() {
    let (bytes, takeovers) = if IS_SLOW { (3, 1) } else { (5, 2) };
    let states = all_states(Bounds { bytes, times: 2, takeovers, lags: false, counts: true });
    assert!(states > 100_000);
}

#[test]
fn nor_if_each_side_sees_the_other_one_as_it_was() {
    let (bytes, times) = if IS_SLOW { (2, 2) } else { (3, 2) };
    let states = all_states(Bounds { bytes, times, takeovers: 0, lags: true, counts: true });
    assert!(states > 10_000);
}

/// Later bytes may belong behind the ring.
#[test]
#[should_panic(expected = "left == right")]
fn bytes_of_tcp_behind_the_ring_come_first_to_a_call_that_does_not_count() {
    all_states(Bounds { bytes: 3, times: 2, takeovers: 0, lags: false, counts: false });
}
