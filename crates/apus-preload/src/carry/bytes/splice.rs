//! `splice` between a pipe and a carried connection.
//!
//! Bytes are copied, and are removed from the source only after they have reached the destination: `tee` copies the bytes of a
//! pipe, and `MSG_PEEK` those of a connection.

use libc::{c_int, c_short, c_uint, iovec, pollfd, ssize_t};

use super::transfer;
use crate::carry::connection::slots::Use;
use crate::carry::holds::{Hold, RECEIVES, SENDS};
use crate::carry::scratch::Scratch;
use crate::errno;
use crate::originals::own;

/// Bytes of a step: the default capacity of a pipe.
const STEP: usize = 64 << 10;

/// Bytes that a writable pipe accepts without blocking.
const ATOMIC: usize = 4_096;

/// Moves bytes as `splice` does without offsets. Returns `None` if the connection must return and the kernel should handle the
/// call.
#[cold]
pub(crate) fn splice(
    from: c_int,
    to: c_int,
    bytes: usize,
    flags: c_uint,
    original: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    let (used, direction) = match (Use::of(from), Use::of(to)) {
        (Some(used), None) => (used, RECEIVES),
        (None, Some(used)) => (used, SENDS),
        _ => return None,
    };
    if used.side().is_none() {
        return Some(transfer::by_kernel(&used, direction, original));
    }
    if !is_pipe(if direction == RECEIVES { to } else { from }) || bytes == 0 {
        return None;
    }
    let mut room = Scratch::new(STEP)?;
    let part = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: bytes.min(STEP) };
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    Some(errno::kept_on_success(|| {
        if direction == RECEIVES {
            into_pipe(&used, from, to, part, waits)
        } else {
            out_of_pipe(&used, from, to, part, flags)
        }
    }))
}

/// Moves bytes from the connection into the pipe, as far as it has room.
fn into_pipe(used: &Use, from: c_int, to: c_int, part: iovec, waits: bool) -> ssize_t {
    let Some(side) = used.side() else { return failed(libc::EAGAIN) };
    let receive = |part: iovec, flags: c_int| {
        // SAFETY: the part is the caller's memory.
        unsafe { transfer::receive(used, side, from, &raw const part, 1, flags) }
    };
    // As in the kernel, the call waits for bytes first, whatever the pipe's flags.
    let found = receive(part, libc::MSG_PEEK);
    if found <= 0 {
        return found;
    }
    let mut done = 0;
    while done < found as usize {
        let time = if waits && done == 0 && !is_nonblocking(to) { -1 } else { 0 };
        match wait(to, libc::POLLOUT, time) {
            1.. => {}
            0 => break,
            error => return if done > 0 { break } else { error },
        }
        let length = ATOMIC.min(found as usize - done);
        // SAFETY: the part has at least this number of bytes.
        let written = unsafe { own::write(to, part.iov_base.byte_add(done), length) };
        if written < 0 {
            if done == 0 {
                return written;
            }
            break;
        }
        done += written as usize;
    }
    if done == 0 {
        return failed(libc::EAGAIN);
    }
    // These are the same bytes, unless another thread reads the connection too.
    receive(iovec { iov_len: done, ..part }, libc::MSG_DONTWAIT);
    done as ssize_t
}

/// Moves bytes from the pipe into the connection, as far as it has room.
fn out_of_pipe(used: &Use, from: c_int, to: c_int, part: iovec, flags: c_uint) -> ssize_t {
    let Some(side) = used.side() else { return failed(libc::EAGAIN) };
    let Ok((copy, end)) = pipe() else { return failed(libc::ENOMEM) };
    let holds = [copy, end].map(Hold::descriptor);
    // SAFETY: the call takes no pointers. It blocks as `splice` does.
    let found = unsafe { libc::tee(from, end, part.iov_len, flags & libc::SPLICE_F_NONBLOCK) };
    // SAFETY: the buffer has room for this number of bytes.
    let read = unsafe {
        let read = if found > 0 { own::read(copy, part.iov_base, found as usize) } else { found };
        let number = errno::current();
        drop(holds);
        own::close(copy);
        own::close(end);
        errno::set(number);
        read
    };
    if read <= 0 {
        return read;
    }
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    let at_once = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    let part = iovec { iov_len: read as usize, ..part };
    // SAFETY: the part is the caller's memory.
    let sent = unsafe { transfer::send(used, side, to, &raw const part, 1, more | at_once) };
    if sent > 0 {
        // SAFETY: as above. These are the same bytes, unless another thread reads the pipe too.
        let _ = unsafe { own::read(from, part.iov_base, sent as usize) };
    }
    sent
}

fn failed(number: c_int) -> ssize_t {
    errno::set(number);
    -1
}

fn wait(fd: c_int, events: c_short, time: c_int) -> ssize_t {
    let mut member = pollfd { fd, events, revents: 0 };
    // SAFETY: the pointer is to one member.
    unsafe { own::poll(&raw mut member, 1, time) as ssize_t }
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    unsafe { own::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 }
}

/// A pipe for this call, which briefly takes two of the program's descriptor numbers.
fn pipe() -> Result<(c_int, c_int), ()> {
    let mut ends = [0; 2];
    // SAFETY: the buffer has room for both ends.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if result == 0 { Ok((ends[0], ends[1])) } else { Err(()) }
}

fn is_pipe(fd: c_int) -> bool {
    // SAFETY: all zeros are a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has room for the status.
    let result = unsafe { libc::fstat(fd, &raw mut status) };
    result == 0 && status.st_mode & libc::S_IFMT == libc::S_IFIFO
}
