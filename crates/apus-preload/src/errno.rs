//! The error number of the calling thread.

use libc::c_int;

/// The error number of this thread's last failed call.
pub(crate) fn current() -> c_int {
    // SAFETY: the C library returns a valid address, which belongs to this thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the error number.
pub(crate) fn set(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number }
}

/// Runs `work` and restores the number afterwards.
pub(crate) fn kept<T>(work: impl FnOnce() -> T) -> T {
    let number = current();
    let result = work();
    set(number);
    result
}

/// Does work for a call of the program, which sees errno change only on failure, as with a system call.
#[inline]
pub(crate) fn kept_on_success(work: impl FnOnce() -> isize) -> isize {
    let before = current();
    let result = work();
    if result >= 0 {
        set(before);
    }
    result
}
