//! Calls that wait until descriptors are ready.

use libc::{c_int, c_ulong, epoll_event, fd_set, pollfd, sigset_t, size_t, timespec, timeval};

use crate::{carried, descriptors, originals};

on_one_descriptor! {
    fn epoll_wait(set, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    fn epoll_pwait(set, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(
        set, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int;
}

macro_rules! on_members {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $original:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(members: *mut pollfd, count: c_ulong $(, $argument: $type)*) -> c_int {
            // SAFETY: the caller's members.
            unsafe { before_poll(members, count) };
            // SAFETY: these are the caller's arguments.
            unsafe { originals::$original(members, count $(, $argument)*) }
        }
    )*};
}

on_members! {
    fn poll(timeout_ms: c_int) = poll;
    fn __poll(timeout_ms: c_int) = poll;
    fn __poll_chk(timeout_ms: c_int, size: size_t) = __poll_chk;
    fn ppoll(timeout: *const timespec, mask: *const sigset_t) = ppoll;
    fn __ppoll_chk(timeout: *const timespec, mask: *const sigset_t, size: size_t) = __ppoll_chk;
}

macro_rules! on_sets {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $original:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set $(, $argument: $type)*
        ) -> c_int {
            // SAFETY: the caller's sets.
            unsafe { before_select(count, [read, write, except]) };
            // SAFETY: these are the caller's arguments.
            unsafe { originals::$original(count, read, write, except $(, $argument)*) }
        }
    )*};
}

on_sets! {
    fn select(timeout: *mut timeval) = select;
    fn __select(timeout: *mut timeval) = select;
    fn pselect(timeout: *const timespec, mask: *const sigset_t) = pselect;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    before_epoll_ctl(fd);
    // SAFETY: these are the caller's arguments.
    unsafe { originals::epoll_ctl(set, operation, fd, event) }
}

/// Before a descriptor is put into an epoll set, or leaves one.
#[inline(always)]
pub(super) fn before_epoll_ctl(fd: c_int) {
    if descriptors::is_carried(fd) {
        carried::return_to_kernel(fd);
    }
}

/// Before the members of a list are waited for.
///
/// # Safety
/// The members are as `poll` wants them.
#[inline(always)]
pub(super) unsafe fn before_poll(members: *const pollfd, count: c_ulong) {
    if descriptors::any_carried() {
        // SAFETY: the caller's promise.
        unsafe { return_members(members, count) };
    }
}

#[cold]
unsafe extern "C" fn return_members(members: *const pollfd, count: c_ulong) {
    for at in 0..count as usize {
        // SAFETY: there are that many, the caller says.
        let fd = unsafe { (*members.add(at)).fd };
        if descriptors::is_carried(fd) {
            carried::return_to_kernel(fd);
        }
    }
}

/// Before the descriptors of three sets are waited for.
///
/// # Safety
/// The sets are as `select` wants them.
#[inline(always)]
pub(super) unsafe fn before_select(count: c_int, sets: [*mut fd_set; 3]) {
    if descriptors::any_carried() {
        // SAFETY: the caller's promise.
        unsafe { return_set_members(count, &sets) };
    }
}

#[cold]
unsafe extern "C" fn return_set_members(count: c_int, sets: &[*mut fd_set; 3]) {
    // Programs pass sets larger than FD_SETSIZE, so the words are read as the kernel does.
    let bits = c_ulong::BITS as usize;
    for set in sets.iter().filter(|set| !set.is_null()) {
        for fd in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: a set has `count` bits, the caller says.
            let word = unsafe { *set.cast::<c_ulong>().add(fd / bits) };
            if word >> (fd % bits) & 1 == 1 && descriptors::is_carried(fd as c_int) {
                carried::return_to_kernel(fd as c_int);
            }
        }
    }
}
