//! Calls that receive. A compiler replaces the plain names by those with `_chk` when it knows the size of the buffer.

use std::ffi::c_void;

use libc::{
    c_int, c_uint, cmsghdr, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};

use crate::{carried, carry, descriptors, errno, originals};

/// Exports `preadv2` under all its names.
macro_rules! preadv2_by_names {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int,
        ) -> ssize_t {
            // SAFETY: the caller's arguments are passed through.
            let original = || unsafe { originals::preadv2(fd, parts, count, offset, flags) };
            match vector_flags(fd, count, offset, flags) {
                // SAFETY: the caller passes valid buffers.
                Some(flags) if unsafe { carry::total(parts, count as usize) } > 0 => unsafe {
                    carry::receive(fd, parts, count as usize, flags, original)
                },
                _ => original(),
            }
        }
    )*};
}

preadv2_by_names! { preadv2 preadv64v2 }

/// Maps the flags of a `preadv2` or `pwritev2` call on a carried connection to flags of `recv` and `send`. Returns `None` if the
/// descriptor is not carried or the kernel should refuse the call.
#[inline(always)]
pub(super) fn vector_flags(fd: c_int, count: c_int, offset: off_t, flags: c_int) -> Option<c_int> {
    let is_ours = descriptors::is_ours(fd) && (0..=UIO_MAXIOV).contains(&count);
    match flags {
        _ if !is_ours || offset != -1 => None,
        0 => Some(0),
        libc::RWF_NOWAIT => Some(libc::MSG_DONTWAIT),
        _ => {
            carried::return_to_kernel(fd, "preadv2 or pwritev2 with flags");
            None
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if descriptors::is_ours(fd) && !messages.is_null() {
        // SAFETY: the caller passes valid messages and time.
        return unsafe { receive_messages(fd, messages, count, flags, timeout) };
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::recvmmsg(fd, messages, count, flags, timeout) }
}

/// Receives message by message, as the kernel does. The timeout is checked after each message only.
#[cold]
unsafe fn receive_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    mut flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller guarantees that it is null or points to a time. The kernel refuses an invalid one.
    let Ok(time) = (unsafe { carry::waits::poll::time(timeout) }) else {
        // SAFETY: the caller's arguments are passed through.
        return unsafe { originals::recvmmsg(fd, messages, count, flags, timeout) };
    };
    let until = time.map(|time| carry::Clock::now() + time);
    // As in the kernel, and unlike in other calls, a reset comes before buffered bytes.
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(error) = carry::error_of(fd)
    {
        errno::set(error);
        return -1;
    }
    let is_for_one = flags & libc::MSG_WAITFORONE != 0;
    flags &= !libc::MSG_WAITFORONE;
    let mut done = 0;
    for at in 0..count.min(UIO_MAXIOV as c_uint) {
        // SAFETY: the caller guarantees that many elements.
        let received = unsafe {
            let message = messages.add(at as usize);
            let received = receive_message(fd, &raw mut (*message).msg_hdr, flags);
            if received >= 0 {
                (*message).msg_len = received as c_uint;
            }
            received
        };
        if received < 0 {
            return if done > 0 { done } else { -1 };
        }
        done += 1;
        if is_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        if let Some(until) = until {
            let left = until.saturating_sub(carry::Clock::now());
            // SAFETY: the caller passes a valid time.
            unsafe { *timeout = carry::spec(left) };
            if left.is_zero() {
                break;
            }
        }
    }
    done
}

/// Exports calls that receive into one buffer. `if` is the condition under which the call is carried, `flags` its flags.
macro_rules! into_a_buffer {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $original:ident, flags $flags:expr, if $condition:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *mut c_void, bytes: size_t $(, $argument: $type)*
        ) -> ssize_t {
            if descriptors::is_ours(fd) && $condition(bytes) {
                // SAFETY: the caller passes a valid buffer.
                return unsafe {
                    receive(fd, buffer, bytes, $flags, || originals::$original(fd, buffer, bytes $(, $argument)*))
                };
            }
            // SAFETY: the caller's arguments are passed through.
            unsafe { originals::$original(fd, buffer, bytes $(, $argument)*) }
        }
    )*};
}

into_a_buffer! {
    // The kernel's read of 0 bytes does not touch the file.
    fn read() = read, flags 0, if |bytes| bytes > 0;
    fn __read() = read, flags 0, if |bytes| bytes > 0;
    fn __read_chk(size: size_t) = __read_chk, flags 0, if |bytes| bytes > 0 && bytes <= size;
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
    // SAFETY: guaranteed by the caller.
    unsafe { carry::receive(fd, &raw const part, 1, flags, original) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let may_be = descriptors::is_ours(fd) && (0..=UIO_MAXIOV).contains(&count);
    // SAFETY: the caller passes valid buffers.
    if may_be && unsafe { carry::total(parts, count as usize) } > 0 {
        // SAFETY: as above.
        return unsafe {
            carry::receive(fd, parts, count as usize, 0, || originals::readv(fd, parts, count))
        };
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::readv(fd, parts, count) }
}

/// Upper bound on buffers per call. The kernel refuses more.
pub(super) const UIO_MAXIOV: c_int = 1_024;

/// Exports `recvfrom` under all its names. For a connected socket the address stays unset.
macro_rules! recvfrom_by_names {
    ($(fn $name:ident($($size:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *mut c_void, bytes: size_t $(, $size: size_t)?, flags: c_int,
            from: *mut sockaddr, length: *mut socklen_t,
        ) -> ssize_t {
            // SAFETY: the caller's arguments are passed through.
            let original = || unsafe { originals::$name(fd, buffer, bytes $(, $size)?, flags, from, length) };
            if descriptors::is_ours(fd) $(&& bytes <= $size)? {
                // SAFETY: the caller passes a valid buffer, and `length` is null or points to a length.
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
        // SAFETY: the caller passes a valid message.
        return unsafe { receive_message(fd, message, flags) };
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::recvmsg(fd, message, flags) }
}

/// Writes the control message with the number of unread bytes.
unsafe fn put_rest(message: *mut msghdr, rest: Option<c_int>) {
    // SAFETY: the caller passes a valid message, whose control buffer has the length in the message.
    unsafe {
        let room = (*message).msg_controllen;
        (*message).msg_controllen = 0;
        let Some(rest) = rest else { return };
        let control: *mut cmsghdr = (*message).msg_control.cast();
        let bytes = libc::CMSG_LEN(size_of::<c_int>() as c_uint) as usize;
        if control.is_null() || room < bytes {
            (*message).msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        let header = cmsghdr {
            cmsg_len: bytes as _,
            cmsg_level: libc::IPPROTO_TCP,
            cmsg_type: libc::TCP_INQ, // The kernel calls it TCP_CM_INQ.
        };
        control.write_unaligned(header);
        libc::CMSG_DATA(control).cast::<c_int>().write_unaligned(rest);
        let space = libc::CMSG_SPACE(size_of::<c_int>() as c_uint) as usize;
        (*message).msg_controllen = space.min(room) as _;
    }
}

#[cold]
unsafe fn receive_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller passes a valid message; its fields are read and written as the kernel does.
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
            (*message).msg_flags = 0;
            put_rest(message, carry::rest(fd));
        }
        received
    }
}
