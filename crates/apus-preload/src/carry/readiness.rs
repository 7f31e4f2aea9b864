//! `poll` with members that are carried, or may come to be.

use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{c_int, c_short, pollfd, sigset_t};

use super::kernel;
use super::side::{Bell, Side};
use super::slots::Use;
use super::spin::{self, Clock};
use crate::{descriptors, errno, originals};

/// Members of nearly all lists. They need 3 kB of the stack.
pub(crate) const FEW: usize = 64;

/// Members of a list that are looked at, and of any that `select` has; longer lists are the kernel's. They need 50 kB of the stack: nobody
/// may allocate here, because a signal handler may call `poll`.
pub(crate) const MANY: usize = libc::FD_SETSIZE;

/// Bells, and the events for which they are waited for.
const BELLS: [(Bell, c_short); 2] = [
    (Bell::Bytes, libc::POLLIN | libc::POLLRDNORM),
    (Bell::Room, libc::POLLOUT | libc::POLLWRNORM),
];

/// The members of a call.
struct Members<'a, const MOST: usize> {
    list: &'a mut [pollfd],
    /// Their connections, where they have one.
    used: [Option<Use>; MOST],
    count: usize,
    /// Those that are not carried, so that the kernel alone tells of them.
    entered: [bool; MOST],
}

/// Waits as `ppoll` does. `None`: no member is carried, nor may come to be.
///
/// # Safety
///
/// There are `count` members, and the mask is null or one.
#[cold]
pub(crate) unsafe fn poll(
    list: *mut pollfd,
    count: usize,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if count == 0 || count > MANY || list.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts_mut(list, count) };
    if !list.iter().any(|member| descriptors::is_ours(member.fd)) {
        return None;
    }
    Some(if count <= FEW {
        wait::<FEW>(list, timeout, mask)
    } else {
        wait::<MANY>(list, timeout, mask)
    })
}

/// Waits for the members of a list, which are `MOST` or fewer. Apart, so that only long lists need the stack of long lists.
#[inline(never)]
fn wait<const MOST: usize>(
    list: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let mut used = [const { None }; MOST];
    for (used, member) in used.iter_mut().zip(&*list) {
        *used = if descriptors::is_ours(member.fd) { Use::of(member.fd) } else { None };
    }
    let count = list.len();
    Members { list, used, count, entered: [false; MOST] }.wait(timeout, mask)
}

impl<const MOST: usize> Members<'_, MOST> {
    fn side(&self, index: usize) -> Option<&Side> {
        self.used[index].as_ref()?.side()
    }

    fn wait(mut self, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        self.enter_kernel();
        let until = timeout.map(|timeout| Clock::now() + timeout);
        let mut first = true;
        loop {
            let left = until.map(|until| until.saturating_sub(Clock::now()));
            let ready = self.is_any_ready();
            let time = if ready || (first && left != Some(Duration::ZERO) && self.spin()) {
                Some(Duration::ZERO)
            } else {
                left
            };
            first = false;
            let result = self.look(time, mask);
            let is_over = until.is_some_and(|until| until <= Clock::now());
            if result != 0 || is_over {
                return result;
            }
        }
    }

    /// No direction whose bytes this call waits for in the kernel switches meanwhile.
    fn enter_kernel(&mut self) {
        for (index, used) in self.used[..self.count].iter().enumerate() {
            if let Some(used) = used
                && used.side().is_none()
            {
                used.slot.in_kernel[0].fetch_add(1, Ordering::SeqCst);
                self.entered[index] = true;
            }
        }
    }

    fn is_ready(&self, index: usize) -> c_short {
        let Some(side) = self.side(index) else { return 0 };
        let mut events = 0;
        if side.is_readable() {
            events |= BELLS[0].1;
        }
        if side.is_writable() == Some(true) {
            events |= BELLS[1].1;
        }
        events & self.list[index].events
    }

    fn is_any_ready(&self) -> bool {
        (0..self.count).any(|index| self.is_ready(index) != 0)
    }

    /// Looks at the rings for a while. True if something is there.
    fn spin(&self) -> bool {
        let Some(side) = (0..self.count).find_map(|index| self.side(index)) else { return false };
        !side.shares_processor() && spin::until(&side.spin, || self.is_any_ready())
    }

    /// Asks the kernel once, and sleeps there for `timeout` if nothing is in a ring.
    fn look(&mut self, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        let nobody = pollfd { fd: -1, events: 0, revents: 0 };
        // Behind the members, at the same index: their bells, if bytes or room are waited for.
        let mut kernels = [[nobody; MOST]; 3];
        let kernels = kernels.as_flattened_mut();
        let (members, bells) = kernels.split_at_mut(self.count);
        let (mut relying, mut is_over) = ([[false; MOST]; 2], false);
        for (index, member) in members.iter_mut().enumerate() {
            *member = pollfd { revents: 0, ..self.list[index] };
            let Some(side) = self.side(index) else { continue };
            for (bell, (what, its)) in BELLS.into_iter().enumerate() {
                if member.events & its != 0 {
                    side.add_sleeper(what);
                    side.ask(what);
                    let relies = side.relies_on_bell(what);
                    is_over |= relies && !side.only_bell_tells(what);
                    if relies {
                        member.events &= !its;
                        relying[bell][index] = true;
                    }
                    for (place, fd) in side.bells().into_iter().enumerate() {
                        let at = place * self.count + index;
                        bells[at] = pollfd { fd, events: libc::POLLIN, revents: 0 };
                    }
                }
            }
        }
        let timeout = if is_over || self.is_any_ready() { Some(Duration::ZERO) } else { timeout };
        let timeout = timeout.map(kernel::spec);
        let time = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = 3 * self.count;
        // SAFETY: the list has that many members.
        let result = unsafe { originals::ppoll(kernels.as_mut_ptr(), count as _, time, mask) };
        errno::kept(|| self.get_up(&kernels[self.count..count], &relying));
        if result < 0 { result } else { self.report(&kernels[..self.count]) }
    }

    /// The call does not sleep any more. `relying`: members that had not asked the kernel, by bell.
    fn get_up(&self, bells: &[pollfd], relying: &[[bool; MOST]; 2]) {
        for index in 0..self.count {
            let Some(side) = self.side(index) else { continue };
            let its = [0, 1].map(|place| bells[place * self.count + index]);
            if its[1].fd < 0 {
                continue; // It was not carried then, or not waited for.
            }
            if its[0].revents | its[1].revents != 0 {
                side.hear();
            }
            for (bell, (what, events)) in BELLS.into_iter().enumerate() {
                if self.list[index].events & events != 0 {
                    side.get_up(what, relying[bell][index]);
                }
            }
        }
    }

    /// Tells the program what is ready, in rings or by what the kernel says. Returns how many members are.
    fn report(&mut self, kernels: &[pollfd]) -> c_int {
        let mut count = 0;
        for (index, kernel) in kernels.iter().enumerate() {
            let revents = kernel.revents | self.is_ready(index);
            self.list[index].revents = revents;
            count += c_int::from(revents != 0);
        }
        count
    }
}

impl<const MOST: usize> Drop for Members<'_, MOST> {
    fn drop(&mut self) {
        for (index, used) in self.used[..self.count].iter().enumerate() {
            if let Some(used) = used
                && self.entered[index]
            {
                used.slot.in_kernel[0].fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// The time of `poll`.
pub(crate) fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// The time of `ppoll`: `Err` if it is none.
pub(crate) unsafe fn time(timeout: *const libc::timespec) -> Result<Option<Duration>, ()> {
    // SAFETY: the caller's promise: it is null or a time.
    let Some(time) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            Ok(Some(Duration::new(seconds, nanos)))
        }
        _ => Err(()),
    }
}
