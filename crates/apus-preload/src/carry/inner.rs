//! This library's descriptors in the program's table. They have high numbers, which the program does not use, and cannot be
//! closed by it.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use apus_shm::{Channel, closer};

use crate::originals::own as originals;
use crate::{descriptors, errno};

/// `select` accepts only descriptors below this one.
const FD_SETSIZE: u64 = 1_024;

/// A descriptor of this library. Neither the program's `close` nor `OwnedFd` closes it.
pub(crate) struct Inner(ManuallyDrop<OwnedFd>);

impl AsFd for Inner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Inner {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        close(self.as_raw_fd());
    }
}

/// A channel on a descriptor of this library.
///
/// Descriptors that strangers pass are never taken: closing them may sleep, and so may closing a socket with unread descriptors.
pub(crate) struct InnerChannel {
    channel: ManuallyDrop<Channel>,
    /// Whether the kernel refuses passed descriptors on this socket (Linux 6.16).
    refuses: AtomicBool,
    /// Whether it refuses them and the socket was empty since, so that no descriptor is queued.
    is_clean: AtomicBool,
}

/// The result of [`InnerChannel::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Checked {
    Message(u8),
    Nothing,
    /// The peer has closed its end or passes descriptors. No more messages are taken.
    End,
}

/// Socket option: whether others may pass descriptors.
const SO_PASSRIGHTS: libc::c_int = 83;

impl InnerChannel {
    pub(crate) fn new(socket: Inner) -> Self {
        let socket = ManuallyDrop::new(socket);
        // SAFETY: the channel made from the descriptor closes it; `socket` does not.
        let owned = unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) };
        let channel = ManuallyDrop::new(Channel::new(owned));
        Self { channel, refuses: AtomicBool::new(false), is_clean: AtomicBool::new(false) }
    }

    /// Refuses descriptors from now on.
    pub(crate) fn refuse_descriptors(&self) {
        let off: libc::c_int = 0;
        let value = (&raw const off).cast();
        let size = size_of_val(&off) as libc::socklen_t;
        // SAFETY: `size` is the size of the value.
        let result = unsafe {
            originals::setsockopt(self.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, size)
        };
        self.refuses.store(result == 0, Ordering::Relaxed);
    }

    /// Takes the next message, which is one byte.
    pub(crate) fn check(&self) -> Checked {
        let fd = self.as_raw_fd();
        let is_clean = self.is_clean.load(Ordering::Relaxed);
        if !is_clean && peeks_descriptors(fd) {
            return Checked::End;
        }
        let mut byte = 0_u8;
        // SAFETY: the buffer has room for the byte.
        match unsafe { originals::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) } {
            0 => Checked::End,
            1.. => Checked::Message(byte),
            // The peer has closed its end with unread messages. Its own messages are still there.
            _ if errno::current() == libc::ECONNRESET => Checked::Message(0),
            _ => {
                if !is_clean && self.refuses.load(Ordering::Relaxed) {
                    self.is_clean.store(true, Ordering::Relaxed);
                }
                Checked::Nothing
            }
        }
    }
}

/// Whether the next message of a socket carries descriptors. Leaves the message in the socket.
fn peeks_descriptors(socket: RawFd) -> bool {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all zeros are a valid value.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: the message and its part are local variables.
    let result = unsafe { originals::recvmsg(socket, &raw mut message, flags) };
    result >= 0 && message.msg_flags & libc::MSG_CTRUNC != 0
}

impl Deref for InnerChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl AsRawFd for InnerChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.descriptor().as_raw_fd()
    }
}

impl Drop for InnerChannel {
    fn drop(&mut self) {
        let fd = self.as_raw_fd();
        if self.is_clean.load(Ordering::Relaxed) {
            return close(fd);
        }
        close_elsewhere(fd);
    }
}

/// Like [`close`], for a socket that may hold strangers' descriptors. Its close may sleep, so no thread of this process performs
/// it.
pub(super) fn close_elsewhere(fd: RawFd) {
    COUNT.fetch_sub(1, Ordering::Relaxed);
    descriptors::set(fd, 0, descriptors::OF_SIDE);
    // SAFETY: the descriptor is this library's, and no longer used.
    closer::close_elsewhere(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Closes a descriptor of this library whose owner is being dropped or has forgotten it.
pub(super) fn close(fd: RawFd) {
    COUNT.fetch_sub(1, Ordering::Relaxed);
    descriptors::set(fd, 0, descriptors::OF_SIDE);
    // SAFETY: the descriptor is this library's, and no longer used.
    let _ = unsafe { originals::close(fd) };
}

/// Marks a descriptor that a child of fork keeps, because it has the connection.
pub(super) fn is_of_side(fd: RawFd) {
    descriptors::set(fd, descriptors::OF_SIDE, 0);
}

/// Moves a descriptor to a high number.
pub(crate) fn keep(descriptor: OwnedFd) -> io::Result<Inner> {
    // A program that closes all numbers must not close this one: `OwnedFd` would abort the process.
    let low = own(descriptor);
    let limit = limit();
    let least = if limit > 2 * FD_SETSIZE { FD_SETSIZE } else { limit / 2 };
    // SAFETY: the command creates a descriptor, which has no other owner.
    unsafe {
        let high = originals::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least);
        if high < 0 {
            let error = io::Error::last_os_error();
            close_elsewhere(ManuallyDrop::new(low).as_raw_fd());
            return Err(error);
        }
        Ok(own(OwnedFd::from_raw_fd(high)))
    }
}

/// Number of this library's descriptors.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Number of this library's descriptors.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Descriptors per connection.
pub(crate) const OF_CONNECTION: usize = 3;

/// The fraction of the descriptor limit that is left to the program beyond its current descriptors.
const RESERVE: u64 = 8;

/// The number of descriptors missing for one more connection, after the program got `fd`, the lowest free number. 0 if there are
/// enough.
pub(crate) fn missing(fd: RawFd) -> usize {
    LAST.store(fd, Ordering::Relaxed);
    let Ok(has) = u64::try_from(fd) else { return 0 };
    if has < CERTAIN {
        return 0;
    }
    let limit = limit();
    let ours = COUNT.load(Ordering::Relaxed) as u64;
    let wanted = has + 1 + ours + (limit / RESERVE).min(RESERVE_MAX) + 2 * OF_CONNECTION as u64;
    wanted.saturating_sub(limit) as usize
}

/// Whether there are enough descriptors for a search, judged by the program's last descriptor of a connection.
pub(crate) fn has_room() -> bool {
    missing(LAST.load(Ordering::Relaxed)) == 0
}

static LAST: AtomicI32 = AtomicI32::new(0);

/// A program with fewer descriptors is not short of them.
const CERTAIN: u64 = 64;
/// Upper bound on the reserve.
const RESERVE_MAX: u64 = 128;

fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer has room for the limit.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Protects a descriptor from being closed by the program.
pub(super) fn own(descriptor: OwnedFd) -> Inner {
    COUNT.fetch_add(1, Ordering::Relaxed);
    descriptors::set(descriptor.as_raw_fd(), descriptors::INNER, 0);
    Inner(ManuallyDrop::new(descriptor))
}

/// Runs in a child of fork. Closes all of this library's descriptors except those of connections that the child has too, and
/// those by which parents learn of its end. `may_allocate` is false if a signal handler may have forked.
pub(crate) fn close_all(may_allocate: bool) {
    for fd in descriptors::used_in(0..=u32::MAX) {
        let word = descriptors::word(fd);
        let kept = descriptors::LIFELINE | descriptors::OF_SIDE;
        if word & kept != descriptors::INNER {
            continue;
        }
        match (may_sleep_in_close(fd), may_allocate) {
            (true, true) => close_elsewhere(fd),
            // It stays open until the child ends, and no call of the program touches it.
            (true, false) => continue,
            // SAFETY: the descriptor is this library's, and unused in the child.
            (false, _) => _ = unsafe { originals::close(fd) },
        }
        descriptors::set(fd, 0, descriptors::INNER);
    }
}

/// Whether closing this descriptor may close strangers' descriptors, in which the last process that has it would sleep.
fn may_sleep_in_close(fd: RawFd) -> bool {
    let (mut listens, mut size): (libc::c_int, _) =
        (0, size_of::<libc::c_int>() as libc::socklen_t);
    let value = (&raw mut listens).cast();
    // SAFETY: the buffer has room for the number.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, value, &raw mut size)
    };
    if result != 0 {
        return false; // Not a socket.
    }
    let mut member = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one member.
    let mut is_readable = || unsafe { originals::poll(&raw mut member, 1, 0) } > 0;
    if listens != 0 { is_readable() } else { peeks_descriptors(fd) }
}

/// Runs before this process becomes another program. The exec closes this library's descriptors; those whose close may sleep are
/// spared.
#[cold]
pub(crate) fn before_exec() {
    let may_sleep =
        |fd: &RawFd| descriptors::word(*fd) & descriptors::INNER != 0 && may_sleep_in_close(*fd);
    for fd in descriptors::used_in(0..=u32::MAX).filter(may_sleep) {
        // SAFETY: the argument is an integer. The new program inherits the descriptor without knowing it.
        let _ = unsafe { originals::fcntl(fd, libc::F_SETFD, 0) };
    }
    closer::spare_from_exec();
}

/// While it lives, programs that this process starts do not close descriptors whose close may sleep.
pub(crate) struct Spared(());

impl Spared {
    #[cold]
    pub(crate) fn new() -> Self {
        errno::kept(before_exec);
        Self(())
    }
}

impl Drop for Spared {
    fn drop(&mut self) {
        errno::kept(after_exec_failed);
    }
}

/// Runs if this process has not become a program.
#[cold]
pub(crate) fn after_exec_failed() {
    let is_inner =
        |fd: &RawFd| descriptors::word(*fd) & descriptors::LIFELINE == descriptors::INNER;
    for fd in descriptors::used_in(0..=u32::MAX).filter(is_inner) {
        // SAFETY: as above.
        let _ = unsafe { originals::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as libc::c_ulong) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::{Duration, Instant};

    /// A TCP socket whose close sleeps, and the end that does not read.
    fn sleeper() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 60 };
        let size = size_of_val(&linger) as libc::socklen_t;
        // SAFETY: `size` is the size of the value.
        let set = unsafe {
            let value = (&raw const linger).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size)
        };
        assert_eq!(set, 0);
        socket.set_nonblocking(true).unwrap();
        let other = listener.accept().unwrap().0;
        while (&socket).write(&[0; 1 << 16]).is_ok() {}
        (socket, other)
    }

    /// A unix socket that holds a socket whose close sleeps, and that socket's other end, which does not read.
    fn filled() -> (OwnedFd, TcpStream) {
        use nix::sys::socket::{self, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType};
        let flags = SockFlag::SOCK_CLOEXEC;
        let pair =
            socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let (socket, other) = sleeper();
        let rights = [socket.as_raw_fd()];
        let parts = [io::IoSlice::new(b"x")];
        let control = [ControlMessage::ScmRights(&rights)];
        let one = pair.0.as_raw_fd();
        socket::sendmsg::<()>(one, &parts, &control, MsgFlags::empty(), None).unwrap();
        (pair.1, other)
    }

    /// Forks a child that is the last holder of a unix socket with such a socket in it. Returns the child's exit status if it
    /// ends within 20 seconds.
    fn child_that_closes(work: impl FnOnce()) -> Option<ExitStatus> {
        let (socket, other) = filled();
        let held = keep(socket).unwrap();
        let fd = held.as_raw_fd();
        let (mut goes, mut go) = io::pipe().unwrap();
        // SAFETY: the child makes only system calls, and calls of this library that are allowed in a child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(go);
            let _ = goes.read(&mut [0]); // By then, the parent has closed its descriptor.
            work();
            // SAFETY: the call takes no pointers.
            unsafe { libc::_exit(7) };
        }
        assert!(child > 0);
        mem::forget(held);
        descriptors::set(fd, 0, descriptors::INNER);
        // SAFETY: the child has it too, so this close does not sleep.
        unsafe { libc::close(fd) };
        go.write_all(b"x").unwrap();
        let began = Instant::now();
        let mut status = 0;
        while began.elapsed() < Duration::from_secs(20) {
            // SAFETY: the buffer has room for the status.
            if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
                drop(other);
                return Some(ExitStatus::from_raw(status));
            }
            std::thread::yield_now();
        }
        // SAFETY: the child belongs to this process.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
        }
        None
    }

    #[test]
    fn a_program_that_is_started_has_what_it_would_sleep_in() {
        let (socket, other) = filled();
        let (held, harmless) = (keep(socket).unwrap(), keep(io::pipe().unwrap().0.into()).unwrap());
        let are_closed = || {
            // SAFETY: the command takes no argument.
            let flags = |fd: &Inner| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
            [&held, &harmless].map(|fd| flags(fd) == libc::FD_CLOEXEC)
        };
        assert_eq!(are_closed(), [true, true]);
        let spared = Spared::new();
        assert_eq!(are_closed(), [false, true]);
        drop(spared);
        assert_eq!(are_closed(), [true, true]);
        drop(other); // Its close no longer sleeps.
    }

    #[test]
    fn neither_a_child_nor_a_program_sleeps_in_the_close_of_what_strangers_pass() {
        for may_allocate in [true, false] {
            let ended = child_that_closes(|| close_all(may_allocate));
            assert_eq!(ended.and_then(|status| status.code()), Some(7), "a child");
        }
        let program = || {
            before_exec();
            let arguments = [c"true".as_ptr(), std::ptr::null()];
            // SAFETY: the list ends with a null pointer.
            unsafe { libc::execvp(c"true".as_ptr(), arguments.as_ptr()) };
        };
        let ended = child_that_closes(program);
        assert_eq!(ended.and_then(|status| status.code()), Some(0), "a program");
    }
}
