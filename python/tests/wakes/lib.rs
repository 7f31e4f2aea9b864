//! The descriptor that wakes an event loop.
#![cfg(test)]

#[expect(dead_code, reason = "the native module uses the rest")]
#[path = "../../src/wakes.rs"]
mod wakes;

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wakes::Wakes;

fn is_readable(wakes: &Wakes) -> bool {
    // SAFETY: the descriptor is open as long as `wakes` is.
    let descriptor = unsafe { BorrowedFd::borrow_raw(wakes.descriptor()) };
    let mut all = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut all, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a poll") == 1
}

/// A thread has announced its wake-up and not written yet when the loop reads.
#[test]
fn a_wake_up_that_is_written_late_is_read_later() {
    let wakes = Wakes::new().expect("a descriptor");
    assert!(wakes.announce());
    wakes.begin();
    wakes.write();
    assert!(is_readable(&wakes));
    wakes.begin();
    assert!(!is_readable(&wakes));
    assert!(wakes.announce(), "the next wake-up writes again");
}
