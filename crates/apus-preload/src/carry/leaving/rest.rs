//! What a peer has left in its ring before it closed the connection or ended: nobody can put it into TCP.
//!
//! This process reads it from the ring. Whoever gets the socket without this library would not: a program that this process becomes, a
//! process to which it is passed, the C library after `fdopen`. Therefore the socket becomes one end of a new connection, over the
//! loopback interface, whose other end has written those bytes and is closed. All that is left to happen to the socket happens to that
//! one in the same way, but its addresses are others.

use std::mem;
use std::time::Duration;

use libc::{c_int, c_void, iovec, pollfd, sockaddr, sockaddr_in, socklen_t};

use crate::carry::bytes::transfer;
use crate::carry::connection::side::Side;
use crate::carry::connection::slots::{self, Use};
use crate::carry::kernel;
use crate::carry::scratch::Scratch;
use crate::descriptors;
use crate::errno;
use crate::originals::own;

/// A socket holds so many bytes that nobody has read, whatever the system's settings.
const MOST: usize = 128 << 10;

/// Connections of strangers that come in between are refused.
const STRANGERS_MAX: c_int = 16;

/// The kernel connects two sockets of one process at once, unless strangers have filled the queue of the one that listens.
const CONNECTS_WITHIN: Duration = Duration::from_millis(100);

/// Before a descriptor is given away: its socket has all that is left of the stream. False if it cannot be done.
#[cold]
pub(super) fn put_into_socket(fd: c_int) -> bool {
    errno::kept(|| {
        let Some(used) = Use::of(fd) else { return false };
        let Some(side) = used.side() else { return false };
        let is_shared = side.is_shared();
        let bytes = if is_shared { copy_all(&used, side, fd) } else { take_all(&used, side, fd) };
        let Some(bytes) = bytes else { return false };
        let Some(new) = filled(&bytes) else {
            if !is_shared {
                kernel::reset(fd); // As bytes are lost.
            }
            return false;
        };
        if side.has_shut() {
            // SAFETY: the call has no pointers.
            let _ = unsafe { own::shutdown(new.0, libc::SHUT_WR) };
        }
        let slot = used.slot;
        drop(used);
        let is_its = |fd: &c_int| {
            slots::slot_of(descriptors::word(*fd)).is_some_and(|it| std::ptr::eq(it, slot))
        };
        for its in descriptors::used_in(0..=u32::MAX).filter(is_its) {
            replace(its, new.0);
        }
        true
    })
}

/// Bytes in memory of this library.
struct Bytes {
    room: Scratch,
    count: usize,
}

/// How many bytes are left of a stream. `None` if that is more than a socket holds.
fn count_all(side: &Side, fd: c_int) -> Option<usize> {
    let all = side.unread() as usize + kernel::unread(fd)? as usize + side.rest(fd).len();
    Some(all).filter(|all| *all <= MOST)
}

/// The same bytes, which stay where they are: another process has the connection as well, and it may be the one that reads them.
fn copy_all(used: &Use, side: &Side, fd: c_int) -> Option<Bytes> {
    let all = count_all(side, fd)?;
    let mut room = Scratch::new(MOST)?;
    let rest = side.rest(fd);
    let base = room.as_mut_ptr();
    let part = iovec { iov_base: base.cast(), iov_len: all - rest.len() };
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let mut count = 0;
    if part.iov_len > 0 {
        // SAFETY: the part is within the memory.
        let got = unsafe { transfer::receive(used, side, fd, &raw const part, 1, flags) };
        count = usize::try_from(got).unwrap_or(0);
    }
    // SAFETY: there is room for all bytes.
    unsafe { side.copy_rest(&rest, base.wrapping_add(count)) };
    count += rest.len();
    Some(Bytes { room, count }).filter(|bytes| bytes.count == all)
}

/// Takes all that is left of a stream. `None` if that is more than a socket holds.
fn take_all(used: &Use, side: &Side, fd: c_int) -> Option<Bytes> {
    count_all(side, fd)?;
    let mut room = Scratch::new(MOST)?;
    let mut count = 0;
    loop {
        let base = room.as_mut_ptr().wrapping_add(count);
        let part = iovec { iov_base: base.cast(), iov_len: MOST - count };
        // SAFETY: the part is within the memory.
        let got =
            unsafe { transfer::receive(used, side, fd, &raw const part, 1, libc::MSG_DONTWAIT) };
        match usize::try_from(got) {
            Ok(got) if got > 0 => count += got,
            _ => return Some(Bytes { room, count }),
        }
    }
}

/// A descriptor of this call.
struct Own(c_int);

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this call's. It is a new socket, whose close does not wait.
        let _ = unsafe { own::close(self.0) };
    }
}

/// A socket that has these bytes, and then the end.
fn filled(bytes: &Bytes) -> Option<Own> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let socket = |flags| {
        // SAFETY: the call has no pointers.
        let fd = unsafe { own::socket(libc::AF_INET, kind | flags, 0) };
        (fd >= 0).then_some(Own(fd))
    };
    let (listener, writer) = (socket(libc::SOCK_NONBLOCK)?, socket(0)?);
    // SAFETY: zero is a value of each field.
    let mut at: sockaddr_in = unsafe { mem::zeroed() };
    at.sin_family = libc::AF_INET as _;
    at.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    let size = size_of::<sockaddr_in>() as socklen_t;
    let room = 2 * MOST as c_int;
    // SAFETY: the addresses and the number live here.
    unsafe {
        let address: *const sockaddr = (&raw const at).cast();
        let value: *const c_void = (&raw const room).cast();
        let length = size_of::<c_int>() as socklen_t;
        own::setsockopt(writer.0, libc::SOL_SOCKET, libc::SO_SNDBUF, value, length);
        let time = libc::timeval { tv_sec: 0, tv_usec: CONNECTS_WITHIN.subsec_micros().into() };
        let (value, length) = ((&raw const time).cast(), size_of_val(&time) as socklen_t);
        own::setsockopt(writer.0, libc::SOL_SOCKET, libc::SO_SNDTIMEO, value, length); // Of `connect` too.
        if own::bind(listener.0, address, size) != 0 || own::listen(listener.0, STRANGERS_MAX) != 0
        {
            return None;
        }
        at = address_of(listener.0)?;
        if own::connect(writer.0, address, size) != 0 {
            return None;
        }
    }
    let own_address = address_of(writer.0)?;
    let mut reader = None;
    for _ in 0..STRANGERS_MAX {
        let mut peer = at;
        let mut length = size;
        let mut listens = [pollfd { fd: listener.0, events: libc::POLLIN, revents: 0 }];
        kernel::wait(&mut listens, Some(kernel::spec(CONNECTS_WITHIN))).ok()?;
        // SAFETY: there is room for the address. The call does not wait.
        let fd = unsafe {
            own::accept4(listener.0, (&raw mut peer).cast(), &raw mut length, libc::SOCK_CLOEXEC)
        };
        let new = (fd >= 0).then_some(Own(fd))?;
        // A stranger may have the same port at another address of the loopback interface.
        if (peer.sin_port, peer.sin_addr.s_addr)
            == (own_address.sin_port, own_address.sin_addr.s_addr)
        {
            reader = Some(new);
            break;
        }
    }
    let reader = reader?;
    let mut done = 0;
    while done < bytes.count {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let from = bytes.room.as_ptr().wrapping_add(done);
        // SAFETY: so many bytes are there.
        let sent = unsafe { own::send(writer.0, from.cast(), bytes.count - done, flags) };
        done += usize::try_from(sent).ok()?;
    }
    Some(reader)
}

fn address_of(fd: c_int) -> Option<sockaddr_in> {
    // SAFETY: zero is a value of each field.
    let mut at: sockaddr_in = unsafe { mem::zeroed() };
    let mut size = size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: there is room for the address.
    let result = unsafe { own::getsockname(fd, (&raw mut at).cast(), &raw mut size) };
    (result == 0).then_some(at)
}

/// A descriptor stands for the new socket from now on, with the flags that it had.
fn replace(fd: c_int, new: c_int) {
    // SAFETY: the commands have numbers or nothing as arguments.
    unsafe {
        let closes = own::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
        let flags = own::fcntl(fd, libc::F_GETFL, 0);
        own::fcntl(new, libc::F_SETFL, flags as libc::c_ulong);
        super::closing::close(fd);
        let _ = own::dup3(new, fd, if closes { libc::O_CLOEXEC } else { 0 });
    }
}
