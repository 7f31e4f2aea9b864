//! All interleavings of the two sides of a direction, within bounds, with the death of either side at each step.

use std::collections::{HashSet, VecDeque};

use super::*;

/// Bytes that the sender writes: byte number `n` has the value `n`.
const BYTES: u8 = 4;
/// Bytes of the ring.
const CAPACITY: usize = 2;
/// How often the receiver offers, and ends what it has offered; how often the sender wishes the end.
const TIMES: u8 = 2;

/// A store that a side is about to make.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Out {
    Data(u64, u8),
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
    sender: Sender,
    sender_words: SenderWords,
    sender_out: VecDeque<Out>,
    sender_lives: bool,
    /// Bytes given to the sender, and those of them whose write has returned.
    written: u8,
    accepted: u8,
    wishes: u8,
    receiver: Receiver,
    receiver_words: ReceiverWords,
    receiver_out: VecDeque<Out>,
    receiver_lives: bool,
    /// Bytes that the receiver has got.
    got: u8,
    offers: u8,
    recalls: u8,
    tcp: Vec<u8>,
    consumed: usize,
    ring: [u8; CAPACITY],
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// One of its stores becomes visible.
    SenderStores,
    Write,
    /// The sender looks, and moves one byte on that it has taken back.
    Answer,
    Wish,
    SenderDies,
    ReceiverStores,
    Read,
    Offer,
    Recall,
    ReceiverDies,
}

const MOVES: [Move; 10] = [
    Move::SenderStores,
    Move::Write,
    Move::Answer,
    Move::Wish,
    Move::SenderDies,
    Move::ReceiverStores,
    Move::Read,
    Move::Offer,
    Move::Recall,
    Move::ReceiverDies,
];

impl Model {
    fn new() -> Self {
        Self {
            sender: Sender::new(CAPACITY as u64),
            sender_words: SenderWords::default(),
            sender_out: VecDeque::new(),
            sender_lives: true,
            written: 0,
            accepted: 0,
            wishes: 0,
            receiver: Receiver::new(CAPACITY as u64),
            receiver_words: ReceiverWords::default(),
            receiver_out: VecDeque::new(),
            receiver_lives: true,
            got: 0,
            offers: 0,
            recalls: 0,
            tcp: Vec::new(),
            consumed: 0,
            ring: [u8::MAX; CAPACITY],
        }
    }

    /// The model after a move, or `None` if the move is not possible.
    fn after(&self, step: Move) -> Option<Self> {
        let mut next = self.clone();
        let sender_acts = self.sender_lives && self.sender_out.is_empty();
        let receiver_acts = self.receiver_lives && self.receiver_out.is_empty();
        let moved = match step {
            Move::SenderStores => next.sender_stores(),
            Move::Write => sender_acts && self.written < BYTES && next.write(),
            Move::Answer => sender_acts && next.answer(),
            Move::Wish => {
                next.sender.wish(&self.receiver_words, &mut next.sender_out);
                next.wishes += 1;
                sender_acts && self.wishes < TIMES
            }
            Move::SenderDies => {
                next.sender_out.clear();
                std::mem::replace(&mut next.sender_lives, false)
            }
            Move::ReceiverStores => next.receiver_stores(),
            Move::Read => receiver_acts && next.read(),
            Move::Offer => {
                next.offers += 1;
                next.receiver.offer(&mut next.receiver_out);
                receiver_acts && self.offers < TIMES
            }
            Move::Recall => {
                next.recalls += 1;
                next.receiver.recall(&mut next.receiver_out);
                receiver_acts && self.recalls < TIMES
            }
            Move::ReceiverDies => {
                next.receiver_out.clear();
                std::mem::replace(&mut next.receiver_lives, false)
            }
        };
        (moved && next != *self).then_some(next)
    }

    fn sender_stores(&mut self) -> bool {
        let Some(out) = self.sender_out.pop_front() else { return false };
        match out {
            Out::Data(position, byte) => self.ring[position as usize % CAPACITY] = byte,
            Out::Sender(word, value) => {
                let words = &mut self.sender_words;
                *match word {
                    SenderWord::Epoch => &mut words.epoch,
                    SenderWord::Offset => &mut words.offset,
                    SenderWord::Written => &mut words.written,
                    SenderWord::Wished => &mut words.wished,
                    SenderWord::Ended => &mut words.ended,
                    SenderWord::End => &mut words.end,
                } = value;
            }
            Out::Receiver(..) => unreachable!("the sender has none"),
        }
        if self.sender_out.is_empty() {
            self.accepted = self.written;
        }
        true
    }

    fn receiver_stores(&mut self) -> bool {
        let Some(Out::Receiver(word, value)) = self.receiver_out.pop_front() else { return false };
        *match word {
            ReceiverWord::Offered => &mut self.receiver_words.offered,
            ReceiverWord::Read => &mut self.receiver_words.read,
            ReceiverWord::Recalled => &mut self.receiver_words.recalled,
        } = value;
        true
    }

    /// The program writes a byte.
    fn write(&mut self) -> bool {
        let theirs = self.receiver_words;
        self.sender.look(&theirs, &mut self.sender_out).unwrap();
        self.sender.switch(&theirs, self.tcp.len() as u64, &mut self.sender_out);
        match self.sender.state() {
            SenderState::Refill { .. } => return false,
            SenderState::Tcp => self.tcp.push(self.written),
            SenderState::Ring if self.sender.room(&theirs).unwrap() == 0 => return false,
            SenderState::Ring => {
                self.sender_out.push_back(Out::Data(self.sender.written(), self.written));
                self.sender.wrote(1, &mut self.sender_out);
            }
        }
        self.written += 1;
        if self.sender_out.is_empty() {
            self.accepted = self.written;
        }
        true
    }

    fn answer(&mut self) -> bool {
        self.sender.look(&self.receiver_words, &mut self.sender_out).unwrap();
        if let SenderState::Refill { from, .. } = self.sender.state()
            && self.sender_out.is_empty()
        {
            self.tcp.push(self.ring[from as usize % CAPACITY]);
            self.sender.refilled(1);
        }
        true
    }

    /// The program reads a byte.
    fn read(&mut self) -> bool {
        if !self.sender_lives {
            self.receiver.sender_died();
        }
        let consumed = self.consumed as u64;
        self.receiver.look(&self.sender_words, || consumed, &mut self.receiver_out).unwrap();
        let byte = match self.receiver.state() {
            ReceiverState::Recalled => None,
            ReceiverState::Ring { .. } => {
                let is_there = self.receiver.readable(&self.sender_words).unwrap() > 0;
                is_there.then(|| {
                    let position = self.receiver.read();
                    self.receiver.took(1, &mut self.receiver_out);
                    self.ring[position as usize % CAPACITY]
                })
            }
            _ => {
                let byte = self.tcp.get(self.consumed).copied();
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

    /// Both sides go on until nothing happens any more: everything that was written arrives.
    fn ends_well(mut self) {
        if !self.receiver_lives {
            if self.sender_lives {
                self.sender.receiver_died(&self.receiver_words);
                self.sender.look(&self.receiver_words, &mut self.sender_out).unwrap();
                assert_eq!(self.sender.state(), SenderState::Tcp);
            }
            return;
        }
        loop {
            let before = self.clone();
            while self.sender_stores() {}
            while self.receiver_stores() {}
            if self.sender_lives {
                self.answer();
                while self.sender_stores() {}
            }
            self.read();
            if self == before {
                break;
            }
        }
        if !self.sender_lives
            && let Some((from, to)) = self.receiver.rest(self.tcp.len() as u64)
        {
            for position in from..to {
                assert_eq!(self.ring[position as usize % CAPACITY], self.got, "{self:#?}");
                self.got += 1;
            }
        }
        assert!(self.got >= self.accepted && self.got <= self.written, "{self:#?}");
        if self.sender_lives {
            assert_ne!(self.receiver.state(), ReceiverState::Recalled);
            assert!(self.sender_words.wished <= self.sender_words.ended, "{self:#?}");
        }
    }
}

#[test]
fn no_byte_is_lost_repeated_or_out_of_order() {
    let mut seen = HashSet::from([Model::new()]);
    let mut new = vec![Model::new()];
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
    assert!(seen.len() > 100_000, "{} states", seen.len());
}
