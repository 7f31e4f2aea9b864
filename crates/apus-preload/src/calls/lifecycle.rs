//! Calls that open, close and duplicate descriptors, and calls that connect sockets.

use libc::{FILE, c_char, c_int, c_uint, c_ulong, sockaddr, socklen_t};

use crate::descriptors::{self, EARLY, REPORTED, WATCHED};
use crate::{carried, carry, errno, originals, polling, report};

on_one_descriptor! {
    fn bind(fd, address: *const sockaddr, length: socklen_t) -> c_int;
    fn listen(fd, backlog: c_int) -> c_int;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if descriptors::is_carried(fd)
        && let Some(result) = carry::shut(fd, how)
    {
        return result;
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::shutdown(fd, how) }
}

/// Makes a call that opens a descriptor. If the process is out of descriptors, frees some of this library's and retries once.
#[inline(always)]
fn with_room(call: impl Fn() -> c_int) -> c_int {
    let fd = call();
    if fd < 0 && errno::current() == libc::EMFILE && carry::makes_room() {
        return call();
    }
    fd
}

/// Exports calls that return a new descriptor.
macro_rules! that_open {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's arguments are passed through.
            let fd = with_room(|| unsafe { originals::$name($($argument),*) });
            opened(fd);
            fd
        }
    )*};
}

that_open! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int);
}

/// Exports calls that create an epoll set.
macro_rules! that_make_a_set {
    ($(fn $name:ident($argument:ident);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($argument: c_int) -> c_int {
            // SAFETY: the caller's argument is passed through.
            let fd = with_room(|| unsafe { originals::$name($argument) });
            opened(fd);
            polling::made(fd);
            if fd >= 0 && carry::is_on() {
                carry::sets::table::made(fd);
            }
            fd
        }
    )*};
}

that_make_a_set! {
    fn epoll_create(size);
    fn epoll_create1(flags);
}

/// Exports calls that accept a connection.
macro_rules! that_accept {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            fd: c_int, peer: *mut sockaddr, length: *mut socklen_t $(, $argument: $type)*
        ) -> c_int {
            // SAFETY: the caller's arguments are passed through.
            let new = with_room(|| unsafe { originals::$name(fd, peer, length $(, $argument)*) });
            accepted(new);
            new
        }
    )*};
}

that_accept! {
    fn accept();
    fn accept4(flags: c_int);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    // SAFETY: the caller's arguments are passed through.
    let result = unsafe { originals::socketpair(domain, kind, protocol, pair) };
    if result == 0 {
        // SAFETY: a successful call has written both descriptors.
        let [one, other] = unsafe { *pair.cast::<[c_int; 2]>() };
        opened(one);
        opened(other);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, peer: *const sockaddr, length: socklen_t) -> c_int {
    before_connect(fd);
    // SAFETY: the caller's arguments are passed through.
    let result = unsafe { originals::connect(fd, peer, length) };
    after_connect(fd, result);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __connect(
    fd: c_int,
    peer: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments are passed through.
    unsafe { connect(fd, peer, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_inner(fd) {
        return unknown();
    }
    closing(fd);
    // SAFETY: the caller's argument is passed through.
    unsafe { originals::close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: the caller's argument is passed through.
    unsafe { close(fd) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments are passed through, except for descriptors of this library.
    close_around(first, last, flags, |first, last| unsafe {
        originals::close_range(first, last, flags)
    })
}

/// Closes a range except for the descriptors of this library. `close` is the system call `close_range`.
pub(super) fn close_around(
    mut first: c_uint,
    last: c_uint,
    flags: c_int,
    close: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    if first > last {
        return close(first, last);
    }
    closing_range(first, last, flags);
    for inner in descriptors::used_in(first..=last).filter(|fd| is_inner(*fd)) {
        if inner as c_uint > first {
            let result = close(first, inner as c_uint - 1);
            if result != 0 {
                return result;
            }
        }
        first = inner as c_uint + 1;
    }
    if first > last { 0 } else { close(first, last) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: the caller's arguments are passed through.
    let result = unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
    if result != 0 {
        // SAFETY: the caller's argument is passed through.
        unsafe { originals::closefrom(first) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's argument is passed through.
    let new = with_room(|| unsafe { originals::dup(fd) });
    duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if is_inner(to) {
        return busy();
    }
    closing_for(fd, to);
    // SAFETY: the caller's arguments are passed through.
    let new = unsafe { originals::dup2(fd, to) };
    duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's arguments are passed through.
    unsafe { dup2(fd, to) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if is_inner(to) {
        return busy();
    }
    if flags & !libc::O_CLOEXEC == 0 {
        closing_for(fd, to);
    }
    // SAFETY: the caller's arguments are passed through.
    let new = unsafe { originals::dup3(fd, to, flags) };
    duplicated(fd, new);
    new
}

/// Exports `fcntl` under all its names. The third argument is a number, a pointer or absent.
macro_rules! fcntl_by_names {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
            if duplicates(command) {
                // SAFETY: the caller's arguments are passed through.
                return unsafe { duplicate(fd, command, argument) };
            }
            if descriptors::is_carried(fd) && !is_simple(command) {
                carried::return_to_kernel(fd, stringify!($name));
            }
            // SAFETY: as above.
            let original = || unsafe { originals::fcntl(fd, command, argument) };
            if descriptors::is_ours(fd) && command == libc::F_SETFL {
                return carry::changes_options(fd, original);
            }
            original()
        }
    )*};
}

#[inline(never)]
unsafe extern "C-unwind" fn duplicate(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: guaranteed by the caller.
    let new = unsafe { originals::fcntl(fd, command, argument) };
    duplicated(fd, new);
    new
}

fcntl_by_names! { fcntl fcntl64 __fcntl }

/// From now on the C library reads, writes and closes the descriptor by internal calls that bypass this library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if descriptors::word(fd) != 0 {
        let_go(fd);
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::fdopen(fd, mode) }
}

/// Fails with `EBUSY`: a descriptor of this library has the requested number.
#[cold]
fn busy() -> c_int {
    errno::set(libc::EBUSY);
    -1
}

/// Fails with `EBADF`: the number belongs to a descriptor of this library, which the program did not open.
#[cold]
pub(super) fn unknown() -> c_int {
    errno::set(libc::EBADF);
    -1
}

/// Whether the descriptor is one of this library, unknown to the program. Always false in a child of `fork`.
pub(super) fn is_inner(fd: c_int) -> bool {
    descriptors::word(fd) & descriptors::INNER != 0 && descriptors::belongs_to_this_process()
}

/// Runs after a call that may have opened a descriptor. An existing word belongs to an older descriptor that was closed without
/// this library's knowledge.
#[inline(always)]
pub(super) fn opened(fd: c_int) {
    if descriptors::word(fd) != 0 {
        forget_closed(fd);
    }
}

/// Runs after a call that may have accepted a connection.
#[inline(always)]
pub(super) fn accepted(fd: c_int) {
    opened(fd);
    if fd >= 0 && report::is_wanted() {
        errno::kept(|| report::accepted(fd));
    }
    if fd >= 0 && carry::is_on() {
        carry::consider(fd, true);
    }
}

/// Runs before a socket is connected or disconnected.
#[inline(always)]
pub(super) fn before_connect(fd: c_int) {
    if descriptors::is_carried(fd) {
        carried::return_to_kernel(fd, "connect");
    }
}

/// Runs after `connect`, whether the socket is connected or still connecting.
#[inline(always)]
pub(super) fn after_connect(fd: c_int, result: c_int) {
    if report::is_wanted() {
        let error = if result == 0 { 0 } else { errno::current() };
        errno::kept(|| report::connected(fd, error));
    }
    if descriptors::is_carried(fd) && result != 0 && has_disconnected(errno::current()) {
        errno::kept(|| carried::disconnected(fd));
    }
    if carry::is_on() && (result == 0 || errno::current() == libc::EINPROGRESS) {
        carry::consider(fd, false);
    }
}

/// Whether `connect` fails with this error because the connection has ended. The kernel then disconnects the socket, so that it can be
/// connected anew.
#[cold]
fn has_disconnected(number: c_int) -> bool {
    use libc::{
        ECONNABORTED, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, EPIPE, ETIMEDOUT,
    };
    [ECONNABORTED, ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, EPIPE, ETIMEDOUT]
        .contains(&number)
}

/// Runs before a descriptor is closed. After the close, another thread may get a descriptor with the same number.
#[inline(always)]
pub(super) fn closing(fd: c_int) {
    if descriptors::word(fd) != 0 {
        forget(fd);
    }
}

/// Runs before a range of descriptors is closed or marked close-on-exec.
fn closing_range(first: c_uint, last: c_uint, flags: c_int) {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        descriptors::used_in(first..=last).filter(|fd| !is_inner(*fd)).for_each(|fd| forget(fd));
    }
}

/// Runs before `dup2`, which closes `to` if the call succeeds.
fn closing_for(fd: c_int, to: c_int) {
    // SAFETY: the command takes no argument.
    let is_open = |fd| unsafe { originals::fcntl(fd, libc::F_GETFD, 0) } >= 0;
    if fd != to && descriptors::word(to) != 0 && errno::kept(|| is_open(fd)) {
        forget(to);
    }
}

/// Runs after a descriptor was duplicated. Both descriptors refer to the same socket.
#[inline(always)]
pub(super) fn duplicated(fd: c_int, new: c_int) {
    if descriptors::any_used() {
        copy(fd, new);
    }
}

/// Whether the command works on a carried descriptor without the connection's return to TCP.
fn is_simple(command: c_int) -> bool {
    matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD)
}

/// Whether the `fcntl` command duplicates the descriptor.
pub(super) fn duplicates(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

#[cold]
extern "C" fn let_go(fd: c_int) {
    if descriptors::is_carried(fd) {
        carried::give_away(fd, "fdopen");
    }
    forget(fd);
}

#[cold]
extern "C" fn forget(fd: c_int) {
    forget_after(fd, carry::close);
}

#[cold]
extern "C" fn forget_closed(fd: c_int) {
    forget_after(fd, carry::closed);
}

fn forget_after(fd: c_int, end: impl FnOnce(c_int)) {
    if descriptors::belongs_to_this_process() {
        end(fd);
        carry::sets::giving_up::closing_set(fd);
        carry::sets::early::closing_early(fd);
        if descriptors::word(fd) & REPORTED != 0 {
            report::settle(fd);
        }
        descriptors::replace(fd, 0);
    }
}

#[cold]
extern "C" fn copy(fd: c_int, new: c_int) {
    if new >= 0 && new != fd && errno::kept(descriptors::belongs_to_this_process) {
        opened(new);
        if descriptors::word(fd) & EARLY != 0 {
            // An epoll set keeps reporting the socket after the number that it was added under is closed.
            descriptors::set(fd, WATCHED, 0);
        }
        descriptors::replace(new, descriptors::word(fd) & !descriptors::INNER);
        carry::duplicated(new);
    }
}
