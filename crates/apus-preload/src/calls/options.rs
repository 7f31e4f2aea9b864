//! Options of sockets and requests to devices.

use std::ffi::c_void;

use libc::{c_int, c_ulong, socklen_t};

use crate::descriptors::{self, REPORTED};
use crate::{carried, originals, report};

on_one_descriptor! {
    fn setsockopt(fd, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn ioctl(fd, request: c_ulong, argument: c_ulong) -> c_int;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if descriptors::is_carried(fd) {
        carried::return_to_kernel(fd);
    }
    if tells_the_report(fd, level, name) {
        // SAFETY: these are the caller's arguments.
        return unsafe { and_tell_the_report(fd, level, name, value, length) };
    }
    // SAFETY: as above.
    unsafe { originals::getsockopt(fd, level, name, value, length) }
}

#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn and_tell_the_report(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { originals::getsockopt(fd, level, name, value, length) };
    report::settle(fd);
    result
}

/// A program asks for `SO_ERROR` when its connection is established or has failed, so that the report can learn which.
#[inline(always)]
pub(super) fn tells_the_report(fd: c_int, level: c_int, name: c_int) -> bool {
    descriptors::word(fd) & REPORTED != 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
}
