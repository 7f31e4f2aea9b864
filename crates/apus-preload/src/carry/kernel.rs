//! The kernel's state of a TCP connection, and calls that never block.

use std::ffi::c_void;
use std::mem::{self, offset_of};
use std::ptr;
use std::time::Duration;

use libc::{c_int, iovec, msghdr, pollfd, timespec};

use crate::carry::holds;
use crate::errno;
use crate::originals::own as originals;

/// The used part of the kernel's `struct tcp_info`, up to `tcpi_bytes_retrans` (Linux 4.19).
#[repr(C)]
struct TcpInfo {
    state: u8,
    before: [u8; 119],
    bytes_acked: u64,
    bytes_received: u64,
    segments: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
    data_segments: [u32; 2],
    delivery_rate: u64,
    limits: [u64; 3],
    delivered: [u32; 2],
    bytes_sent: u64,
    bytes_retrans: u64,
}

const _: () = assert!(offset_of!(TcpInfo, bytes_acked) == 120);
const _: () = assert!(offset_of!(TcpInfo, bytes_received) == 128);
const _: () = assert!(offset_of!(TcpInfo, bytes_sent) == 200);

fn tcp_info(fd: c_int) -> Option<TcpInfo> {
    // SAFETY: all zeros are a valid value.
    let mut info: TcpInfo = unsafe { mem::zeroed() };
    let mut size = size_of::<TcpInfo>() as libc::socklen_t;
    let value: *mut c_void = (&raw mut info).cast();
    // SAFETY: the value has room for `size` bytes.
    let result = unsafe {
        originals::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, value, &raw mut size)
    };
    (result == 0 && size as usize >= size_of::<TcpInfo>()).then_some(info)
}

/// Bytes of the stream that were written into the socket. Exact while no thread writes. The kernel's count of sent bytes is not
/// exact after retransmissions, which occur even within a host if a peer hardly runs. `accepted` says that this end accepted the
/// connection, so its SYN does not count as a byte.
pub(crate) fn written(fd: c_int, accepted: bool) -> Option<u64> {
    loop {
        let waiting = unacknowledged(fd)?;
        let info = tcp_info(fd)?;
        if unacknowledged(fd)? == waiting {
            return (info.bytes_acked + waiting).checked_sub(u64::from(!accepted));
        }
    }
}

/// Bytes that were written into the socket and not acknowledged.
fn unacknowledged(fd: c_int) -> Option<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one integer.
    let result = unsafe { originals::ioctl(fd, libc::TIOCOUTQ, (&raw mut bytes) as u64) };
    (result == 0).then(|| u64::try_from(bytes).unwrap_or(0))
}

/// States in which the peer has ended its direction: `TIME_WAIT`, `CLOSE`, `CLOSE_WAIT`, `LAST_ACK`, `CLOSING`.
const HAS_ENDED: [u8; 5] = [6, 7, 8, 9, 11];

/// The state of a connection that was reset, or whose directions have both ended.
const CLOSE: u8 = 7;

/// Bytes of the stream that were read from the socket. Exact while no thread reads. `was_reset` says that the peer has reset the
/// connection rather than ended the stream.
pub(crate) fn consumed(fd: c_int, was_reset: bool) -> Option<u64> {
    loop {
        let waiting = unread(fd)?;
        let info = tcp_info(fd)?;
        if unread(fd)? == waiting {
            // The end of the stream counts as a byte.
            let has_end = HAS_ENDED.contains(&info.state) && !(was_reset && info.state == CLOSE);
            let end = u64::from(has_end);
            return info.bytes_received.checked_sub(waiting + end);
        }
    }
}

/// Whether the peer has ended its direction of TCP and all its bytes have arrived.
pub(crate) fn has_ended(fd: c_int) -> bool {
    tcp_info(fd).is_none_or(|info| HAS_ENDED.contains(&info.state))
}

/// States in which this end has ended its direction: `FIN_WAIT1`, `FIN_WAIT2`, `TIME_WAIT`, `CLOSE`, `LAST_ACK`, `CLOSING`.
const HAS_SHUT: [u8; 6] = [4, 5, 6, 7, 9, 11];

/// Whether this end has ended its direction of TCP.
pub(crate) fn has_shut(fd: c_int) -> bool {
    tcp_info(fd).is_some_and(|info| HAS_SHUT.contains(&info.state))
}

/// Sets the low-water mark of a socket: the number of bytes that makes it readable. The kernel makes room for that many.
pub(crate) fn set_least(fd: c_int, bytes: c_int) {
    let value: *const c_void = (&raw const bytes).cast();
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: `size` is the size of the value.
    let _ = unsafe { originals::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, value, size) };
}

/// Takes the error of a socket, which is reported once.
pub(crate) fn take_error(fd: c_int) -> Option<c_int> {
    let (mut error, mut size) = (0, size_of::<c_int>() as libc::socklen_t);
    let value: *mut c_void = (&raw mut error).cast();
    // SAFETY: the buffer has room for the error.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, value, &raw mut size)
    };
    (result == 0 && error != 0).then_some(error)
}

/// Whether the socket has an error. Leaves it there.
pub(crate) fn has_error(fd: c_int) -> bool {
    poll_now(fd, 0) & libc::POLLERR != 0
}

/// Whether the socket has room for writes.
pub(crate) fn has_room(fd: c_int) -> bool {
    poll_now(fd, libc::POLLOUT) & libc::POLLOUT != 0
}

fn poll_now(fd: c_int, events: libc::c_short) -> libc::c_short {
    let mut member = [pollfd { fd, events, revents: 0 }];
    let _ = wait(&mut member, Some(spec(Duration::ZERO)));
    member[0].revents
}

/// Bytes that can be read from the socket.
pub(crate) fn unread(fd: c_int) -> Option<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one integer.
    let result = unsafe { originals::ioctl(fd, libc::FIONREAD, (&raw mut bytes) as u64) };
    (result == 0).then(|| u64::try_from(bytes).unwrap_or(0))
}

/// Whether the program has made the socket non-blocking.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    let flags = unsafe { originals::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Reads without waiting. A call that continues with a [snapshot](holds::is_parents_call) finds nothing, because the parent's call
/// reads.
///
/// # Safety
///
/// The parts are writable.
pub(crate) unsafe fn receive(fd: c_int, parts: &mut [iovec], flags: c_int) -> Result<usize, c_int> {
    if holds::is_parents_call() {
        return Err(libc::EAGAIN);
    }
    let mut message = message(parts);
    // SAFETY: the message is a local variable, and the caller guarantees that its parts are valid.
    number(unsafe { originals::recvmsg(fd, &raw mut message, flags | libc::MSG_DONTWAIT) })
}

/// Whether the stream has ended and all its bytes were read. `Err` has the error number: `EAGAIN` if more may come.
pub(crate) fn peek_end(fd: c_int) -> Result<bool, c_int> {
    let mut byte = 0_u8;
    let mut part = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    // SAFETY: the part points to a local variable.
    unsafe { receive(fd, &mut part, libc::MSG_PEEK) }.map(|bytes| bytes == 0)
}

/// Reads into the first `most` bytes of the parts, without waiting.
///
/// # Safety
///
/// The parts are writable.
pub(crate) unsafe fn receive_at_most(
    fd: c_int,
    parts: &mut [iovec],
    most: usize,
    flags: c_int,
) -> Result<usize, c_int> {
    let mut left = most;
    let mut count = 0;
    let mut cut = None;
    for part in &mut *parts {
        if left == 0 {
            break;
        }
        if part.iov_len > left {
            cut = Some((count, part.iov_len));
            part.iov_len = left;
        }
        left -= part.iov_len;
        count += 1;
    }
    // SAFETY: guaranteed by the caller.
    let received = unsafe { receive(fd, &mut parts[..count], flags) };
    if let Some((index, length)) = cut {
        parts[index].iov_len = length;
    }
    received
}

/// Writes without waiting. A call that continues with a [snapshot](holds::is_parents_call) finds no room, because the parent's call
/// writes.
///
/// # Safety
///
/// The parts are readable.
pub(crate) unsafe fn send(fd: c_int, parts: &mut [iovec], flags: c_int) -> Result<usize, c_int> {
    if holds::is_parents_call() {
        return Err(libc::EAGAIN);
    }
    let message = message(parts);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message is a local variable, and the caller guarantees that its parts are valid.
    number(unsafe { originals::sendmsg(fd, &raw const message, flags) })
}

fn message(parts: &mut [iovec]) -> msghdr {
    // SAFETY: all zeros are a valid value.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

fn number(result: isize) -> Result<usize, c_int> {
    usize::try_from(result).map_err(|_| errno::current())
}

/// Waits until a member is ready or the timeout expires. `Err` has the error number, which may be `EINTR`.
pub(crate) fn wait(members: &mut [pollfd], timeout: Option<timespec>) -> Result<usize, c_int> {
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let (list, count) = (members.as_mut_ptr(), members.len() as libc::c_ulong);
    // SAFETY: the list has `count` members.
    let result = unsafe { originals::ppoll(list, count, timeout, ptr::null()) };
    usize::try_from(result).map_err(|_| errno::current())
}

/// The time as the kernel's type.
pub(crate) fn spec(time: Duration) -> timespec {
    timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() }
}

/// Resets a connection at once.
pub(crate) fn reset(fd: c_int) {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as _, sa_data: [0; 14] };
    // SAFETY: the address is valid.
    let _ = unsafe { originals::connect(fd, &raw const nowhere, size_of_val(&nowhere) as _) };
}

/// Whether closing the socket resets the connection: bytes are unread, or the program asks for a reset.
pub(crate) fn resets_at_close(fd: c_int) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut size = size_of::<libc::linger>() as libc::socklen_t;
    let value: *mut c_void = (&raw mut linger).cast();
    // SAFETY: the value has room for `size` bytes.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, &raw mut size)
    };
    result == 0 && linger.l_onoff != 0 && linger.l_linger == 0 || unread(fd) > Some(0)
}

/// Makes the close of the socket reset the connection.
pub(crate) fn reset_at_close(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    let value: *const c_void = (&raw const linger).cast();
    // SAFETY: `size` is the size of the value.
    let _ = unsafe { originals::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, size) };
}
