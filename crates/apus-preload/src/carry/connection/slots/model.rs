//! Threads make calls on a connection while it becomes carried, returns to TCP and is closed, and its slot passes to the next
//! connection. A thread may end within a call. The slots and the records of holds are the real ones.
//!
//! `RUSTFLAGS="--cfg apus_model" cargo test -p apus-preload --lib --target-dir target/model model`

use std::sync::{Once, PoisonError};

use apus_shm::{PeerSegment, Segment};
use apus_sockets::layout;
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::spawn;
use shuttle::{Runner, thread as tasks};

use super::*;
use crate::carry::inner::{self, InnerChannel};
use crate::carry::{connection::holders, sync};

/// Descriptors of the first connection and of the one that gets its slot.
const FDS: [c_int; 2] = [5, 6];

/// A side, and a descriptor that is open while it lives.
fn side(holders: Holders) -> (Box<Side>, c_int) {
    let own = Segment::create_inherited(layout::SIZE).unwrap();
    let peer = PeerSegment::open(own.descriptor(), layout::SIZE).unwrap();
    // Memory stands for the sockets, because a thread of its own would close these.
    let memory = || inner::keep(own.descriptor().try_clone_to_owned().unwrap()).unwrap();
    let (nudge, bell, channel) = (memory(), memory(), memory());
    let open = std::os::fd::AsRawFd::as_raw_fd(&nudge);
    let [bell, channel] = [bell, channel].map(InnerChannel::new);
    let own = own.into_memory();
    (Box::new(Side::new(own, peer, holders, nudge, bell, channel, false)), open)
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Makes calls. Returns early if the thread ends within one.
fn call(open: c_int) {
    for _ in 0..2 {
        let Some(used) = Use::of(FDS[0]) else { continue };
        let steps = thread_rng().gen_range(0..3);
        if used.side().is_some() {
            for _ in 0..=steps {
                assert!(is_open(open), "a call uses a side that was freed");
                tasks::yield_now();
            }
        }
        if steps == 2 && thread_rng().gen_bool(0.3) {
            std::mem::forget(used);
            return sync::end();
        }
    }
}

fn close(fd: c_int) {
    let used = Use::of(fd).expect("the descriptor is open");
    let is_last = begin_to_close(&used);
    remove(used, fd, is_last);
}

/// The answering thread: carries the connection, and frees it once it is over and unused.
fn answer(slot: &'static Slot, side: Box<Side>) {
    if slot.carry(side) {
        slot.begin();
    }
    let (mut released, mut is_free) = (Vec::new(), false);
    while !is_free || !released.is_empty() {
        released.extend(slot.release());
        released.retain(|released: &Released| !released.is_over());
        is_free = is_free || slot.reclaim();
        tasks::yield_now();
    }
}

fn connections_come_and_go() {
    assert!(add(FDS[0], true, 0));
    let slot = slot_of(descriptors::word(FDS[0])).expect("it was added");
    let (side, open) = side(slot.holders());
    assert!(slot.want() && slot.begin_meeting());
    let mut threads: Vec<_> = (0..2).map(|_| spawn(move || call(open))).collect();
    threads.push(spawn(move || {
        answer(slot, side);
        assert!(!is_open(open), "the side was not freed");
    }));
    threads.push(spawn(move || {
        if thread_rng().gen_bool(0.5) && slot.end_carrying() {
            slot.give_up();
            slot.uncarry();
        }
        close(FDS[0]);
        // The next connection may get the same slot.
        assert!(add(FDS[1], true, 0));
        let next = slot_of(descriptors::word(FDS[1])).expect("it was added");
        assert_eq!(next.state(), State::Candidate);
        assert!(next.side().is_none(), "the side of another connection");
        close(FDS[1]);
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(SLOTS[..2].iter().all(|slot| matches!(slot.state(), State::Free | State::Over)));
    holds::forget_all();
    for slot in &SLOTS[..2] {
        while slot.state() != State::Free {
            assert!(slot.reclaim(), "no call uses it");
        }
        slot.holders().remove();
    }
    sync::forget_ended();
}

fn run(scheduler: impl Scheduler + 'static) {
    static BEGUN: Once = Once::new();
    let _table = sync::ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    BEGUN.call_once(holders::begin);
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10; // A side is made on the stack.
    Runner::new(scheduler, config).run(connections_come_and_go);
}

const RUNS: usize = 4_000;

#[test]
fn no_call_uses_a_connection_that_was_freed() {
    run(RandomScheduler::new(RUNS));
}

#[test]
fn nor_one_of_a_thread_that_stands_still_for_long() {
    run(PctScheduler::new(4, RUNS));
}
