//! Calls that receive. Those with `_chk` are what a compiler makes of the plain ones when it knows the size of the buffer.

use std::ffi::c_void;

use libc::{
    c_int, c_uint, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

on_one_descriptor! {
    fn read(fd, buffer: *mut c_void, bytes: size_t) -> ssize_t;
    fn __read(fd, buffer: *mut c_void, bytes: size_t) -> ssize_t = read;
    fn __read_chk(fd, buffer: *mut c_void, bytes: size_t, size: size_t) -> ssize_t;
    fn readv(fd, parts: *const iovec, count: c_int) -> ssize_t;
    fn preadv2(fd, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn preadv64v2(fd, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t = preadv2;
    fn recv(fd, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    fn __recv_chk(fd, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd, buffer: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t,
    ) -> ssize_t;
    fn __recvfrom_chk(
        fd, buffer: *mut c_void, bytes: size_t, size: size_t, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t,
    ) -> ssize_t;
    fn recvmsg(fd, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
}
