//! Connections as members of epoll sets: the events that the kernel reports for them while they are carried.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::table::{MEMBERS_MAX, Members, Set, all};
use crate::carry::connection::side::{Bell, Side};
use crate::carry::connection::slots::Slot;
use crate::carry::sets::events::{EventSource, tag};
use crate::carry::sets::member::{EXCLUSIVE, Member, ONCE, OUT, PRIVATE};

impl Members<'_> {
    /// Changes the events that the kernel reports for a socket, and their data.
    fn change(&self, fd: c_int, events: u32, data: u64) -> bool {
        if events & EXCLUSIVE == 0 {
            return self.control(libc::EPOLL_CTL_MOD, fd, events, data);
        }
        // The kernel refuses to change a member with `EPOLLEXCLUSIVE`, but accepts removing and adding it.
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
        self.control(libc::EPOLL_CTL_ADD, fd, events, data)
    }

    /// Makes the kernel's set wake for the bells of the member.
    pub(super) fn attach(&mut self, index: usize) -> bool {
        let member = &self.list()[index];
        if member.attached {
            return true;
        }
        let (fd, slot) = (member.fd, member.slot);
        let Some(side) = slot.side() else { return false };
        let has_room = self.set.attached.load(Ordering::Relaxed) < MEMBERS_MAX;
        if !has_room || self.set.is_kernels.load(Ordering::SeqCst) {
            return false;
        }
        let bells = side.bells();
        for (count, bell) in bells.into_iter().enumerate() {
            if !self.control_bell(libc::EPOLL_CTL_ADD, bell, fd) {
                for bell in &bells[..count] {
                    self.control_bell(libc::EPOLL_CTL_DEL, *bell, fd);
                }
                return false;
            }
        }
        self.list()[index].attached = true;
        self.set.attached.fetch_add(1, Ordering::SeqCst);
        self.request_events(index);
        side.nudge(); // Waits that are under way include it from now on.
        true
    }

    /// Requests the events of an attached member from the kernel.
    pub(super) fn request_events(&mut self, index: usize) -> bool {
        let member = &mut self.list()[index];
        let (fd, events) = (member.fd, member.of_kernel());
        member.requested = events;
        self.change(fd, events, tag(EventSource::Socket, fd))
    }

    /// The same, unless the kernel already reports all of these events. [`translate`](Self::translate) leaves out the surplus,
    /// but a thread that waits for the set as a descriptor would see it.
    pub(super) fn request_events_if_needed(&mut self, index: usize) -> bool {
        let is_watched = self.set.is_watched();
        let member = &self.list()[index];
        let events = member.of_kernel();
        let is_simple = (events | member.requested) & PRIVATE == 0 && !is_watched;
        is_simple && events & !member.requested == 0 || self.request_events(index)
    }

    /// Removes the member from this table, and its bells from the kernel's set.
    pub(super) fn forget(&mut self, index: usize) -> Member {
        let mut member = self.list().remove(index);
        if !member.attached {
            return member;
        }
        self.set.attached.fetch_sub(1, Ordering::SeqCst);
        if let Some(side) = member.slot.side() {
            for bell in side.bells() {
                self.control_bell(libc::EPOLL_CTL_DEL, bell, member.fd);
            }
            for what in [Bell::Bytes, Bell::Room] {
                if std::mem::take(&mut member.asked[what as usize]) {
                    side.remove_sleeper(what);
                }
            }
        }
        member
    }

    /// Leaves the member to the kernel from now on.
    pub(super) fn detach(&mut self, index: usize) {
        let member = self.forget(index);
        if !member.is_in {
            self.control(libc::EPOLL_CTL_DEL, member.fd, 0, 0);
        } else if member.attached {
            let events = if member.armed { member.wants } else { member.wants & PRIVATE };
            self.change(member.fd, events, member.data);
        }
    }
}

/// The result of [`attach`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Attached {
    /// All sets with the connection wake for its bells.
    Everywhere,
    /// A one-shot member may have fired. Only the kernel knows, until the program arms it again.
    Later,
    /// A set cannot have the bells.
    Never,
}

/// Makes all sets with the carried connection wake for its bells.
pub(crate) fn attach(slot: &'static Slot) -> Attached {
    let attach = |members: &mut Members<'_>, index: usize| {
        let member = &members.list()[index];
        match member.attached || member.wants & ONCE == 0 {
            true if members.attach(index) => Attached::Everywhere,
            true => Attached::Never,
            false => Attached::Later,
        }
    };
    let in_set = |set: &Set| {
        let Ok(mut members) = set.members() else { return Some(Attached::Never) };
        let mut result = None;
        for index in 0..members.list().len() {
            if members.is_at(index, slot) {
                result = result.max(Some(attach(&mut members, index)));
            }
        }
        result
    };
    all().filter_map(in_set).max().unwrap_or(Attached::Everywhere)
}

/// Makes sets report the connection's events as the kernel does.
pub(crate) fn detach(slot: &Slot) {
    of_all(slot, |members, index| members.detach(index));
}

/// Calls `work` for the connection's members in all sets.
fn of_all(slot: &Slot, work: impl Fn(&mut Members<'_>, usize)) {
    for set in all() {
        let Ok(mut members) = set.members() else { continue };
        for index in (0..members.list().len()).rev() {
            if members.is_at(index, slot) {
                work(&mut members, index); // May remove the member.
            }
        }
    }
}

/// Sets whether the kernel is asked for room: writes go into TCP, or into the ring.
pub(crate) fn ask_kernel_for_room(slot: &Slot, asks: bool) {
    slot.ring_takes_writes.store(!asks, Ordering::SeqCst);
    for set in all().filter(|set| set.attached.load(Ordering::SeqCst) > 0) {
        let Ok(mut members) = set.members() else { continue };
        for index in 0..members.list().len() {
            let member = &members.list()[index];
            let waits_for_room = member.attached && member.wants & OUT != 0;
            let is_current = |side| !member.needs_request(side);
            if waits_for_room && !slot.side().is_some_and(is_current) && members.is_at(index, slot)
            {
                members.request_events(index);
                members.list()[index].withheld_room &= !asks;
            }
        }
    }
}

/// A write found no room. Sleeping threads that wait for room have not asked for it, because there was some when they went to
/// sleep.
#[cold]
pub(crate) fn is_full(slot: &Slot) {
    for set in all().filter(|set| set.has_sleepers()) {
        let Ok(mut members) = set.members() else { continue };
        for index in 0..members.list().len() {
            if members.list()[index].wants & OUT != 0 && members.is_at(index, slot) {
                members.wake_sleepers(index);
            }
        }
    }
}

/// The low-water mark has changed. Members are reported again, including edge-triggered ones.
#[cold]
pub(crate) fn renew(slot: &Slot) {
    for set in all() {
        let Ok(mut members) = set.members() else { continue };
        for index in 0..members.list().len() {
            if members.is_at(index, slot) {
                members.list()[index].seen = u64::MAX;
                members.wake_sleepers(index);
            }
        }
    }
}

/// Makes sets ask the kernel for room again, once writes go by TCP.
#[inline]
pub(crate) fn follow_room(slot: &Slot, side: &Side) {
    if slot.ring_takes_writes.load(Ordering::SeqCst) && side.kernel_knows_room() {
        ask_kernel_for_room(slot, true);
    }
}

/// Whether a set has a descriptor as a member.
#[cold]
pub(crate) fn have(fd: c_int) -> bool {
    all().any(|set| {
        set.members().is_ok_and(|mut members| {
            members.find(fd).is_ok_and(|index| members.list()[index].is_in)
        })
    })
}

/// Runs before a descriptor of a connection is closed. `is_last` says that no other descriptor refers to it. Returns `false` if
/// the members were busy, because a signal handler closes the descriptor.
pub(crate) fn closing(fd: c_int, is_last: bool) -> bool {
    let mut done = true;
    for set in all() {
        let Ok(mut members) = set.members() else {
            done = false;
            continue;
        };
        let Ok(index) = members.find(fd) else { continue };
        if is_last {
            let member = members.forget(index);
            if member.attached {
                members.control(libc::EPOLL_CTL_DEL, fd, 0, 0); // The kernel no longer reports the tag.
            }
        } else {
            // The kernel keeps reporting it, because another descriptor keeps the connection open.
            members.detach(index);
        }
    }
    done
}
