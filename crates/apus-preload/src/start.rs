//! What happens when the library is loaded.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_char, c_int};

use crate::calls::sanitizers;
use crate::{carry, descriptors, errno, originals, polling, report};

/// The dynamic linker calls this after the constructors of the C library.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// The last that a process does which returns from `main` or calls `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    report::print();
    carry::hand_over(|_| true);
}

extern "C" fn start(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    originals::resolve();
    originals::JUMPS.iter().for_each(|jump| _ = jump.get());
    descriptors::take_over();
    report::start();
    polling::begin();
    let is_checked = sanitizers::look_for_races();
    if is_checked {
        report::expect_nothing("ThreadSanitizer cannot see how its bytes order threads");
    }
    carry::begin(!polling::repeats() && !is_checked);
    // SAFETY: the handler is a function of this library, which is never unloaded.
    // Without memory for the handler, a child would keep the words of its parent as a child of vfork does.
    let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before_fork() {
    before_this_thread_forks();
}

/// In the parent, before the call returns.
unsafe extern "C" fn in_parent() {
    after_this_thread_forked(false);
}

/// In a child of `fork`, `daemon` or `forkpty`, before the call returns.
unsafe extern "C" fn in_child() {
    in_child_of_fork(true);
}

/// Before a fork by the calling thread.
pub(crate) extern "C" fn before_this_thread_forks() {
    if descriptors::belongs_to_this_process() && !HAS_ENDED.load(Ordering::Relaxed) {
        carry::before_fork();
    }
}

/// In the parent after a fork by the calling thread, or after its failure.
pub(crate) fn after_this_thread_forked(failed: bool) {
    if descriptors::belongs_to_this_process() && !HAS_ENDED.load(Ordering::Relaxed) {
        carry::after_fork(failed);
    }
}

/// In a child that has a copy of the memory of its parent. `may_allocate`: no handler has forked.
pub(crate) extern "C" fn in_child_of_fork(may_allocate: bool) {
    if HAS_ENDED.load(Ordering::Relaxed) {
        return;
    }
    descriptors::take_over();
    report::forget();
    carry::begin_in_child(may_allocate);
}

/// The library does nothing any more.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Before the process restricts its system calls: from now on this library makes none but the program's own. All connections are the
/// kernel's, and the thread of this library has ended.
#[cold]
pub(crate) extern "C" fn end() {
    // A child of vfork runs in the memory of its parent, which is not restricted.
    if HAS_ENDED.load(Ordering::Relaxed) || !descriptors::belongs_to_this_process() {
        return;
    }
    HAS_ENDED.store(true, Ordering::Relaxed);
    errno::kept(|| {
        carry::finish();
        report::end();
        polling::end();
        descriptors::forget_all();
    });
}
