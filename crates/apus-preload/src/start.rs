//! The start and the end of the library.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_char, c_int};

use crate::calls::sanitizers;
use crate::{carry, descriptors, errno, originals, polling, report};

/// The dynamic linker calls this after the constructors of the C library.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Runs last in a process that returns from `main` or calls `exit`.
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
    // SAFETY: the handler is a function of this library, which is never unloaded. If the handler cannot be allocated, a child
    // keeps its parent's table, as a child of vfork does.
    let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before_fork() {
    before_this_thread_forks();
}

/// Runs in the parent before the call returns.
unsafe extern "C" fn in_parent() {
    after_this_thread_forked(false);
}

/// Runs in a child of `fork`, `daemon` or `forkpty` before the call returns.
unsafe extern "C" fn in_child() {
    in_child_of_fork(true);
}

/// Runs before the calling thread forks.
pub(crate) extern "C" fn before_this_thread_forks() {
    if descriptors::belongs_to_this_process() && !HAS_ENDED.load(Ordering::Relaxed) {
        carry::before_fork();
    }
}

/// Runs in the parent after the calling thread forked, or failed to.
pub(crate) fn after_this_thread_forked(failed: bool) {
    if descriptors::belongs_to_this_process() && !HAS_ENDED.load(Ordering::Relaxed) {
        carry::after_fork(failed);
    }
}

/// Runs in a child with a copy of its parent's memory. `may_allocate` is false if a signal handler may have forked.
pub(crate) extern "C" fn in_child_of_fork(may_allocate: bool) {
    if HAS_ENDED.load(Ordering::Relaxed) {
        return;
    }
    descriptors::take_over();
    report::forget();
    carry::begin_in_child(may_allocate);
}

/// Whether the library has shut down.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Runs before the process restricts its system calls. From now on this library makes no system calls but the program's own. All
/// connections are the kernel's, and the library's thread has ended.
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
