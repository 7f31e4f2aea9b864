//! A close while a thread looks a name up. This program has a resolver of its own.

mod nodes;

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use apus_capi::*;
use nodes::{FAULT_AFTER, NO_ADDRESS, Shared, node, succeeds, wait_until};

static BEGUN: AtomicBool = AtomicBool::new(false);
static GOES_ON: AtomicBool = AtomicBool::new(false);

/// Stands in for that of the C library: finds nothing, once the test lets it go on.
#[unsafe(no_mangle)]
extern "C" fn getaddrinfo(
    _name: *const c_char,
    _service: *const c_char,
    _hints: *const c_void,
    _found: *mut *mut c_void,
) -> c_int {
    BEGUN.store(true, Ordering::SeqCst);
    while !GOES_ON.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    -3 // EAI_AGAIN
}

#[test]
fn a_close_does_not_wait_for_a_look_up() {
    let node = Shared(node(&[]));
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut found = NO_ADDRESS;
            // SAFETY: the pointers are valid.
            unsafe { apus_node_resolve(node.get(), c"name.example:4000".as_ptr(), &raw mut found) }
        });
        wait_until("the look-up begins", || BEGUN.load(Ordering::SeqCst));
        // SAFETY: the handle is valid.
        let closing = scope.spawn(|| unsafe { apus_node_close(node.get(), 0) });
        let since = Instant::now();
        while !closing.is_finished() && since.elapsed() < FAULT_AFTER {
            thread::yield_now();
        }
        let is_closed = closing.is_finished();
        GOES_ON.store(true, Ordering::SeqCst);
        assert!(is_closed, "the close waits for the look-up");
        succeeds(closing.join().unwrap());
        assert_eq!(looking.join().unwrap(), apus_error::APUS_ELOOKUP as i32);
    });
    // SAFETY: the handle is valid, and no thread uses it.
    unsafe { apus_node_free(node.get()) };
}
