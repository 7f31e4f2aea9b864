//! `sendfile` into a carried connection: reads the file, and writes it into the ring.

use libc::{c_int, iovec, off_t, ssize_t};

use super::transfer;
use crate::carry::connection::slots::Use;
use crate::carry::holds::SENDS;
use crate::carry::scratch::Scratch;
use crate::errno;
use crate::originals::own;

/// Bytes that are read at a time. They are not on the stack, which may be small.
const STEP: usize = 16 << 10;

/// Sends as `sendfile` does. Returns `None` if the connection must return and the kernel should handle the call.
///
/// # Safety
///
/// The offset is null or writable.
#[cold]
pub(crate) unsafe fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    bytes: usize,
    original: impl FnOnce() -> ssize_t,
) -> Option<ssize_t> {
    let used = Use::of(to)?;
    let Some(side) = used.side() else { return Some(transfer::by_kernel(&used, SENDS, original)) };
    // SAFETY: guaranteed by the caller.
    let given = unsafe { offset.as_mut() };
    let start = given.as_ref().map_or_else(|| position(from), |offset| **offset);
    if start < 0 || !is_file(from) {
        return None;
    }
    let mut scratch = Scratch::new(STEP)?;
    let buffer = scratch.as_mut_ptr();
    let mut done = 0;
    let mut result = 0;
    while done < bytes {
        let room = STEP.min(bytes - done);
        // SAFETY: the buffer has `room` bytes.
        let read = unsafe { own::pread(from, buffer.cast(), room, start + done as off_t) };
        if read <= 0 {
            result = read;
            break;
        }
        let part = iovec { iov_base: buffer.cast(), iov_len: read as usize };
        // SAFETY: the part is a local variable.
        result = unsafe { transfer::send(&used, side, to, &raw const part, 1, 0) };
        done += usize::try_from(result).unwrap_or(0);
        if result < read {
            break;
        }
    }
    let end = start + done as off_t;
    match given {
        Some(offset) => *offset = end,
        // SAFETY: the call takes no pointers.
        None => errno::kept(|| unsafe { _ = own::lseek(from, end, libc::SEEK_SET) }),
    }
    Some(if done > 0 { done as ssize_t } else { result })
}

fn position(fd: c_int) -> off_t {
    // SAFETY: the call takes no pointers.
    unsafe { own::lseek(fd, 0, libc::SEEK_CUR) }
}

fn is_file(fd: c_int) -> bool {
    // SAFETY: all zeros are a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has room for the status.
    let result = unsafe { libc::fstat(fd, &raw mut status) };
    result == 0 && status.st_mode & libc::S_IFMT == libc::S_IFREG
}
