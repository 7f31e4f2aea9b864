//! `poll` with members that are carried connections, candidates, or epoll sets with such members.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{c_int, c_short, pollfd, sigset_t};

use crate::carry::connection::readable::is_readable;
use crate::carry::connection::side::{Bell, Side};
use crate::carry::connection::slots::{Slot, Use};
use crate::carry::holds::{Hold, RECEIVES, SLEEPS};
use crate::carry::kernel;
use crate::carry::scratch::Scratch;
use crate::carry::sets::giving_up;
use crate::carry::sets::table::Set;
use crate::carry::spin::{self, Clock};
use crate::descriptors::{self, CANDIDATE, CARRIED, INHERITED};
use crate::{errno, originals};

/// Members of nearly all lists. They need 2 kB of stack; longer lists are in [`Scratch`] memory.
pub(crate) const FEW: usize = 40;

thread_local! {
    /// Time of this thread's last `poll` that asked the kernel, in nanoseconds.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// Upper bound on the time between two requests to the kernel about members whose bytes go through rings. Only the kernel may
/// know that the peer has died.
const KERNEL_EVERY: Duration = Duration::from_micros(500);

/// Upper bound on the kernel's descriptor numbers.
const MANY: usize = 1 << 20;

/// The bells, and the events that they serve.
const BELLS: [(Bell, c_short); 2] = [
    (Bell::Bytes, libc::POLLIN | libc::POLLRDNORM),
    (Bell::Room, libc::POLLOUT | libc::POLLWRNORM),
];

const NOBODY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// The kind of a member.
enum Of {
    /// Only the kernel reports it.
    Kernel,
    Connection(Use),
    Set(&'static Set, Hold),
}

/// The call's preparations for a member.
#[derive(Clone, Copy)]
struct Done(u8);

impl Done {
    const NOTHING: Self = Self(0);
    /// Its bells are in the list for bytes, for room.
    const ASKED: [u8; 2] = [2, 4];
    /// The members of a set were asked.
    const SLEEPS: u8 = 32;
    /// Its bells are in the list for the end of the inbound direction, for which the peer always rings.
    const LISTENS: u8 = 64;

    fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }

    /// Whether the member's bells are in the list.
    fn has_bells(self) -> bool {
        self.has(Self::ASKED[0] | Self::ASKED[1] | Self::LISTENS)
    }
}

/// The members of a call.
struct Members<'a> {
    list: &'a mut [pollfd],
    of: &'a mut [Of],
    done: &'a mut [Done],
    /// The kernel's list: the members at the same index, followed by bells.
    kernels: &'a mut [pollfd],
}

/// Waits as `ppoll` does. Returns `None` if no member is carried or a candidate.
///
/// # Safety
///
/// There are `count` members, and the mask is null or valid.
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
    // SAFETY: guaranteed by the caller.
    let list = unsafe { slice::from_raw_parts_mut(list, count) };
    if list.iter().filter(|member| has_to_look_at(member.fd)).count() == 0 {
        return None;
    }
    if count <= FEW {
        return Some(wait_for_few(list, timeout, mask));
    }
    if !fits(list) {
        return None;
    }
    let mut scratch = Scratch::new(count * EACH)?;
    // SAFETY: the scratch has room for these lists, in the order of decreasing alignment.
    unsafe {
        let of: *mut Of = scratch.as_mut_ptr().cast();
        let kernels: *mut pollfd = of.add(count).cast();
        let done: *mut Done = kernels.add(3 * count).cast();
        for index in 0..count {
            of.add(index).write(Of::Kernel);
            done.add(index).write(Done::NOTHING);
        }
        ptr::write_bytes(kernels, 0, 3 * count);
        let of = slice::from_raw_parts_mut(of, count);
        let done = slice::from_raw_parts_mut(done, count);
        let kernels = slice::from_raw_parts_mut(kernels, 3 * count);
        Some(Members { list, of, done, kernels }.wait(timeout, mask))
    }
}

/// Whether the kernel alone cannot wait for this descriptor. If it is a set of the parent, notifies the parent of the wait.
#[inline]
pub(super) fn has_to_look_at(fd: c_int) -> bool {
    let word = descriptors::word(fd);
    if word & INHERITED != 0 {
        giving_up::note_foreign_use(fd);
    }
    word & (CARRIED | CANDIDATE) != 0 || Set::of(fd).is_some()
}

/// Bytes of the lists per member.
const EACH: usize = size_of::<Of>() + 3 * size_of::<pollfd>() + size_of::<Done>();

/// Whether the kernel accepts the members together with the bells of the carried ones.
fn fits(list: &[pollfd]) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer has room for the limit.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let ours = list.iter().filter(|member| descriptors::is_ours(member.fd)).count();
    (list.len() + 2 * ours) as u64 <= limit.rlim_cur
}

/// The same with lists on the stack.
#[inline(never)]
fn wait_for_few(list: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
    let count = list.len();
    let mut of = [const { Of::Kernel }; FEW];
    let mut done = [Done::NOTHING; FEW];
    let mut kernels = [MaybeUninit::<pollfd>::uninit(); 3 * FEW];
    for kernel in &mut kernels[..3 * count] {
        kernel.write(NOBODY);
    }
    // SAFETY: these elements are initialized.
    let kernels = unsafe { slice::from_raw_parts_mut(kernels.as_mut_ptr().cast(), 3 * count) };
    Members { list, of: &mut of[..count], done: &mut done[..count], kernels }.wait(timeout, mask)
}

impl Members<'_> {
    fn side(&self, index: usize) -> Option<&Side> {
        match &self.of[index] {
            Of::Connection(used) => used.side(),
            Of::Kernel | Of::Set(..) => None,
        }
    }

    fn wait(mut self, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        self.enter();
        let until = timeout.map(|timeout| Clock::now() + timeout);
        let mut first = true;
        loop {
            let left = until.map(|until| until.saturating_sub(Clock::now()));
            let is_there =
                self.is_any_ready() || first && left != Some(Duration::ZERO) && self.spin();
            if is_there && self.kernel_has_nothing_else() {
                return self.report();
            }
            let time = if is_there { Some(Duration::ZERO) } else { left };
            first = false;
            let result = self.look(time, mask);
            let is_over = until.is_some_and(|until| until <= Clock::now());
            if result != 0 || is_over {
                return result;
            }
        }
    }

    /// Determines the kind of each member. No direction whose bytes this call awaits in the kernel switches meanwhile.
    fn enter(&mut self) {
        for (index, member) in self.list.iter().enumerate() {
            if descriptors::is_ours(member.fd) {
                let Some(used) = Use::of(member.fd) else { continue };
                if used.side().is_none() {
                    used.enter_kernel(RECEIVES);
                }
                self.of[index] = Of::Connection(used);
            } else if let Some(set) = Set::of(member.fd) {
                self.of[index] = errno::kept(|| enter_set(member.fd, set));
            }
        }
    }

    fn is_ready(&self, index: usize) -> c_short {
        let events = match &self.of[index] {
            Of::Kernel => 0,
            Of::Connection(used) => {
                let fd = self.list[index].fd;
                used.side().map_or(0, |side| is_ready(used.slot, side, fd))
            }
            Of::Set(set, _) if set.has_ready_ring() => BELLS[0].1,
            Of::Set(..) => 0,
        };
        events & (self.list[index].events | libc::POLLHUP)
    }

    fn is_any_ready(&self) -> bool {
        (0..self.list.len()).any(|index| self.is_ready(index) != 0)
    }

    /// Whether the rings cover all awaited events and the kernel was asked a moment ago.
    fn kernel_has_nothing_else(&self) -> bool {
        const KNOWN: c_short = BELLS[0].1 | BELLS[1].1;
        let is_in_ring = |index: usize| {
            let is_known = self.list[index].events & !KNOWN == 0;
            is_known && self.side(index).is_some_and(Side::kernel_has_nothing)
        };
        let asked = Duration::from_nanos(ASKED.get());
        Clock::now().saturating_sub(asked) < KERNEL_EVERY && (0..self.list.len()).all(is_in_ring)
    }

    /// Spins on the rings. Returns `true` if a ring has events.
    fn spin(&self) -> bool {
        let is_there = || self.is_any_ready();
        if let Some(side) = (0..self.list.len()).find_map(|index| self.side(index)) {
            return !side.shares_processor() && spin::until(&side.spin, is_there);
        }
        let set = self.of.iter().find_map(|of| match of {
            Of::Set(set, _) => Some(set),
            Of::Kernel | Of::Connection(_) => None,
        });
        set.is_some_and(|set| {
            let may = set.members().is_ok_and(|mut members| !members.shares_processor());
            may && spin::until(&set.spin, is_there)
        })
    }

    /// Asks the kernel once, and sleeps there for up to `timeout` if no ring has events.
    fn look(&mut self, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        let (mut end, mut is_over) = (self.list.len(), false);
        for index in 0..self.list.len() {
            self.kernels[index] = pollfd { revents: 0, ..self.list[index] };
            self.done[index] = Done::NOTHING;
            match &self.of[index] {
                Of::Kernel => {}
                Of::Set(set, hold) => {
                    if let Ok(mut members) = set.members() {
                        members.prepare_sleep(hold);
                        self.done[index].0 |= Done::SLEEPS;
                    }
                }
                Of::Connection(used) => {
                    let Some(side) = used.side() else { continue };
                    for (bell, (what, its)) in BELLS.into_iter().enumerate() {
                        if self.list[index].events & its == 0 {
                            continue;
                        }
                        used.begin_sleep(what);
                        side.ask(what);
                        self.done[index].0 |= Done::ASKED[bell];
                        if used.relies_on_bell(side, what) {
                            is_over |= !side.only_bell_ends_wait(what);
                            self.kernels[index].events &= !its;
                        }
                    }
                    if self.list[index].events & libc::POLLRDHUP != 0 {
                        self.done[index].0 |= Done::LISTENS;
                    }
                    if self.done[index].has_bells() {
                        for fd in side.polled_bells() {
                            self.kernels[end] = pollfd { fd, events: libc::POLLIN, revents: 0 };
                            end += 1;
                        }
                    }
                }
            }
        }
        let timeout = if is_over || self.is_any_ready() { Some(Duration::ZERO) } else { timeout };
        let timeout = timeout.map(kernel::spec);
        let time = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the list has at least `end` members.
        let result = unsafe {
            spin::note_sleep(true);
            let result = originals::ppoll(self.kernels.as_mut_ptr(), end as _, time, mask);
            spin::note_sleep(false);
            result
        };
        ASKED.set(Clock::now().as_nanos() as u64);
        errno::kept(|| self.end_sleep());
        if result < 0 { result } else { errno::kept(|| self.report()) }
    }

    /// Ends the sleep of the call.
    fn end_sleep(&mut self) {
        let mut bells = self.kernels[self.list.len()..].iter();
        for (of, done) in self.of.iter().zip(&*self.done) {
            match of {
                Of::Set(set, hold) if done.has(Done::SLEEPS) => match set.members() {
                    Ok(mut members) => members.end_sleep(hold),
                    Err(_) => hold.remove(SLEEPS[0]),
                },
                Of::Connection(used) => {
                    let Some(side) = used.side() else { continue };
                    // The connection may not have been carried then, or not awaited.
                    if done.has_bells() && bells.by_ref().take(2).any(|bell| bell.revents != 0) {
                        side.check();
                    }
                    for (bell, (what, _)) in BELLS.into_iter().enumerate() {
                        if done.has(Done::ASKED[bell]) {
                            used.end_sleep(side, what);
                        }
                    }
                    if done.has(Done::LISTENS) {
                        side.pass_on();
                    }
                }
                Of::Kernel | Of::Set(..) => {}
            }
        }
    }

    /// Reports ready members, both carried and kernel ones. Returns the number of ready members.
    fn report(&mut self) -> c_int {
        let mut count = 0;
        for index in 0..self.list.len() {
            let kernel = self.kernels[index].revents;
            let (its, wanted) = (BELLS[0].1, self.list[index].events);
            let revents = match &self.of[index] {
                // The kernel's answer may only be due to a bell.
                Of::Set(set, _) if wanted & its != 0 && set.is_ready(kernel & its != 0) => {
                    kernel | its & wanted
                }
                Of::Set(..) => kernel & !its,
                Of::Kernel | Of::Connection(_) => kernel | self.is_ready(index),
            };
            self.list[index].revents = revents;
            count += c_int::from(revents != 0);
        }
        count
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        // The last hold is released first, as everywhere.
        self.of.iter_mut().rev().for_each(|of| *of = Of::Kernel);
    }
}

/// The ring events of a connection.
fn is_ready(slot: &Slot, side: &Side, fd: c_int) -> c_short {
    let mut events = 0;
    if is_readable(slot, side, fd) {
        events |= BELLS[0].1;
    }
    if side.is_writable() == Some(true) {
        events |= BELLS[1].1;
    }
    // The kernel reports the end once the ring was read.
    if side.has_input_ended() {
        events |= libc::POLLRDHUP;
    }
    if side.has_hung_up() {
        events |= libc::POLLHUP;
    }
    events
}

/// Prepares a set that is waited for as a descriptor.
#[cold]
fn enter_set(fd: c_int, set: &'static Set) -> Of {
    giving_up::note_foreign_use(fd);
    if set.is_kernels.load(Ordering::SeqCst) {
        return Of::Kernel;
    }
    if !set.watch() {
        giving_up::give_up(set);
        return Of::Kernel;
    }
    Of::Set(set, Hold::set(set.number()))
}

/// The timeout of `poll`.
pub(crate) fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// The timeout of `ppoll`. `Err` if it is invalid.
pub(crate) unsafe fn time(timeout: *const libc::timespec) -> Result<Option<Duration>, ()> {
    // SAFETY: the caller guarantees that it is null or points to a time.
    let Some(time) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            Ok(Some(Duration::new(seconds, nanos)))
        }
        _ => Err(()),
    }
}
