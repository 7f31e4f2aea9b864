//! Calls that wait for ready descriptors.

use libc::{c_int, c_ulong, epoll_event, fd_set, pollfd, sigset_t, size_t, timespec, timeval};

use std::ptr;
use std::time::Duration;

use crate::carry::sets::control::{self, Control};
use crate::carry::sets::giving_up;
use crate::carry::sets::table::Set;
use crate::carry::sets::waiting::{self, Wait};
use crate::carry::waits::select::Sets;
use crate::descriptors::{self, INHERITED, SET, WATCHED};
use crate::{carried, carry, originals, polling};

/// Exports calls that wait for the members of an epoll set.
macro_rules! on_epoll_sets {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?), time $time:expr, mask $mask:expr, precise $precise:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            set: c_int, events: *mut epoll_event, count: c_int $(, $argument: $type)*
        ) -> c_int {
            if descriptors::word(set) & (SET | INHERITED) != 0 {
                // SAFETY: the caller passes valid arguments.
                if let Some(result) = unsafe { wait(set, events, count, $time, $mask, $precise) } {
                    return result;
                }
            }
            if polling::repeats() {
                // SAFETY: the caller passes valid arguments.
                if let Some(result) = unsafe { wait_in_slices(set, events, count, $time, $mask) } {
                    return result;
                }
            }
            // SAFETY: the caller's arguments are passed through.
            unsafe { originals::$name(set, events, count $(, $argument)*) }
        }
    )*};
}

on_epoll_sets! {
    fn epoll_wait(timeout_ms: c_int), time Time::Millis(timeout_ms), mask ptr::null(), precise false;
    fn epoll_pwait(timeout_ms: c_int, mask: *const sigset_t), time Time::Millis(timeout_ms), mask mask, precise false;
    fn epoll_pwait2(timeout: *const timespec, mask: *const sigset_t), time Time::Spec(timeout), mask mask, precise true;
}

/// Waits for the members of a known set. Returns `None` if the kernel should handle the call.
unsafe fn wait(
    fd: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: Time,
    mask: *const sigset_t,
    is_precise: bool,
) -> Option<c_int> {
    giving_up::note_foreign_use(fd);
    let set = Set::of(fd)?;
    let timeout = match time {
        Time::Millis(millis) => carry::waits::poll::millis(millis),
        // SAFETY: guaranteed by the caller. The kernel refuses an invalid time.
        Time::Spec(time) => unsafe { carry::waits::poll::time(time) }.ok()?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { waiting::wait(set, &Wait { fd, events, count, timeout, mask, is_precise }) }
}

/// Waits in short slices. Returns `None` if the call does not wait, or if the kernel should refuse it.
unsafe fn wait_in_slices(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    time: Time,
    mask: *const sigset_t,
) -> Option<c_int> {
    let timeout = match time {
        Time::Millis(millis) => carry::waits::poll::millis(millis),
        // SAFETY: guaranteed by the caller.
        Time::Spec(time) => unsafe { carry::waits::poll::time(time) }.ok()?,
    };
    if timeout == Some(Duration::ZERO) {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    Some(unsafe { polling::wait(&polling::Wait { set, events, count, timeout, mask }) })
}

/// Runs before the program waits for a set by a raw system call, which does not know the members that this library added.
#[inline(always)]
pub(super) fn before_direct_wait(fd: c_int) {
    giving_up::note_foreign_use(fd);
    if let Some(set) = Set::of(fd) {
        giving_up::give_up(set);
    }
}

/// Runs before the program changes a member of a set by a raw system call.
#[inline(always)]
pub(super) fn before_direct_control(set: c_int, fd: c_int) {
    giving_up::note_foreign_use(set);
    if descriptors::is_ours(fd) {
        carried::return_to_kernel(fd, "syscall(SYS_epoll_ctl)");
    } else if let Some(nested) = Set::of(fd) {
        giving_up::give_up(nested);
    } else if carry::is_on() {
        descriptors::set(fd, WATCHED, 0);
    }
}

/// Exports calls that wait for the members of a list. `time` is the timeout, `mask` the signal mask.
macro_rules! on_members {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $original:ident, time $time:expr, mask $mask:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(members: *mut pollfd, count: c_ulong $(, $argument: $type)*) -> c_int {
            if descriptors::any_used() {
                // SAFETY: the caller passes valid members, time and mask.
                if let Some(result) = unsafe { before_poll(members, count, $time, $mask) } {
                    return result;
                }
            }
            // SAFETY: the caller's arguments are passed through.
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

/// The timeout of a call.
pub(super) enum Time {
    Millis(c_int),
    Spec(*const timespec),
}

macro_rules! on_sets {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) = $original:ident, with $select:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set $(, $argument: $type)*
        ) -> c_int {
            if descriptors::any_used() {
                // SAFETY: the caller passes valid sets, time and mask.
                let result = unsafe { $select(Sets::new(count, [read, write, except]) $(, $argument)*) };
                if let Some(result) = result {
                    return result;
                }
            }
            // SAFETY: the caller's arguments are passed through.
            unsafe { originals::$original(count, read, write, except $(, $argument)*) }
        }
    )*};
}

on_sets! {
    fn select(timeout: *mut timeval) = select, with select_members;
    fn __select(timeout: *mut timeval) = select, with select_members;
    fn pselect(timeout: *const timespec, mask: *const sigset_t) = pselect, with pselect_members;
}

/// Waits as `select` does, and writes the remaining time.
#[cold]
unsafe fn select_members(sets: Sets, timeout: *mut timeval) -> Option<c_int> {
    // SAFETY: the caller guarantees that it is null or points to a time.
    let given = unsafe { timeout.as_mut() };
    let time = given.as_ref().map(|time| {
        let parts = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
        let (Ok(seconds), Ok(micros)) = parts else { return None };
        Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
    });
    let (result, left) = match time {
        Some(None) => return None, // The kernel refuses it.
        // SAFETY: there is no mask.
        time => unsafe { select_or_return(&sets, time.flatten(), ptr::null())? },
    };
    if let Some(given) = given {
        (given.tv_sec, given.tv_usec) = (left.as_secs() as _, left.subsec_micros().into());
    }
    Some(result)
}

/// Waits as `pselect` does.
#[cold]
unsafe fn pselect_members(
    sets: Sets,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: guaranteed by the caller. The kernel refuses an invalid time.
    let timeout = unsafe { carry::waits::poll::time(timeout) }.ok()?;
    // SAFETY: the caller passes a valid mask.
    unsafe { select_or_return(&sets, timeout, mask) }.map(|(result, _)| result)
}

unsafe fn select_or_return(
    sets: &Sets,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<(c_int, Duration)> {
    // SAFETY: the caller passes a valid mask.
    let result = unsafe { carry::waits::select::select(sets, timeout, mask) };
    if result.is_none() {
        sets.members().for_each(|fd| return_member(fd, "select"));
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if carry::is_on() {
        return control::control(&Control { set, operation, fd, event });
    }
    // SAFETY: the caller's arguments are passed through.
    unsafe { originals::epoll_ctl(set, operation, fd, event) }
}

/// Waits for the members of a list if a member is carried or may become carried.
///
/// # Safety
/// The members, the time and the mask are valid arguments of `ppoll`.
#[cold]
pub(super) unsafe fn before_poll(
    members: *mut pollfd,
    count: c_ulong,
    time: Time,
    mask: *const sigset_t,
) -> Option<c_int> {
    let timeout = match time {
        Time::Millis(millis) => carry::waits::poll::millis(millis),
        // SAFETY: guaranteed by the caller. The kernel refuses an invalid time.
        Time::Spec(time) => unsafe { carry::waits::poll::time(time) }.ok()?,
    };
    // SAFETY: guaranteed by the caller.
    let result = unsafe { carry::waits::poll::poll(members, count as usize, timeout, mask) };
    if result.is_none() {
        // SAFETY: guaranteed by the caller.
        unsafe { return_members(members, count) };
    }
    result
}

/// Makes the members of a list return to the kernel, which then waits for them alone.
///
/// # Safety
/// The members are valid arguments of `poll`.
#[cold]
pub(super) unsafe extern "C" fn return_members(members: *const pollfd, count: c_ulong) {
    for at in 0..count as usize {
        // SAFETY: the caller guarantees that many elements.
        let fd = unsafe { (*members.add(at)).fd };
        return_member(fd, "poll");
    }
}

/// Runs before the program waits for the descriptors of three sets by a raw system call.
///
/// # Safety
/// The sets are valid arguments of `select`.
#[inline(always)]
pub(super) unsafe fn before_select(count: c_int, sets: [*mut fd_set; 3]) {
    if descriptors::any_used() {
        // SAFETY: guaranteed by the caller.
        let sets = unsafe { Sets::new(count, sets) };
        sets.members().for_each(|fd| return_member(fd, "syscall(SYS_select)"));
    }
}

/// Makes this descriptor return to the kernel, which then waits for it alone.
fn return_member(fd: c_int, call: &'static str) {
    if descriptors::is_ours(fd) {
        carried::return_to_kernel(fd, call);
    } else if let Some(set) = Set::of(fd) {
        giving_up::give_up(set);
    }
}
