//! Sets that are waited for as descriptors: by `poll` and `select`, or as members of other sets.
//!
//! Such a set is *watched*. Its bells are in a set of this library, the *bell set*, which is a member of the program's set, so a
//! ringing bell ends the kernel's wait for that set. A bell may have rung for bytes that were read since. Emptying the bell set
//! costs the program no event. After that, the kernel's answer covers everything but rings, and memory covers those.
//!
//! A watched set whose members are sets looks at all of them, and asks all of them before a sleep. The kernel refuses cycles, so
//! a thread that holds the members of a set may take those of the sets in it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event, pollfd};

use super::table::{Members, Nested, Set};
use crate::carry::connection::side::Side;
use crate::carry::inner;
use crate::carry::sets::events::{EventSource, tag, tagged};
use crate::carry::sets::member::{ALWAYS, EDGE, IN, ONCE, PRIVATE};
use crate::originals::own;

/// Upper bound on batches of bells that are emptied at a time: two bells per member, in batches of 16.
const BATCHES: usize = 256;

/// Upper bound on tries to distinguish the kernel's own events from bells while bells keep ringing.
const TRIES: usize = 4;

impl Set {
    /// Whether a wait for this set as a descriptor ends now. `by_kernel` says that the kernel reports the set, perhaps for a bell
    /// only.
    pub(crate) fn is_ready(&self, mut by_kernel: bool) -> bool {
        for _ in 0..TRIES {
            if self.has_ready_ring() {
                return true;
            }
            if !by_kernel || !self.empty_bells() {
                return by_kernel;
            }
            if self.has_ready_ring() {
                self.wake_others();
                return true;
            }
            by_kernel = self.kernel_is_ready();
        }
        by_kernel
    }

    /// Whether the kernel has news of this set other than bells.
    fn kernel_has_news(&self) -> bool {
        for _ in 0..TRIES {
            if !self.empty_bells() {
                break;
            }
            if self.has_ready_ring() {
                self.wake_others();
            }
            if !self.kernel_is_ready() {
                return false;
            }
        }
        true
    }

    /// Whether the ring of a member has events, directly or in a nested set.
    pub(crate) fn has_ready_ring(&self) -> bool {
        self.members().is_ok_and(|mut members| members.is_any_ready())
    }

    fn kernel_is_ready(&self) -> bool {
        let fd = self.fd.load(Ordering::Relaxed);
        let mut member = pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one member.
        unsafe { own::poll(&raw mut member, 1, 0) > 0 }
    }

    /// Empties the bell sets. Returns `true` if a bell had rung since they were last emptied.
    fn empty_bells(&self) -> bool {
        let Ok(mut members) = self.members() else { return false };
        let mut had_rung = false;
        let bells = self.bells.load(Ordering::Relaxed);
        let mut events = [epoll_event { events: 0, u64: 0 }; 16];
        let most = events.len() as c_int;
        for _ in 0..if bells >= 0 { BATCHES } else { 0 } {
            // SAFETY: the buffer has room for the events.
            let count = unsafe { own::epoll_wait(bells, events.as_mut_ptr(), most, 0) };
            had_rung |= count > 0;
            for event in &events[..usize::try_from(count).unwrap_or(0)] {
                if let Some(index) = tagged(event.u64).and_then(|(_, fd)| members.find(fd).ok()) {
                    members.check(index);
                }
            }
            if count < most {
                break;
            }
        }
        for nested in members.nested() {
            had_rung |= nested.set.empty_bells();
        }
        had_rung
    }

    /// Wakes other sleeping threads, for which the emptied bells may have rung.
    fn wake_others(&self) {
        let Ok(mut members) = self.members() else { return };
        if self.has_sleepers() {
            members.wake();
        }
    }

    /// Makes the members of this set wake the threads that wait for it as a descriptor. Returns `false` if they cannot and must
    /// return.
    pub(crate) fn watch(&self) -> bool {
        if self.is_watched() {
            return true;
        }
        self.members().is_ok_and(|mut members| members.watch())
    }

    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.bells.load(Ordering::Relaxed) >= 0
    }
}

impl Members<'_> {
    fn watch(&mut self) -> bool {
        if self.set.is_watched() {
            return true;
        }
        let Some(bells) = bell_set() else { return false };
        if !self.control(libc::EPOLL_CTL_ADD, bells, IN | EDGE, tag(EventSource::Bell, 0)) {
            inner::close(bells);
            return false;
        }
        let fd = self.set.fd.load(Ordering::Relaxed);
        self.set.bells.store(bells, Ordering::SeqCst);
        for index in (0..self.list().len()).rev() {
            let member = &self.list()[index];
            let (its, slot) = (member.fd, member.slot);
            let Some(side) = slot.side().filter(|_| member.attached) else { continue };
            for bell in side.bells() {
                control(fd, libc::EPOLL_CTL_DEL, bell, 0, 0);
                if !self.control_bell(libc::EPOLL_CTL_ADD, bell, its) {
                    return false;
                }
            }
            // From now on, changes reach the kernel at once.
            if self.list()[index].is_in {
                self.request_events(index);
            } else {
                self.detach(index);
            }
        }
        true
    }

    /// Adds a bell of a member, or removes it.
    pub(super) fn control_bell(&self, operation: c_int, bell: c_int, member: c_int) -> bool {
        let bells = self.set.bells.load(Ordering::Relaxed);
        let set = if bells >= 0 { bells } else { self.set.fd.load(Ordering::Relaxed) };
        control(set, operation, bell, IN | EDGE, tag(EventSource::Bell, member))
    }

    pub(super) fn find_nested(&mut self, fd: c_int) -> Option<usize> {
        self.nested().iter().position(|nested| nested.fd == fd)
    }

    /// Adds a set to this one, or changes it there. Returns `false` with the reason in errno.
    pub(super) fn put_nested(
        &mut self,
        fd: c_int,
        set: &'static Set,
        wants: u32,
        data: u64,
    ) -> bool {
        let known = self.find_nested(fd);
        let operation = if known.is_some() { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        if !self.control(operation, fd, wants, tag(EventSource::Set, fd)) {
            return false;
        }
        let nested = Nested { fd, set, wants, data, armed: true, seen: u64::MAX, asked: false };
        match known {
            Some(index) => {
                let asked = self.nested()[index].asked;
                self.nested()[index] = Nested { asked, ..nested };
            }
            None => {
                self.nested().push(nested);
                self.set.nested.fetch_add(1, Ordering::SeqCst);
            }
        }
        // A wait that is under way includes the set from now on.
        if let Ok(mut members) = set.members() {
            members.wake();
        }
        true
    }

    /// Removes a member that is a set.
    pub(super) fn forget_nested(&mut self, index: usize) -> Nested {
        let nested = self.nested().swap_remove(index);
        self.set.nested.fetch_sub(1, Ordering::SeqCst);
        if nested.asked
            && let Ok(mut members) = nested.set.members()
        {
            members.end_sleep_of_set();
        }
        nested
    }

    /// Leaves a member that is a set to the kernel.
    pub(super) fn detach_nested(&mut self, index: usize) -> &'static Set {
        let nested = self.forget_nested(index);
        let events = if nested.armed { nested.wants } else { nested.wants & PRIVATE };
        self.control(libc::EPOLL_CTL_MOD, nested.fd, events, nested.data);
        nested.set
    }

    /// The events to report for a set for which the kernel has events. `None` if there are none.
    pub(super) fn report_nested(&mut self, fd: c_int, events: u32) -> Option<epoll_event> {
        let index = self.find_nested(fd)?;
        let nested = &mut self.nested()[index];
        let events = events & (nested.wants | ALWAYS);
        if events == 0 || !nested.armed || !nested.has_news() {
            return None;
        }
        nested.reported();
        Some(epoll_event { events, u64: nested.data })
    }

    /// Wakes the threads that wait for this set.
    pub(super) fn wake(&mut self) {
        let attached = self.list().iter().find(|member| member.attached);
        if let Some(side) = attached.and_then(|member| member.slot.side()) {
            return side.nudge();
        }
        for nested in self.nested() {
            if let Ok(mut members) = nested.set.members() {
                members.wake();
            }
        }
    }

    /// A value that changes when more bytes come into a ring of the set.
    fn arrived(&mut self) -> u64 {
        let of_side = |side: &Side| {
            let is_writable = u64::from(side.is_writable() == Some(true));
            side.arrived().wrapping_mul(2).wrapping_add(is_writable)
        };
        let sides = self.list().iter().filter_map(|member| member.slot.side());
        let own = sides.map(of_side).fold(0, u64::wrapping_add);
        let nested = self.nested().iter().filter_map(|nested| nested.set.members().ok());
        nested.map(|mut members| members.arrived()).fold(own, u64::wrapping_add)
    }

    /// Asks the nested sets to wake this one.
    pub(super) fn ask_nested(&mut self) {
        for nested in self.nested() {
            if let Ok(mut members) = nested.set.members() {
                if std::mem::replace(&mut nested.asked, true) {
                    members.ask();
                } else {
                    members.prepare_sleep_of_set();
                }
            }
        }
    }

    /// Runs after the last wait slept.
    pub(super) fn withdraw_nested(&mut self) {
        for nested in self.nested() {
            if std::mem::take(&mut nested.asked)
                && let Ok(mut members) = nested.set.members()
            {
                members.end_sleep_of_set();
            }
        }
    }
}

impl Nested {
    /// The events of its rings that must be reported.
    pub(super) fn ready(&self) -> u32 {
        let wanted = self.wants & IN;
        if !self.armed || wanted == 0 || !self.set.has_ready_ring() {
            return 0;
        }
        let is_new = self.wants & EDGE == 0 || self.arrived() != self.seen;
        if is_new { wanted } else { 0 }
    }

    /// Whether there are events to report after the kernel reported the set.
    fn has_news(&self) -> bool {
        if self.wants & EDGE == 0 {
            return self.set.is_ready(true);
        }
        self.ready() != 0 || self.set.kernel_has_news()
    }

    /// Notes that the set was reported.
    pub(super) fn reported(&mut self) {
        self.armed = self.wants & ONCE == 0;
        if self.wants & EDGE != 0 {
            self.seen = self.arrived();
        }
    }

    fn arrived(&self) -> u64 {
        self.set.members().map_or(0, |mut members| members.arrived())
    }
}

fn control(set: c_int, operation: c_int, fd: c_int, events: u32, data: u64) -> bool {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: the event is a local variable.
    unsafe { own::epoll_ctl(set, operation, fd, &raw mut event) == 0 }
}

/// Creates a set of this library.
fn bell_set() -> Option<c_int> {
    // SAFETY: the call takes no pointers.
    let set = unsafe { own::epoll_create1(libc::EPOLL_CLOEXEC) };
    if set < 0 {
        return None;
    }
    // SAFETY: the descriptor has no other owner.
    let set = inner::keep(unsafe { OwnedFd::from_raw_fd(set) }).ok()?;
    let fd = set.as_raw_fd();
    inner::is_of_side(fd);
    std::mem::forget(set); // Closed together with the program's set.
    Some(fd)
}
