//! Socket options and device requests.

use std::ffi::c_void;

use libc::{c_int, c_ulong, socklen_t};

use crate::descriptors::{self, REPORTED};
use crate::{carried, carry, originals, report};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments are passed through.
    let original = || unsafe { originals::setsockopt(fd, level, name, value, length) };
    if descriptors::is_ours(fd) && is_served(level, name) {
        let result = carry::changes_options(fd, original);
        carry::wake_waits(fd);
        return result;
    }
    if descriptors::is_ours(fd) && !is_harmless(level, name) {
        carried::return_to_kernel(fd, "setsockopt");
    }
    original()
}

/// Whether calls on a carried connection honour this option.
fn is_served(level: c_int, name: c_int) -> bool {
    let options = [(libc::SOL_SOCKET, libc::SO_RCVLOWAT), (libc::IPPROTO_TCP, libc::TCP_INQ)];
    options.contains(&(level, name))
}

/// Whether a carried connection may have this option: the kernel's socket applies it, and it does not change the path of the
/// bytes.
fn is_harmless(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE
                | libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_SNDBUF
                | libc::SO_RCVBUF
                | libc::SO_LINGER
                | libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_PRIORITY
                | libc::SO_INCOMING_CPU
                | libc::SO_BUSY_POLL
        ),
        libc::IPPROTO_TCP => !matches!(name, libc::TCP_ULP | libc::TCP_REPAIR),
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        _ => false,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    if descriptors::is_ours(fd) && request == libc::FIONBIO as c_ulong {
        // SAFETY: the caller's arguments are passed through.
        return carry::changes_options(fd, || unsafe { originals::ioctl(fd, request, argument) });
    }
    if descriptors::is_carried(fd) {
        // SAFETY: the caller passes valid arguments.
        return unsafe { ioctl_of_carried(fd, request, argument) };
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::ioctl(fd, request, argument) }
}

#[cold]
unsafe fn ioctl_of_carried(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    if !matches!(request, libc::FIONREAD | libc::TIOCOUTQ) {
        carried::return_to_kernel(fd, "ioctl");
    }
    // SAFETY: the caller's arguments are passed through.
    let result = unsafe { originals::ioctl(fd, request, argument) };
    if result == 0 && matches!(request, libc::FIONREAD | libc::TIOCOUTQ) {
        let bytes: *mut c_int = std::ptr::with_exposed_provenance_mut(argument as usize);
        // SAFETY: the kernel has written a number there.
        unsafe { *bytes = (*bytes).saturating_add(carry::in_ring(fd, request == libc::FIONREAD)) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if asks_for_outcome(fd, level, name) {
        // SAFETY: the caller's arguments are passed through.
        return unsafe { and_report_outcome(fd, level, name, value, length) };
    }
    // SAFETY: as above.
    unsafe { originals::getsockopt(fd, level, name, value, length) }
}

#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn and_report_outcome(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let result = unsafe { originals::getsockopt(fd, level, name, value, length) };
    report::settle(fd);
    result
}

/// Whether the program asks for `SO_ERROR`, as it does once its connection is established or has failed. The report learns the
/// outcome from it.
#[inline(always)]
pub(super) fn asks_for_outcome(fd: c_int, level: c_int, name: c_int) -> bool {
    descriptors::word(fd) & REPORTED != 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
}
