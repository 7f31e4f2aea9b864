//! `epoll_wait` on known sets.
//!
//! A wait looks at the rings first. If the kernel was not asked for a while, the wait asks it too, so that busy rings do not
//! starve the program's other descriptors. If the kernel's events filled the buffer, rings have the next turn. If nothing is
//! ready, the thread spins on the rings for as long as that paid in recent waits, and then sleeps in the kernel's set, which has
//! the bells.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{c_int, epoll_event, sigset_t, timespec};

use super::table::Set;
use crate::carry::holds::Hold;
use crate::carry::kernel;
use crate::carry::sets::events::Events;
use crate::carry::spin::{self, Clock};
use crate::originals::own;
use crate::{errno, originals};

/// The arguments of `epoll_wait` and its relatives.
pub(crate) struct Wait {
    pub(crate) fd: c_int,
    pub(crate) events: *mut epoll_event,
    pub(crate) count: c_int,
    pub(crate) timeout: Option<Duration>,
    pub(crate) mask: *const sigset_t,
    /// Whether the timeout is finer than milliseconds.
    pub(crate) is_precise: bool,
}

/// Upper bound on the time between two requests to the kernel.
const KERNEL_EVERY: Duration = Duration::from_micros(50);
/// Upper bound on looks at members between two looks at the kernel's set.
const LOOKS: usize = 1_024;

/// Waits. Returns `None` if the kernel should handle the call.
///
/// # Safety
///
/// The buffer has room for the events, and the mask is null or valid.
pub(crate) unsafe fn wait(set: &Set, call: &Wait) -> Option<c_int> {
    let limit = usize::try_from(call.count).ok().filter(|limit| *limit > 0)?;
    if call.events.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    let mut events = unsafe { Events::new(call.events, limit) };
    let until = call.timeout.map(|timeout| Clock::now() + timeout);
    let mut has_spun = false;
    loop {
        let now = Clock::now();
        let left = until.map(|until| until.saturating_sub(now));
        if !set.has_rings() {
            match ask_kernel(call, &mut events, left) {
                Ok(0) => return Some(0),
                Ok(count) => match report(set, &mut events, count)? {
                    0 => continue, // A connection became carried.
                    count => return Some(count),
                },
                Err(()) => return Some(-1),
            }
        }
        let asked = Duration::from_nanos(set.asked_kernel.load(Ordering::Relaxed));
        let is_rings_turn = set.kernel_took_all.swap(false, Ordering::Relaxed);
        let was_asked = now.saturating_sub(asked) < KERNEL_EVERY;
        if is_rings_turn || was_asked {
            match report(set, &mut events, 0)? {
                0 => {}
                count => return Some(count),
            }
        }
        // A wait that sleeps at once thereby asks the kernel.
        let is_quiet = was_asked && !set.kernel_had_events.load(Ordering::Relaxed);
        if left == Some(Duration::ZERO) || is_to_ask(set, has_spun, is_quiet)? {
            set.asked_kernel.store(now.as_nanos() as u64, Ordering::Relaxed);
            errno::kept(|| set.members().ok().map(|mut members| members.follow_room()))?;
            let Ok(count) = ask_kernel(call, &mut events, Some(Duration::ZERO)) else {
                return Some(-1);
            };
            set.kernel_took_all.store(count == limit, Ordering::Relaxed);
            set.kernel_had_events.store(count > 0, Ordering::Relaxed);
            let count = report(set, &mut events, count)?;
            if count > 0 || left == Some(Duration::ZERO) {
                return Some(count);
            }
        }
        if !std::mem::replace(&mut has_spun, true) && spin(set, call.fd)? {
            continue;
        }
        match sleep(set, call, &mut events, left)? {
            0 => {}
            result => return Some(result),
        }
    }
}

/// Whether a wait asks the kernel first, because it is about to spin or a ring has events. `is_quiet` says that the kernel had no
/// events a moment ago and will be asked again soon.
fn is_to_ask(set: &Set, has_spun: bool, is_quiet: bool) -> Option<bool> {
    let spins = !has_spun && !is_quiet && set.spin.looks_next();
    let mut members = set.members().ok()?;
    Some(spins && !members.shares_processor() || members.is_any_ready())
}

/// Spins on the rings. Returns `true` if a ring or the kernel has events.
fn spin(set: &Set, fd: c_int) -> Option<bool> {
    if set.members().ok()?.shares_processor() {
        return Some(false);
    }
    let looks = Cell::new(0);
    let each = set.attached.load(Ordering::Relaxed).max(1);
    Some(spin::until(&set.spin, || {
        looks.set(looks.get() + each);
        if looks.get() > LOOKS {
            looks.set(0);
            let mut member = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: the pointer is to one member.
            if unsafe { own::poll(&raw mut member, 1, 0) } > 0 {
                return true;
            }
        }
        set.members().is_ok_and(|mut members| members.is_any_ready())
    }))
}

/// Sleeps in the kernel's set, unless a ring has events. Returns 0 if there are no events to report yet.
fn sleep(set: &Set, call: &Wait, events: &mut Events, left: Option<Duration>) -> Option<c_int> {
    let hold = Hold::set(set.number());
    let is_there = {
        let mut members = set.members().ok()?;
        members.prepare_sleep(&hold);
        members.is_any_ready()
    };
    let result = if is_there {
        Ok(0)
    } else {
        spin::note_sleep(true);
        let result = ask_kernel(call, events, left);
        spin::note_sleep(false);
        result
    };
    if !is_there {
        set.asked_kernel.store(Clock::now().as_nanos() as u64, Ordering::Relaxed);
        set.kernel_had_events.store(result != Ok(0), Ordering::Relaxed);
    }
    errno::kept(|| {
        if let Ok(mut members) = set.members() {
            members.end_sleep(&hold);
        }
    });
    match result {
        Ok(count) => report(set, events, count),
        Err(()) => Some(-1),
    }
}

fn report(set: &Set, events: &mut Events, count: usize) -> Option<c_int> {
    let count = errno::kept(|| set.members().ok().map(|mut members| members.report(events, count)));
    count.map(|count| count as c_int)
}

/// Asks the kernel. `Err` leaves the reason in errno.
fn ask_kernel(call: &Wait, events: &mut Events, timeout: Option<Duration>) -> Result<usize, ()> {
    #[cfg(all(test, apus_model))]
    if timeout != Some(Duration::ZERO) {
        loop {
            match ask_kernel(call, events, Some(Duration::ZERO)) {
                Ok(0) => shuttle::thread::yield_now(),
                asked => return asked,
            }
        }
    }
    let (fd, first, count) = (call.fd, events.as_mut_ptr(), call.count);
    let result = if call.is_precise {
        let timeout: Option<timespec> = timeout.map(kernel::spec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the caller of `wait` guarantees that the events and the mask are valid.
        unsafe { originals::epoll_pwait2(fd, first, count, timeout, call.mask) }
    } else {
        // Rounded up, as the kernel does.
        let millis = timeout.map_or(-1, |time| time.as_nanos().div_ceil(1_000_000) as c_int);
        // SAFETY: as above.
        unsafe { originals::epoll_pwait(fd, first, count, millis, call.mask) }
    };
    usize::try_from(result).map_err(|_| ())
}
