//! Calls that send.

use std::ffi::c_void;
use std::{ptr, slice};

use libc::{
    c_char, c_int, c_uint, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
};

use super::receive::{UIO_MAXIOV, vector_flags};
use crate::originals::{self, VaList};
use crate::{carried, carry, descriptors};

on_one_descriptor! {
    // The C library writes these by internal calls, which bypass this library.
    fn vdprintf(fd, format: *const c_char, arguments: VaList) -> c_int;
    fn __vdprintf_chk(fd, flag: c_int, format: *const c_char, arguments: VaList) -> c_int;
}

/// Exports `pwritev2` under all its names.
macro_rules! pwritev2_by_names {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int,
        ) -> ssize_t {
            // SAFETY: the caller's arguments are passed through.
            let original = || unsafe { originals::pwritev2(fd, parts, count, offset, flags) };
            match vector_flags(fd, count, offset, flags) {
                // SAFETY: the caller passes valid buffers.
                Some(flags) if unsafe { carry::total(parts, count as usize) } > 0 => unsafe {
                    carry::send(fd, parts, count as usize, flags, original)
                },
                _ => original(),
            }
        }
    )*};
}

pwritev2_by_names! { pwritev2 pwritev64v2 }

/// Exports calls that send one buffer. `flags` are the flags of the call.
macro_rules! from_a_buffer {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $original:ident, flags $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *const c_void, bytes: size_t $(, $argument: $type)*
        ) -> ssize_t {
            if descriptors::is_ours(fd) {
                // SAFETY: the caller passes a valid buffer.
                return unsafe {
                    send_buffer(fd, buffer, bytes, $flags, || originals::$original(fd, buffer, bytes $(, $argument)*))
                };
            }
            // SAFETY: the caller's arguments are passed through.
            unsafe { originals::$original(fd, buffer, bytes $(, $argument)*) }
        }
    )*};
}

from_a_buffer! {
    fn write() = write, flags 0;
    fn __write() = write, flags 0;
    fn send(flags: c_int) = send, flags flags;
    fn __send(flags: c_int) = send, flags flags;
    fn sendto(flags: c_int, to: *const sockaddr, length: socklen_t) = sendto, flags flags; // A connected socket ignores the address.
}

#[cold]
unsafe fn send_buffer(
    fd: c_int,
    buffer: *const c_void,
    bytes: usize,
    flags: c_int,
    original: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let part = iovec { iov_base: buffer.cast_mut(), iov_len: bytes };
    // SAFETY: guaranteed by the caller.
    unsafe { carry::send(fd, &raw const part, 1, flags, original) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let may_be = descriptors::is_ours(fd) && (0..=UIO_MAXIOV).contains(&count);
    // A write of an empty list does not touch the file in the kernel.
    // SAFETY: the caller passes valid buffers.
    if may_be && unsafe { carry::total(parts, count as usize) } > 0 {
        // SAFETY: as above.
        return unsafe {
            carry::send(fd, parts, count as usize, 0, || originals::writev(fd, parts, count))
        };
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::writev(fd, parts, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller passes a valid message.
    unsafe { before_sendmsg(fd, message) };
    // SAFETY: the caller's arguments are passed through.
    let original = || unsafe { originals::sendmsg(fd, message, flags) };
    if descriptors::is_ours(fd) && !message.is_null() {
        // SAFETY: the caller passes a valid message.
        return unsafe { send_message(fd, message, flags, original) };
    }
    original()
}

#[cold]
unsafe fn send_message(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    original: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller passes a valid message.
    let (parts, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    if count > UIO_MAXIOV as usize {
        return original();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { carry::send(fd, parts, count, flags, original) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller passes valid messages.
    unsafe { before_sendmmsg(fd, messages, count) };
    if descriptors::is_ours(fd) && !messages.is_null() {
        // SAFETY: as above.
        return unsafe { send_messages(fd, messages, count, flags) };
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::sendmmsg(fd, messages, count, flags) }
}

/// Sends message by message, as the kernel does, until a message is not sent in full.
#[cold]
unsafe fn send_messages(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut done = 0;
    for at in 0..count.min(UIO_MAXIOV as c_uint) {
        // SAFETY: the caller guarantees that many elements, whose parts are valid buffers.
        let (sent, bytes) = unsafe {
            let message = messages.add(at as usize);
            let header = &raw const (*message).msg_hdr;
            let original = || originals::sendmsg(fd, header, flags);
            let sent = send_message(fd, header, flags, original);
            if sent >= 0 {
                (*message).msg_len = sent as c_uint;
            }
            (sent, carry::total((*header).msg_iov, (*header).msg_iovlen))
        };
        if sent < 0 {
            return if done > 0 { done } else { -1 };
        }
        done += 1;
        if (sent as usize) < bytes {
            break;
        }
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments are passed through.
    let original = || unsafe { originals::sendfile(to, from, offset, bytes) };
    if descriptors::is_ours(to) && !descriptors::is_ours(from) {
        // SAFETY: as above.
        if let Some(sent) = unsafe { carry::sendfile(to, from, offset, bytes, original) } {
            return sent;
        }
    }
    before_two(to, from);
    original()
}

/// `sendfile` under its large-file name. Offsets have 64 bits either way.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments are passed through.
    unsafe { sendfile(to, from, offset, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's arguments are passed through.
    let original = || unsafe { originals::splice(from, from_offset, to, to_offset, bytes, flags) };
    let is_one_ours = descriptors::is_ours(from) != descriptors::is_ours(to);
    if is_one_ours
        && from_offset.is_null()
        && to_offset.is_null()
        && let Some(result) = carry::splice(from, to, bytes, flags, original)
    {
        return result;
    }
    before_two(to, from);
    original()
}

/// Runs before a call that moves bytes between two descriptors within the kernel.
#[inline(always)]
pub(super) fn before_two(one: c_int, other: c_int) {
    for fd in [one, other] {
        if descriptors::is_ours(fd) {
            carried::return_to_kernel(fd, "sendfile from a source that is not a file, or splice");
        }
    }
}

/// Runs before a message is sent on a carried descriptor, or with carried descriptors in it, whose receiver gets the kernel's
/// socket.
///
/// # Safety
/// The message is a valid argument of `sendmsg`.
#[inline(always)]
pub(super) unsafe fn before_sendmsg(fd: c_int, message: *const msghdr) {
    if descriptors::any_used() {
        // SAFETY: guaranteed by the caller.
        unsafe { return_with_message(fd, message) };
    }
}

/// Like [`before_sendmsg`], for several messages.
///
/// # Safety
/// The messages are valid arguments of `sendmmsg`.
#[inline(always)]
pub(super) unsafe fn before_sendmmsg(fd: c_int, messages: *const mmsghdr, count: c_uint) {
    if descriptors::any_used() {
        for at in 0..count as usize {
            // SAFETY: the caller guarantees that many elements.
            unsafe { return_with_message(fd, &raw const (*messages.add(at)).msg_hdr) };
        }
    }
}

#[cold]
unsafe extern "C" fn return_with_message(fd: c_int, message: *const msghdr) {
    // SAFETY: the caller's message is valid or null, and so are its control messages.
    unsafe {
        if message.is_null() || (*message).msg_control.is_null() {
            return;
        }
        if descriptors::is_ours(fd) {
            carried::return_to_kernel(fd, "sendmsg with control data");
        }
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            if (*control).cmsg_level == libc::SOL_SOCKET && (*control).cmsg_type == libc::SCM_RIGHTS
            {
                return_passed(control);
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
}

/// Returns to TCP every carried descriptor that a control message passes to another process.
unsafe fn return_passed(control: *const libc::cmsghdr) {
    // SAFETY: a control message states its length, and its data follows it.
    let (data, bytes) = unsafe {
        let data = libc::CMSG_DATA(control);
        (data, (*control).cmsg_len.saturating_sub(data.offset_from(control.cast()) as usize))
    };
    // SAFETY: as above; bytes need no alignment.
    let data = unsafe { slice::from_raw_parts(data, bytes) };
    for fd in data.chunks_exact(size_of::<c_int>()) {
        // SAFETY: a chunk has the size of a descriptor.
        let fd = unsafe { ptr::read_unaligned(fd.as_ptr().cast()) };
        if descriptors::is_ours(fd) {
            carried::give_away(fd, "sendmsg, which passed it to another process");
        } else if let Some(set) = carry::sets::table::Set::of(fd) {
            carry::sets::giving_up::give_up(set);
        } else {
            carried::passed_on(fd);
        }
    }
}
