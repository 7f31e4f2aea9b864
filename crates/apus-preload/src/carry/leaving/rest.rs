//! Bytes that a peer has left in its ring before it closed the connection or ended. They can no longer go into TCP.
//!
//! This process reads them from the ring. A process that gets the socket without this library could not: a program that this
//! process becomes, a process that receives the descriptor, or the C library after `fdopen`. So the socket is replaced by one end
//! of a new connection over the loopback interface, whose other end has written those bytes and is closed. For the holder, the
//! new socket behaves like the old one, except for its addresses.

use std::mem;
use std::time::Duration;

use libc::{c_int, c_short, c_void, iovec, pollfd, sockaddr, sockaddr_in, socklen_t};

use crate::carry::bytes::transfer;
use crate::carry::connection::side::Side;
use crate::carry::connection::slots::{self, Use};
use crate::carry::kernel;
use crate::carry::scratch::Scratch;
use crate::carry::spin::Clock;
use crate::descriptors;
use crate::errno;
use crate::originals::own;

/// Upper bound on the bytes of a connection that another process has too: the kernel holds no more.
const MOST: usize = 8 << 20;

/// Bytes that are moved at a time.
const PIECE: usize = 64 << 10;

/// Buffer size that the new socket asks for. The kernel grants as much as the system allows.
static ROOM: c_int = MOST as c_int;

/// Upper bound on connections of strangers that come in between and are refused.
const STRANGERS_MAX: c_int = 16;

/// The kernel connects two sockets of one process at once, unless strangers have filled the listener's queue.
const CONNECTS_WITHIN: Duration = Duration::from_millis(100);

/// Moves the rest of the stream into the socket before the descriptor is given away. Returns `false` if that is impossible by
/// `until`: the kernel cannot hold the rest, or the peer has not written its end.
///
/// With `takes`, bytes that cannot be copied are moved out of the ring, even if another process has the connection too. Without
/// it they stay for that process, and the new socket is reset.
#[cold]
pub(super) fn put_into_socket(fd: c_int, until: Duration, takes: bool) -> bool {
    errno::kept(|| {
        let Some(used) = Use::of(fd) else { return false };
        let Some(side) = used.side() else { return false };
        let Some((new, writer)) = connected() else { return false };
        let is_shared = side.is_shared();
        let takes = takes || !is_shared; // The other process may have closed it since the caller's look.
        let copied = if is_shared { copy_all(&used, side, fd, until) } else { None };
        let is_done = match copied {
            Some(bytes) => write_all(writer.0, bytes.room.as_ptr(), bytes.count, until),
            None => takes && move_all(&used, fd, writer.0, until),
        };
        if !is_done && takes {
            kernel::reset(fd); // Bytes are lost.
            return false;
        }
        if !is_done {
            kernel::reset(writer.0); // The bytes stay where they are, for the other process.
        }
        if side.has_shut() {
            // SAFETY: the call takes no pointers.
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

/// A copy of the rest of a stream, in this library's memory.
struct CopiedRest {
    room: Scratch,
    count: usize,
}

/// Number of bytes that are left of a stream. `None` beyond [`MOST`].
fn count_all(side: &Side, fd: c_int) -> Option<usize> {
    let all = side.unread() as usize + kernel::unread(fd)? as usize + side.rest(fd).len();
    Some(all).filter(|all| *all <= MOST)
}

/// Copies all that is left, which stays where it is: another process has the connection as well, and may be the one that reads it.
/// `None` if there is more than [`MOST`], or if bytes or the end are on their way at `until`.
fn copy_all(used: &Use, side: &Side, fd: c_int, until: Duration) -> Option<CopiedRest> {
    let may_arrive = || side.peer_is_gone() && end_arrives(used, fd, until);
    if !kernel::has_ended(fd) && !may_arrive() {
        return None;
    }
    let all = count_all(side, fd)?;
    let mut room = Scratch::new(all.max(1))?;
    let rest = side.rest(fd);
    let base = room.as_mut_ptr();
    let part = iovec { iov_base: base.cast(), iov_len: all - rest.len() };
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    let mut count = 0;
    if part.iov_len > 0 {
        // SAFETY: the part lies within the memory.
        let got = unsafe { transfer::receive(used, side, fd, &raw const part, 1, flags) };
        count = usize::try_from(got).unwrap_or(0);
    }
    // SAFETY: the memory has room for all bytes.
    unsafe { side.copy_rest(&rest, base.wrapping_add(count)) };
    count += rest.len();
    Some(CopiedRest { room, count }).filter(|copy| copy.count == all)
}

/// Takes all bytes of a peer that is gone into this kernel. The peer's kernel keeps those for which this kernel has no room, and a
/// low-water mark makes room. Returns `false` if the end has not arrived by `until`.
fn end_arrives(used: &Use, fd: c_int, until: Duration) -> bool {
    let least = used.slot.least(fd) as c_int;
    used.slot.changes_options();
    kernel::set_least(fd, MOST as c_int);
    // The kernel advertises the new window to the peer's kernel when it is asked for bytes.
    let _ = kernel::peek_end(fd);
    let has_ended = is_ready(fd, libc::POLLRDHUP, until);
    kernel::set_least(fd, least);
    used.slot.changes_options();
    has_ended
}

/// Writes the rest of a stream into another socket, which is not read meanwhile. Returns `true` at the end of the stream.
fn move_all(used: &Use, fd: c_int, to: c_int, until: Duration) -> bool {
    let Some(mut room) = Scratch::new(PIECE) else { return false };
    let Some(side) = used.side() else { return false };
    loop {
        let part = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: PIECE };
        // SAFETY: the part covers the memory.
        let got =
            unsafe { transfer::receive(used, side, fd, &raw const part, 1, libc::MSG_DONTWAIT) };
        match usize::try_from(got) {
            Ok(0) => return true,
            Ok(got) => {
                if !write_all(to, room.as_ptr(), got, until) {
                    return false;
                }
            }
            // The peer's kernel keeps the rest until this kernel has room.
            Err(_) if !(errno::current() == libc::EAGAIN && is_ready(fd, libc::POLLIN, until)) => {
                return false;
            }
            Err(_) => {}
        }
    }
}

fn write_all(to: c_int, from: *const u8, count: usize, until: Duration) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let mut done = 0;
    while done < count {
        // SAFETY: the caller passes at least this number of bytes.
        let sent = unsafe { own::send(to, from.wrapping_add(done).cast(), count - done, flags) };
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            // The kernel makes room while it moves bytes to the other end.
            Err(_) if !is_ready(to, libc::POLLOUT, until) => return false,
            Err(_) => {}
        }
    }
    true
}

/// Waits for the kernel. Returns `false` after `until`.
fn is_ready(fd: c_int, events: c_short, until: Duration) -> bool {
    while let Some(left) = until.checked_sub(Clock::now()) {
        let mut member = [pollfd { fd, events, revents: 0 }];
        match kernel::wait(&mut member, Some(kernel::spec(left))) {
            Err(libc::EINTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
    false
}

/// A descriptor owned by this call.
struct Own(c_int);

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: this call owns the descriptor. It is a new socket, whose close does not block.
        let _ = unsafe { own::close(self.0) };
    }
}

/// Two ends of a connection: one for the program, and one that writes. The kernel delivers the second end's bytes after it is
/// closed.
fn connected() -> Option<(Own, Own)> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let socket = |flags| {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { own::socket(libc::AF_INET, kind | flags, 0) };
        (fd >= 0).then_some(Own(fd))
    };
    let (listener, writer) = (socket(libc::SOCK_NONBLOCK)?, socket(0)?);
    // SAFETY: all zeros are a valid value.
    let mut at: sockaddr_in = unsafe { mem::zeroed() };
    at.sin_family = libc::AF_INET as _;
    at.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
    let size = size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: the addresses and the number are local variables.
    unsafe {
        let address: *const sockaddr = (&raw const at).cast();
        // The accepted socket inherits it. The other end's buffer grows by itself, beyond any size that could be asked for.
        let (value, length): (*const c_void, _) = ((&raw const ROOM).cast(), size_of::<c_int>());
        own::setsockopt(listener.0, libc::SOL_SOCKET, libc::SO_RCVBUF, value, length as socklen_t);
        let time = libc::timeval { tv_sec: 0, tv_usec: CONNECTS_WITHIN.subsec_micros().into() };
        let (value, length) = ((&raw const time).cast(), size_of_val(&time) as socklen_t);
        own::setsockopt(writer.0, libc::SOL_SOCKET, libc::SO_SNDTIMEO, value, length); // Limits `connect` too.
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
        // SAFETY: the buffer has room for the address. The call does not block.
        let fd = unsafe {
            own::accept4(listener.0, (&raw mut peer).cast(), &raw mut length, libc::SOCK_CLOEXEC)
        };
        let new = (fd >= 0).then_some(Own(fd))?;
        // A stranger may have the same port at another loopback address.
        if (peer.sin_port, peer.sin_addr.s_addr)
            == (own_address.sin_port, own_address.sin_addr.s_addr)
        {
            reader = Some(new);
            break;
        }
    }
    Some((reader?, writer))
}

fn address_of(fd: c_int) -> Option<sockaddr_in> {
    // SAFETY: all zeros are a valid value.
    let mut at: sockaddr_in = unsafe { mem::zeroed() };
    let mut size = size_of::<sockaddr_in>() as socklen_t;
    // SAFETY: the buffer has room for the address.
    let result = unsafe { own::getsockname(fd, (&raw mut at).cast(), &raw mut size) };
    (result == 0).then_some(at)
}

/// Makes a descriptor refer to the new socket, and keeps its flags.
fn replace(fd: c_int, new: c_int) {
    // SAFETY: the commands take integers or no arguments.
    unsafe {
        let closes = own::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
        let flags = own::fcntl(fd, libc::F_GETFL, 0);
        own::fcntl(new, libc::F_SETFL, flags as libc::c_ulong);
        super::closing::close(fd);
        let _ = own::dup3(new, fd, if closes { libc::O_CLOEXEC } else { 0 });
    }
}
