//! Both ends against each other: a network that reorders, loses calls and responses, and delivers calls late that were given up.

use std::time::Duration;

use apus_proto::Time;
use bytes::Bytes;
use proptest::prelude::*;

use super::answerer::{Answer, Answerer};
use super::caller::{CallBody, Caller};
use super::halves::{Broken, Halves};
use super::message::{FIN, HEADER, OPEN, Reason, SegmentHeader};
use crate::error::CallError;

const WINDOW: u64 = 1_000;
const SEGMENT: usize = 100;
const LOST_AFTER: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(10);

/// A call under way.
struct Flight {
    call: usize,
    segment: Option<u64>,
    body: Bytes,
    /// The failure was reported to the caller.
    failed: bool,
}

struct Pair {
    caller: Caller,
    answerer: Answerer<usize>,
    now: Time,
    calls: Vec<Flight>,
    /// Executed and not answered.
    executed: Vec<Flight>,
    responses: Vec<Flight>,
    made: usize,
}

impl Pair {
    fn new() -> Self {
        let halves = || Halves::new(7, WINDOW, SEGMENT);
        Self {
            caller: Caller::new(halves(), LOST_AFTER),
            answerer: Answerer::new(halves()),
            now: Time::ZERO,
            calls: Vec::new(),
            executed: Vec::new(),
            responses: Vec::new(),
            made: 0,
        }
    }

    /// A pair with an open stream and nothing under way.
    fn open() -> Self {
        let mut pair = Self::new();
        pair.settle();
        assert!(pair.caller.is_open());
        pair
    }

    /// Makes the calls and answers that are due.
    fn send(&mut self) {
        while let Some(CallBody { body, segment }) = self.caller.poll_call(self.now) {
            self.made += 1;
            self.calls.push(Flight { call: self.made, segment, body, failed: false });
        }
        while let Some(Answer { call, body, .. }) = self.answerer.poll_answer() {
            let at = self.executed.iter().position(|flight| flight.call == call).unwrap();
            let flight = self.executed.remove(at);
            self.responses.push(Flight { body, ..flight });
        }
    }

    fn deliver_call(&mut self, at: usize) {
        let flight = self.calls.remove(at);
        let (header, payload) = SegmentHeader::parse(&flight.body).unwrap();
        self.answerer.handle_call(&header, payload, flight.call);
        self.executed.push(flight);
    }

    fn deliver_response(&mut self, at: usize) {
        let flight = self.responses.remove(at);
        if !flight.failed {
            self.caller.handle_response(&flight.body);
        }
    }

    fn fail(caller: &mut Caller, now: Time, flight: &mut Flight) {
        if !std::mem::replace(&mut flight.failed, true) {
            caller.handle_failure(now, flight.segment, CallError::MayHaveExecuted);
        }
    }

    /// Runs until nothing is under way that is not kept. Returns the number of messages.
    fn settle(&mut self) -> usize {
        let mut messages = 0;
        loop {
            self.send();
            if self.calls.is_empty() && self.responses.is_empty() {
                return messages;
            }
            messages += 1;
            if self.calls.is_empty() {
                self.deliver_response(0)
            } else {
                self.deliver_call(0)
            }
            self.now = self.now + STEP;
        }
    }

    fn read(halves: &mut Halves) -> Vec<u8> {
        std::iter::from_fn(|| halves.incoming.take(usize::MAX)).flatten().collect()
    }

    fn at_server(&mut self) -> Vec<u8> {
        Self::read(&mut self.answerer.halves)
    }

    fn at_client(&mut self) -> Vec<u8> {
        Self::read(&mut self.caller.halves)
    }
}

#[test]
fn a_question_is_a_call_and_the_answer_its_response() {
    let mut pair = Pair::open();
    let mut messages = 0;
    for _ in 0..10 {
        pair.caller.halves.outgoing.write(b"question");
        messages += pair.settle();
        assert_eq!(pair.at_server(), b"question");
        pair.answerer.halves.outgoing.write(b"answer");
        messages += pair.settle();
        assert_eq!(pair.at_client(), b"answer");
    }
    assert_eq!(messages, 20);
}

#[test]
fn short_writes_are_gathered_while_calls_are_under_way() {
    let mut pair = Pair::open();
    for _ in 0..50 {
        pair.caller.halves.outgoing.write(b"x");
        pair.send();
    }
    // The one that is kept, two more, and nothing until one of them is answered.
    assert!(pair.calls.len() <= 3, "{} calls", pair.calls.len());
    pair.settle();
    assert_eq!(pair.at_server().len(), 50);
}

#[test]
fn a_long_stream_has_several_calls_under_way() {
    let mut pair = Pair::open();
    assert_eq!(pair.caller.halves.outgoing.write(&[1; 900]), 900);
    pair.send();
    assert_eq!(pair.calls.iter().filter(|flight| flight.body.len() == HEADER + SEGMENT).count(), 9);
    let mut pair = Pair::open();
    assert_eq!(pair.answerer.halves.outgoing.write(&[1; 900]), 900);
    pair.settle();
    assert_eq!(pair.at_client().len(), 900);
    assert!(pair.executed.len() > 2, "more calls wait for what else the peer sends");
}

/// The calls that the peer may keep become fewer with its responses, and it learns of that by later calls only.
#[test]
fn a_short_write_is_sent_although_the_peer_may_keep_all_calls() {
    let mut pair = Pair::open();
    pair.answerer.halves.outgoing.write(&[1; 900]);
    pair.settle();
    assert_eq!(pair.at_client().len(), 900);
    for _ in 0..20 {
        pair.caller.halves.outgoing.write(b"x");
        pair.send();
        pair.answerer.halves.outgoing.write(b"y");
        pair.settle();
        pair.caller.halves.outgoing.write(b"z");
        pair.settle();
        assert_eq!((pair.at_server(), pair.at_client()), (b"xz".to_vec(), b"y".to_vec()));
    }
}

#[test]
fn a_writer_waits_for_the_reader() {
    let mut pair = Pair::open();
    let mut written = 0;
    for _ in 0..30 {
        written += pair.caller.halves.outgoing.write(&[1; 100]);
        pair.settle();
    }
    // One window at the reader, one at the writer.
    assert_eq!(written as u64, 2 * WINDOW);
    assert_eq!(pair.at_server().len() as u64, WINDOW);
    pair.settle();
    assert_eq!(pair.at_server().len() as u64, WINDOW);
    assert!(pair.caller.halves.outgoing.room() > 0);
}

#[test]
fn both_ends_are_done_when_both_halves_have_ended() {
    let mut pair = Pair::open();
    pair.caller.halves.outgoing.write(b"abc");
    pair.caller.halves.outgoing.finish();
    pair.settle();
    assert_eq!(pair.at_server(), b"abc");
    assert!(pair.caller.halves.outgoing.is_complete() && !pair.caller.is_done());
    pair.answerer.halves.outgoing.finish();
    pair.settle();
    assert!(pair.caller.is_done() && pair.answerer.halves.is_over());
    assert!(pair.executed.is_empty(), "no call is kept");
}

#[test]
fn either_end_reports_a_reset_to_the_other() {
    let mut pair = Pair::open();
    pair.answerer.reset(Reason::Dropped);
    pair.settle();
    assert_eq!(pair.caller.halves.broken, Some(Broken::ByPeer(Reason::Dropped)));
    assert!(pair.caller.is_done() && pair.executed.is_empty());
    let mut pair = Pair::open();
    pair.caller.reset(Reason::Dropped);
    pair.settle();
    assert_eq!(pair.answerer.halves.broken, Some(Broken::ByPeer(Reason::Dropped)));
    assert!(pair.caller.is_done() && pair.executed.is_empty());
}

#[test]
fn a_stream_that_is_given_up_while_it_is_opened_is_reset() {
    let mut pair = Pair::new();
    pair.send();
    pair.caller.reset(Reason::Dropped);
    pair.settle();
    assert_eq!(pair.answerer.halves.broken, Some(Broken::ByPeer(Reason::Dropped)));
    assert!(pair.caller.is_done());
}

#[test]
fn a_violation_ends_the_stream_and_is_reported_to_the_peer() {
    let lies = [
        SegmentHeader {
            flags: 0,
            keep: 2,
            reason: None,
            epoch: 0,
            id: 7,
            offset: 5_000,
            received: 0,
            limit: 0,
        },
        SegmentHeader {
            flags: 0,
            keep: 2,
            reason: None,
            epoch: 0,
            id: 7,
            offset: 0,
            received: 1,
            limit: 0,
        },
        SegmentHeader {
            flags: 0,
            keep: 2,
            reason: None,
            epoch: 0,
            id: 8,
            offset: 0,
            received: 0,
            limit: 0,
        },
    ];
    for lie in lies {
        let mut pair = Pair::open();
        pair.answerer.handle_call(&lie, "x".into(), 0);
        assert_eq!(pair.answerer.halves.broken, Some(Broken::ByUs(Reason::Violation)));
        let mut pair = Pair::open();
        pair.caller.handle_response(&[&lie.encode()[..], b"x"].concat().into());
        assert_eq!(pair.caller.halves.broken, Some(Broken::ByUs(Reason::Violation)));
        let reset = pair.caller.poll_call(pair.now).unwrap().body;
        assert_eq!(SegmentHeader::parse(&reset).unwrap().0.reason, Some(Reason::Violation));
    }
}

#[test]
fn calls_that_fail_are_made_again_until_the_peer_counts_as_lost() {
    let mut pair = Pair::open();
    pair.caller.halves.outgoing.write(b"abc");
    let began = pair.now;
    while pair.caller.halves.broken.is_none() {
        pair.send();
        for mut flight in pair.calls.drain(..).chain(pair.executed.drain(..)) {
            Pair::fail(&mut pair.caller, pair.now, &mut flight);
        }
        pair.now = pair.now + STEP;
        assert!(pair.now < began + LOST_AFTER * 2);
    }
    assert!(pair.now >= began + LOST_AFTER);
    assert_eq!(pair.caller.halves.broken, Some(Broken::Failed(CallError::MayHaveExecuted)));
}

#[test]
fn failures_that_will_not_pass_end_the_stream_at_once() {
    let mut pair = Pair::open();
    pair.caller.handle_failure(pair.now, None, CallError::NoSuchPort);
    assert_eq!(pair.caller.halves.broken, Some(Broken::Failed(CallError::NoSuchPort)));
    assert!(pair.caller.is_done());
}

#[test]
fn a_response_that_was_lost_is_asked_for() {
    let mut pair = Pair::open();
    pair.answerer.halves.outgoing.write(b"abc");
    pair.send();
    let mut lost = pair.responses.remove(0);
    Pair::fail(&mut pair.caller, pair.now, &mut lost);
    pair.now = pair.now + STEP;
    pair.send();
    let (header, _) = SegmentHeader::parse(&pair.calls[0].body).unwrap();
    assert!(header.epoch == 1 && !header.has(OPEN) && !header.has(FIN));
    pair.settle();
    assert_eq!(pair.at_client(), b"abc");
}

/// The next event of a run.
#[derive(Clone, Copy, Debug)]
enum Act {
    DeliverCall(usize),
    DeliverResponse(usize),
    LoseCall(usize),
    LoseResponse(usize),
    /// The caller gives a call up that is executed later.
    GiveUpCall(usize),
    WriteAtClient(usize),
    WriteAtServer(usize),
    ReadAtClient(usize),
    ReadAtServer(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0..64_usize).prop_map(Act::DeliverCall),
        6 => (0..64_usize).prop_map(Act::DeliverResponse),
        1 => (0..64_usize).prop_map(Act::LoseCall),
        2 => (0..64_usize).prop_map(Act::LoseResponse),
        2 => (0..64_usize).prop_map(Act::GiveUpCall),
        2 => (1..400_usize).prop_map(Act::WriteAtClient),
        2 => (1..400_usize).prop_map(Act::WriteAtServer),
        2 => (1..400_usize).prop_map(Act::ReadAtClient),
        2 => (1..400_usize).prop_map(Act::ReadAtServer),
    ];
    proptest::collection::vec(act, 0..400)
}

/// Bytes written to one half, and bytes read of it.
#[derive(Default)]
struct Record {
    written: Vec<u8>,
    read: Vec<u8>,
}

impl Record {
    fn write(&mut self, halves: &mut Halves, length: usize) {
        let bytes: Vec<u8> =
            (self.written.len()..).take(length).map(|at| (at % 251) as u8).collect();
        let taken = halves.outgoing.write(&bytes);
        self.written.extend_from_slice(&bytes[..taken]);
    }

    fn read(&mut self, halves: &mut Halves, length: usize) {
        let end = self.read.len().saturating_add(length);
        while let Some(bytes) =
            halves.incoming.take(end - self.read.len()).filter(|it| !it.is_empty())
        {
            self.read.extend(bytes);
        }
        assert!(self.written.starts_with(&self.read));
    }
}

fn act(pair: &mut Pair, act: Act, up: &mut Record, down: &mut Record) {
    let pick = |at: usize, length: usize| at.checked_rem(length);
    match act {
        Act::DeliverCall(at) => {
            if let Some(at) = pick(at, pair.calls.len()) {
                pair.deliver_call(at);
            }
        }
        Act::DeliverResponse(at) => {
            if let Some(at) = pick(at, pair.responses.len()) {
                pair.deliver_response(at);
            }
        }
        Act::LoseCall(at) => {
            if let Some(at) = pick(at, pair.calls.len()) {
                let mut flight = pair.calls.remove(at);
                Pair::fail(&mut pair.caller, pair.now, &mut flight);
            }
        }
        Act::LoseResponse(at) => {
            if let Some(at) = pick(at, pair.responses.len()) {
                let mut flight = pair.responses.remove(at);
                Pair::fail(&mut pair.caller, pair.now, &mut flight);
            }
        }
        Act::GiveUpCall(at) => {
            if let Some(at) = pick(at, pair.calls.len()) {
                Pair::fail(&mut pair.caller, pair.now, &mut pair.calls[at]);
            }
        }
        Act::WriteAtClient(length) => up.write(&mut pair.caller.halves, length),
        Act::WriteAtServer(length) => down.write(&mut pair.answerer.halves, length),
        Act::ReadAtClient(length) => down.read(&mut pair.caller.halves, length),
        Act::ReadAtServer(length) => up.read(&mut pair.answerer.halves, length),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_in_order(plan in acts()) {
        let mut pair = Pair::open();
        let (mut up, mut down) = (Record::default(), Record::default());
        for next in plan {
            pair.send();
            act(&mut pair, next, &mut up, &mut down);
            pair.now = pair.now + STEP / 4;
            prop_assert_eq!(&pair.caller.halves.broken, &None);
            prop_assert_eq!(&pair.answerer.halves.broken, &None);
        }
        for _ in 0..100 {
            pair.settle();
            up.read(&mut pair.answerer.halves, usize::MAX);
            down.read(&mut pair.caller.halves, usize::MAX);
            pair.now = pair.now + STEP;
        }
        prop_assert!(up.read == up.written && down.read == down.written, "nothing waits for more");
        pair.caller.halves.outgoing.finish();
        pair.answerer.halves.outgoing.finish();
        for _ in 0..1_000 {
            pair.settle();
            up.read(&mut pair.answerer.halves, usize::MAX);
            down.read(&mut pair.caller.halves, usize::MAX);
            pair.now = pair.now + STEP;
            if pair.caller.is_done() {
                break;
            }
        }
        prop_assert!(pair.caller.is_done() && pair.answerer.halves.is_over());
        prop_assert!(up.read == up.written && down.read == down.written);
    }

    #[test]
    fn no_message_of_a_peer_takes_more_than_a_window(
        messages in proptest::collection::vec((0..3_000_u64, 0..300_usize, any::<u8>(), 0..3_000_u64), 0..100),
    ) {
        let mut answerer = Answerer::new(Halves::new(7, WINDOW, SEGMENT));
        for (call, (offset, length, flags, received)) in messages.into_iter().enumerate() {
            let flags = flags & (FIN | OPEN);
            let header =
                SegmentHeader { flags, keep: 2, reason: None, epoch: 0, id: 7, offset, received, limit: 3_000 };
            answerer.handle_call(&header, vec![0; length].into(), call);
            while answerer.poll_answer().is_some() {}
            prop_assert!(answerer.halves.incoming.readable() <= WINDOW);
        }
    }
}
