//! Calls by which a process restricts the system calls that it may make from then on.
//!
//! A filter that kills at any other call than the program's would kill it for what this library does. So the library finishes first.

use libc::{c_int, c_long, c_uint, c_ulong};

use crate::{originals, start};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    before_prctl(option, [a as c_long, b as c_long]);
    // SAFETY: these are the caller's arguments.
    unsafe { originals::prctl(option, a, b, c, d) }
}

/// Before `prctl`, which may be a bare system call.
#[inline(always)]
pub(super) fn before_prctl(option: c_int, [mode, filter]: [c_long; 2]) {
    let restricts = match mode as c_uint {
        libc::SECCOMP_MODE_STRICT => true,
        // Without a filter the call only asks whether the kernel knows filters.
        libc::SECCOMP_MODE_FILTER => filter != 0,
        _ => false,
    };
    if option == libc::PR_SET_SECCOMP && restricts {
        start::end();
    }
}

/// Before the system call `seccomp`.
#[inline(always)]
pub(super) fn before_seccomp([operation, _, filter]: [c_long; 3]) {
    let restricts = match operation as c_uint {
        libc::SECCOMP_SET_MODE_STRICT => true,
        // As above.
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    };
    if restricts {
        start::end();
    }
}
