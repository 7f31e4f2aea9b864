//! Calls that receive. Those with `_chk` are what a compiler makes of the plain ones when it knows the size of the buffer.

use std::ffi::c_void;

use libc::{
    c_int, c_uint, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use crate::{carry, descriptors, originals};

on_one_descriptor! {
    fn preadv2(fd, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = preadv2;
    fn recvmmsg(fd, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
}

/// Exports calls that receive into one buffer. `if` says when the call is carried, `flags` which flags it has.
macro_rules! into_a_buffer {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $original:ident, flags $flags:expr, if $condition:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *mut c_void, bytes: size_t $(, $argument: $type)*
        ) -> ssize_t {
            if descriptors::is_ours(fd) && $condition(bytes) {
                // SAFETY: the caller's buffer.
                return unsafe {
                    receive(fd, buffer, bytes, $flags, || originals::$original(fd, buffer, bytes $(, $argument)*))
                };
            }
            // SAFETY: these are the caller's arguments.
            unsafe { originals::$original(fd, buffer, bytes $(, $argument)*) }
        }
    )*};
}

into_a_buffer! {
    fn read() = read, flags 0, if |_| true;
    fn __read() = read, flags 0, if |_| true;
    fn __read_chk(size: size_t) = __read_chk, flags 0, if |bytes| bytes <= size;
    fn recv(flags: c_int) = recv, flags flags, if |_| true;
    fn __recv_chk(size: size_t, flags: c_int) = __recv_chk, flags flags, if |bytes| bytes <= size;
}

#[cold]
unsafe fn receive(
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    flags: c_int,
    original: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let part = iovec { iov_base: buffer, iov_len: bytes };
    // SAFETY: the caller's promise.
    unsafe { carry::receive(fd, &raw const part, 1, flags, original) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if descriptors::is_ours(fd) && (0..=UIO_MAXIOV).contains(&count) {
        // SAFETY: the caller's buffers.
        return unsafe {
            carry::receive(fd, parts, count as usize, 0, || originals::readv(fd, parts, count))
        };
    }
    // SAFETY: these are the caller's arguments.
    unsafe { originals::readv(fd, parts, count) }
}

/// More buffers are an error.
pub(super) const UIO_MAXIOV: c_int = 1_024;

/// Exports `recvfrom` by its names. A connected socket does not say from whom bytes come.
macro_rules! recvfrom_by_names {
    ($(fn $name:ident($($size:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *mut c_void, bytes: size_t $(, $size: size_t)?, flags: c_int,
            from: *mut sockaddr, length: *mut socklen_t,
        ) -> ssize_t {
            // SAFETY: these are the caller's arguments.
            let original = || unsafe { originals::$name(fd, buffer, bytes $(, $size)?, flags, from, length) };
            if descriptors::is_ours(fd) $(&& bytes <= $size)? {
                // SAFETY: the caller's buffer, and the place for the length if there is one.
                return unsafe {
                    let received = receive(fd, buffer, bytes, flags, original);
                    if received >= 0 && !from.is_null() && !length.is_null() {
                        *length = 0;
                    }
                    received
                };
            }
            original()
        }
    )*};
}

recvfrom_by_names! {
    fn recvfrom();
    fn __recvfrom_chk(size);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if descriptors::is_ours(fd) && !message.is_null() {
        // SAFETY: the caller's message.
        return unsafe { receive_message(fd, message, flags) };
    }
    // SAFETY: these are the caller's arguments.
    unsafe { originals::recvmsg(fd, message, flags) }
}

#[cold]
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's message, whose fields are read and written here as the kernel does.
    unsafe {
        let (parts, count) = ((*message).msg_iov, (*message).msg_iovlen);
        let original = || originals::recvmsg(fd, message, flags);
        if count > UIO_MAXIOV as usize {
            return original();
        }
        let mut by_kernel = false;
        let received = carry::receive(fd, parts, count, flags, || {
            by_kernel = true;
            original()
        });
        if received >= 0 && !by_kernel {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = 0;
        }
        received
    }
}
