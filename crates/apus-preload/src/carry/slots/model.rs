//! The table of connections with threads that use a connection, return it to TCP, close it and make the next one, while the thread of
//! the library meets its peer and frees what nobody uses, in whatever order they run.
//!
//! `RUSTFLAGS="--cfg apus_model" cargo test -p apus-preload --lib --target-dir target/model model`

use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Arc;
use shuttle::{Runner, thread};

use super::*;
use crate::sync::{FREED, IS_MODEL};

/// Two descriptors of a connection; the first is the next connection's as well.
const FD: c_int = 3;
const DUPLICATE: c_int = 4;

/// Sides that were made. Nobody looks into them.
static MADE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The program has closed these descriptors.
static CLOSED: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

fn side() -> Box<Side> {
    let side = Box::into_raw(Box::new(MaybeUninit::<Side>::uninit())).cast::<Side>();
    MADE.lock().unwrap().push(side.expose_provenance());
    // SAFETY: nothing is read of it, and `free` of the model does not drop it.
    unsafe { Box::from_raw(side) }
}

fn is_freed(side: *mut Side) -> bool {
    FREED.lock().unwrap().contains(&side.addr())
}

/// A call of the program.
fn call(fd: c_int) {
    if let Some(used) = Use::of(fd) {
        let side = used.slot.side.load(Ordering::Acquire);
        if side.is_null() {
            used.slot.note_call();
        }
        thread::yield_now();
        assert!(!is_freed(side), "a call uses a side that is freed");
        drop(used);
    }
}

/// As `end` of `carry`.
fn close(fd: c_int) {
    let Some(used) = Use::of(fd) else { return };
    let is_last = begin_to_close(&used);
    if is_last {
        used.slot.holders().remove();
    }
    remove(used, fd, is_last);
    CLOSED.lock().unwrap().push(fd);
}

/// As `return_by` of `carry::returning`.
fn give_back(fd: c_int) {
    let Some(used) = Use::of(fd) else { return };
    if used.slot.side.load(Ordering::Acquire).is_null() || !used.slot.end_carrying() {
        used.slot.give_up();
    }
    used.slot.uncarry();
}

/// A turn of the thread of the library.
fn turn(carried: &mut Vec<&'static Slot>, released: &mut Vec<Released>) {
    for slot in all().filter(|slot| slot.state() == State::Wanted) {
        if !slot.begin_meeting() {
            continue;
        }
        if let Some(held) = slot.hold() {
            thread::yield_now();
            assert!(!CLOSED.lock().unwrap().contains(&held.fd), "a held descriptor is closed");
        }
        if slot.carry(side()) {
            carried.push(slot);
            slot.begin();
        }
    }
    released.extend(carried.iter().filter_map(|slot| slot.release()));
    released.retain(|released| !released.is_over());
    carried.retain(|slot| !slot.reclaim());
    for slot in all().filter(|slot| slot.state() == State::Over) {
        if !carried.iter().any(|known| ptr::eq(*known, slot)) {
            slot.reclaim();
        }
    }
}

fn connections_come_and_go() {
    for list in [&FREED, &MADE] {
        list.lock().unwrap().clear();
    }
    CLOSED.lock().unwrap().clear();
    let is_over = Arc::new(AtomicBool::new(false));
    assert!(add(FD, true, 0));
    let word = descriptors::word(FD);
    descriptors::set(DUPLICATE, word, 0);
    duplicated(DUPLICATE);
    let answering = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let (mut carried, mut released) = (Vec::new(), Vec::new());
            while !is_over.load(Ordering::SeqCst) {
                turn(&mut carried, &mut released);
                thread::yield_now();
            }
            turn(&mut carried, &mut released);
            turn(&mut carried, &mut released);
            assert!(carried.is_empty() && released.is_empty(), "a side is never freed");
        }
    });
    let calls = thread::spawn(|| (0..CALLS + 2).for_each(|_| call(FD)));
    let closes = thread::spawn(|| {
        call(DUPLICATE);
        close(DUPLICATE);
    });
    let returns = thread::spawn(|| {
        call(FD);
        give_back(FD);
    });
    closes.join().unwrap();
    close(FD);
    CLOSED.lock().unwrap().retain(|fd| *fd != FD);
    // The number is used again, while calls of the connection before may not have ended.
    assert!(add(FD, false, 0));
    for _ in 0..CALLS {
        call(FD);
    }
    [calls, returns].into_iter().for_each(|thread| thread.join().unwrap());
    close(FD);
    is_over.store(true, Ordering::SeqCst);
    answering.join().unwrap();

    assert_eq!([FD, DUPLICATE].map(descriptors::word), [0, 0]);
    for slot in &SLOTS {
        assert_eq!(slot.state(), State::Free);
        assert!(!slot.is_used());
    }
    let (mut freed, mut made) = (FREED.lock().unwrap(), MADE.lock().unwrap());
    freed.sort_unstable();
    made.sort_unstable();
    assert_eq!(*freed, *made, "each side is freed once");
    for side in made.drain(..) {
        // SAFETY: it was made by `side`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<MaybeUninit<Side>>(side)) });
    }
}

/// The table is the process's, and one model at a time uses it.
static TURN: Mutex<()> = Mutex::new(());

fn run(scheduler: impl Scheduler + 'static) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    super::super::holders::begin();
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    config.silence_warnings = true; // Values of a model end with it.
    Runner::new(scheduler, config).run(|| {
        IS_MODEL.set(true);
        connections_come_and_go();
        IS_MODEL.set(false);
    });
}

const RUNS: usize = 20_000;

#[test]
fn a_side_is_freed_once_and_not_while_it_is_used() {
    run(RandomScheduler::new(RUNS));
}

#[test]
fn nor_if_threads_stand_still_for_long() {
    run(PctScheduler::new(4, RUNS));
}
