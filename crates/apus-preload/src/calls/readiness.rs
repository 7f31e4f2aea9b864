//! Calls that wait until descriptors are ready.

use libc::{c_int, c_ulong, epoll_event, fd_set, pollfd, sigset_t, size_t, timespec, timeval};

use std::ptr;

use crate::carry::interest::{self, Control};
use crate::carry::sets::Set;
use crate::carry::waiting::{self, Wait};
use crate::descriptors::{self, INHERITED, SET};
use crate::{carried, carry, originals};

/// Exports calls that wait for the members of an epoll set.
macro_rules! on_epoll_sets {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?), time $time:expr, mask $mask:expr, precise $precise:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            set: c_int, events: *mut epoll_event, count: c_int $(, $argument: $type)*
        ) -> c_int {
            if descriptors::word(set) & (SET | INHERITED) != 0 {
                // SAFETY: the caller's arguments.
                if let Some(result) = unsafe { wait(set, events, count, $time, $mask, $precise) } {
                    return result;
                }
            }
            // SAFETY: these are the caller's arguments.
            unsafe { originals::$name(set, events, count $(, $argument)*) }
        }
    )*};
}

on_epoll_sets! {
    fn epoll_wait(timeout_ms: c_int), time Time::Millis(timeout_ms), mask ptr::null(), precise false;
    fn epoll_pwait(timeout_ms: c_int, mask: *const sigset_t), time Time::Millis(timeout_ms), mask mask, precise false;
    fn epoll_pwait2(timeout: *const timespec, mask: *const sigset_t), time Time::Spec(timeout), mask mask, precise true;
}

/// Waits for the members of a set that is known. `None`: the call is the kernel's.
unsafe fn wait(
    fd: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: Time,
    mask: *const sigset_t,
    is_precise: bool,
) -> Option<c_int> {
    interest::note_foreign_use(fd);
    let set = Set::of(fd)?;
    let timeout = match time {
        Time::Millis(millis) => carry::readiness::millis(millis),
        // SAFETY: the caller's promise. A time that is none is the kernel's to refuse.
        Time::Spec(time) => unsafe { carry::readiness::time(time) }.ok()?,
    };
    // SAFETY: the caller's promise.
    unsafe { waiting::wait(set, &Wait { fd, events, count, timeout, mask, is_precise }) }
}

/// Before a set is waited for by a system call of the program's own, which does not know what this library has put into it.
#[inline(always)]
pub(super) fn before_direct_wait(fd: c_int) {
    interest::note_foreign_use(fd);
    if let Some(set) = Set::of(fd) {
        interest::give_up_all(set);
    }
}

/// Before a member of a set is changed by a system call of the program's own.
#[inline(always)]
pub(super) fn before_direct_control(set: c_int, fd: c_int) {
    interest::note_foreign_use(set);
    if descriptors::is_ours(fd) {
        carried::return_to_kernel(fd, "syscall(SYS_epoll_ctl)");
    }
}

/// Exports calls that wait for the members of a list. `time` and `mask` say how long, and with which signals blocked.
macro_rules! on_members {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $original:ident, time $time:expr, mask $mask:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(members: *mut pollfd, count: c_ulong $(, $argument: $type)*) -> c_int {
            if descriptors::any_used() {
                // SAFETY: the caller's members, time and mask.
                if let Some(result) = unsafe { before_poll(members, count, $time, $mask) } {
                    return result;
                }
            }
            // SAFETY: these are the caller's arguments.
            unsafe { originals::$original(members, count $(, $argument)*) }
        }
    )*};
}

on_members! {
    fn poll(timeout_ms: c_int) = poll, time Time::Millis(timeout_ms), mask ptr::null();
    fn __poll(timeout_ms: c_int) = poll, time Time::Millis(timeout_ms), mask ptr::null();
    fn __poll_chk(timeout_ms: c_int, size: size_t) = __poll_chk, time Time::Millis(timeout_ms), mask ptr::null();
    fn ppoll(timeout: *const timespec, mask: *const sigset_t) = ppoll, time Time::Spec(timeout), mask mask;
    fn __ppoll_chk(timeout: *const timespec, mask: *const sigset_t, size: size_t)
        = __ppoll_chk, time Time::Spec(timeout), mask mask;
}

/// How long a call waits.
pub(super) enum Time {
    Millis(c_int),
    Spec(*const timespec),
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
    if carry::is_on() {
        return interest::control(&Control { set, operation, fd, event });
    }
    // SAFETY: these are the caller's arguments.
    unsafe { originals::epoll_ctl(set, operation, fd, event) }
}

/// Waits for the members of a list if one of them is carried, or may come to be.
///
/// # Safety
/// The members, the time and the mask are as `ppoll` wants them.
#[cold]
pub(super) unsafe fn before_poll(
    members: *mut pollfd,
    count: c_ulong,
    time: Time,
    mask: *const sigset_t,
) -> Option<c_int> {
    let timeout = match time {
        Time::Millis(millis) => carry::readiness::millis(millis),
        // SAFETY: the caller's promise. A time that is none is the kernel's to refuse.
        Time::Spec(time) => unsafe { carry::readiness::time(time) }.ok()?,
    };
    // SAFETY: the caller's promise.
    let result = unsafe { carry::readiness::poll(members, count as usize, timeout, mask) };
    if result.is_none() {
        // SAFETY: the caller's promise.
        unsafe { return_members(members, count) };
    }
    result
}

/// Has the members of a list return to the kernel, which alone waits for them.
///
/// # Safety
/// The members are as `poll` wants them.
#[cold]
pub(super) unsafe extern "C" fn return_members(members: *const pollfd, count: c_ulong) {
    for at in 0..count as usize {
        // SAFETY: there are that many, the caller says.
        let fd = unsafe { (*members.add(at)).fd };
        return_member(fd, "poll");
    }
}

/// Before the descriptors of three sets are waited for.
///
/// # Safety
/// The sets are as `select` wants them.
#[inline(always)]
pub(super) unsafe fn before_select(count: c_int, sets: [*mut fd_set; 3]) {
    if descriptors::any_used() {
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
            if word >> (fd % bits) & 1 == 1 {
                return_member(fd as c_int, "select");
            }
        }
    }
}

/// The kernel alone waits for this descriptor.
fn return_member(fd: c_int, call: &'static str) {
    if descriptors::is_ours(fd) {
        carried::return_to_kernel(fd, call);
    } else if let Some(set) = Set::of(fd) {
        interest::give_up_all(set);
    }
}
