//! Calls by which a process restricts its future system calls.
//!
//! A seccomp filter that allows only the program's own calls would kill the process for the calls of this library. So the library
//! shuts down first.

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
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::prctl(option, a, b, c, d) }
}

/// Runs before `prctl`, including `prctl` made through `syscall`.
#[inline(always)]
pub(super) fn before_prctl(option: c_int, [mode, filter]: [c_long; 2]) {
    let restricts = match mode as c_uint {
        libc::SECCOMP_MODE_STRICT => true,
        // Without a filter, the call only probes whether the kernel supports filters.
        libc::SECCOMP_MODE_FILTER => filter != 0,
        _ => false,
    };
    if option == libc::PR_SET_SECCOMP && restricts {
        start::end();
    }
}

/// Runs before the system call `seccomp`.
#[inline(always)]
pub(super) fn before_seccomp([operation, _, filter]: [c_long; 3]) {
    let restricts = match operation as c_uint {
        libc::SECCOMP_SET_MODE_STRICT => true,
        // The same for this call.
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    };
    if restricts {
        start::end();
    }
}
