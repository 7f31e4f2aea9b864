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
    // SAFETY: these are the caller's arguments.
    let result = unsafe { originals::getsockopt(fd, level, name, value, length) };
    after_getsockopt(fd, level, name);
    result
}

/// After `SO_ERROR`: a program asks for it when its connection is established or has failed, so the report learns which.
#[inline(always)]
pub(super) fn after_getsockopt(fd: c_int, level: c_int, name: c_int) {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && descriptors::word(fd) & REPORTED != 0
    {
        report::settle(fd);
    }
}
