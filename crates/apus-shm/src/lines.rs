//! Cache lines that a call moves between two cores, counted by a simulation of their caches (MESI) over the accesses that a ring
//! makes to shared memory.
//!
//! The counts of instructions do not show these moves, although they take most of the time of a call: a line from another core takes
//! as long as hundreds of instructions. Words that a process writes count as written, whatever it does with them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Number of a core, 0 or 1.
type Core = usize;

/// Transactions between the cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Moves {
    /// Lines that came from the other core.
    fetched: usize,
    /// Lines that a core had, and that it took from the other core for writing.
    claimed: usize,
}

/// A line in the caches: its holders, and whether there is only one.
#[derive(Clone, Copy, Debug)]
struct Line {
    holders: [bool; 2],
}

/// The caches of two cores, without limits: no line leaves them.
#[derive(Debug, Default)]
struct Caches {
    core: Core,
    lines: HashMap<usize, Line>,
    moves: Moves,
}

thread_local! {
    static CACHES: RefCell<Option<Caches>> = const { RefCell::new(None) };
}

impl Caches {
    fn touch(&mut self, line: usize, writes: bool) {
        let (core, moves) = (self.core, &mut self.moves);
        let Line { holders } = self.lines.entry(line).or_insert_with(|| {
            let mut holders = [false; 2];
            holders[core] = true;
            Line { holders }
        });
        let shared = holders[1 - core];
        if !holders[core] {
            moves.fetched += 1;
        } else if writes && shared {
            moves.claimed += 1;
        }
        holders[core] = true;
        holders[1 - core] = shared && !writes;
    }
}

fn touch(base: *const u8, range: Range<usize>, writes: bool) {
    CACHES.with_borrow_mut(|caches| {
        let (Some(caches), false) = (caches, range.is_empty()) else { return };
        let start = base.addr();
        for line in (start + range.start) / LINE..=(start + range.end - 1) / LINE {
            caches.touch(line, writes);
        }
    });
}

/// Traces a read of bytes of a mapping.
pub(crate) fn read(base: *const u8, range: Range<usize>) {
    touch(base, range, false);
}

/// Traces a write.
pub(crate) fn write(base: *const u8, range: Range<usize>) {
    touch(base, range, true);
}

/// Runs `work` as this core.
fn on<T>(core: Core, work: impl FnOnce() -> T) -> T {
    CACHES.with_borrow_mut(|caches| caches.get_or_insert_default().core = core);
    work()
}

/// Returns the moves since the last call, with the lines as they are.
fn take_moves() -> Moves {
    CACHES.with_borrow_mut(|caches| std::mem::take(&mut caches.get_or_insert_default().moves))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::PAGE;
    use crate::ring::{Consumer, Producer, SLOT};
    use crate::segment::{Memory, PeerSegment, Segment};

    /// Size of the rings: that of a pair.
    const RING: usize = 256 * SLOT;

    /// Body of a call.
    const BODY: [u8; 100] = [7; 100];

    /// One direction: a ring in the segment of the sender, and the receiver's report in that of the receiver.
    struct Direction {
        producer: Producer,
        consumer: Consumer,
        report: Memory,
        reports: PeerSegment,
        received: Vec<u8>,
        ring: PeerSegment,
    }

    impl Direction {
        fn new() -> Self {
            // Both sides by one mapping, so that a line has one address.
            let memory = |size| Segment::create(size).unwrap().into_memory();
            let (ring, report) = (memory(RING), memory(PAGE));
            let (peer, reports) = (ring.as_peer(), report.as_peer());
            Self {
                producer: Producer::new(ring),
                consumer: Consumer::new(peer.clone(), 0, RING),
                report,
                reports,
                received: Vec::new(),
                ring: peer,
            }
        }

        fn send(&mut self) {
            let read = || self.reports.load(0, Ordering::Acquire);
            assert!(self.producer.push(1, [2, 3], &BODY, read).unwrap(), "there is room");
        }

        fn receive(&mut self) {
            let frame = self.consumer.pop().unwrap().expect("a frame was sent");
            self.received.clear();
            self.ring.copy_out(frame.at..frame.at + frame.length, &mut self.received);
            assert_eq!(self.received, BODY);
        }

        fn report(&mut self) {
            self.consumer.report(self.report.word(0));
        }
    }

    const CLIENT: Core = 0;
    const SERVER: Core = 1;

    /// Makes calls, `outstanding` at once. Each side looks at the next slot, whose frame has not been written yet, before every
    /// batch of messages.
    fn calls(requests: &mut Direction, responses: &mut Direction, outstanding: usize) {
        for (way, from, to) in [(requests, CLIENT, SERVER), (responses, SERVER, CLIENT)] {
            on(to, || assert!(!way.consumer.is_ready()));
            on(from, || (0..outstanding).for_each(|_| way.send()));
            on(to, || (0..outstanding).for_each(|_| way.receive()));
            on(to, || way.report());
        }
    }

    /// Returns the fetched and the claimed lines of a call, once every line was used before.
    fn of_a_call(outstanding: usize) -> [f64; 2] {
        let (mut requests, mut responses) = (Direction::new(), Direction::new());
        let laps = 4 * RING / SLOT;
        (0..laps).for_each(|_| calls(&mut requests, &mut responses, outstanding));
        take_moves();
        (0..laps).for_each(|_| calls(&mut requests, &mut responses, outstanding));
        let Moves { fetched, claimed } = take_moves();
        [fetched, claimed].map(|lines| lines as f64 / (laps * outstanding) as f64)
    }

    #[test]
    fn a_core_fetches_what_the_other_has_written_and_claims_what_it_has_read() {
        let line = [0_u8; 3 * LINE];
        let base = line.as_ptr();
        let start = base.align_offset(LINE);
        let at = start..start + 8;
        on(0, || write(base, at.clone()));
        on(0, || read(base, at.clone()));
        assert_eq!(take_moves(), Moves::default(), "it has the line");
        on(1, || read(base, at.clone()));
        on(1, || read(base, at.clone()));
        assert_eq!(take_moves(), Moves { fetched: 1, claimed: 0 });
        on(0, || write(base, at.clone()));
        on(0, || write(base, at.clone()));
        assert_eq!(take_moves(), Moves { fetched: 0, claimed: 1 });
        on(1, || write(base, at.clone()));
        assert_eq!(take_moves(), Moves { fetched: 1, claimed: 0 });
        on(0, || read(base, start..start + LINE + 8));
        assert_eq!(take_moves(), Moves { fetched: 1, claimed: 0 }, "the second line is new");
    }

    /// Two lines of the request and two of the response. Each batch adds the polled line of both rings and, when the writer finds
    /// the ring full, the report of the reader.
    #[test]
    fn calls_in_a_batch_move_their_own_lines_and_a_few_for_the_batch() {
        let for_the_batch = (2.0 + 2.0) / 64.0;
        assert_eq!(of_a_call(64), [4.0 + for_the_batch; 2]);
    }

    /// Beside its four lines, each side polls the line that the next message begins with, so that this one moves twice. A ring of
    /// 256 slots is full after 128 messages.
    #[test]
    fn a_single_call_moves_its_own_lines_and_the_polled_ones() {
        let reports = 2.0 / 128.0;
        assert_eq!(of_a_call(1), [4.0 + 2.0 + reports; 2]);
    }
}
