//! The result of a wait for an epoll set: the kernel's events, and those of the members' rings.

use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::table::Members;
use crate::carry::connection::side::{Bell, Side};
use crate::carry::holds::{Hold, SLEEPS};
use crate::carry::sets::events::{EventSource, Events, tagged};
use crate::carry::sets::member::{ALWAYS, EDGE, HANGUP, IN, Member, ONCE, OUT};

impl Members<'_> {
    /// Whether a member has ring events to report.
    pub(crate) fn is_any_ready(&mut self) -> bool {
        self.list().iter().any(|member| member.ready() != 0)
            || self.nested().iter().any(|nested| nested.ready() != 0)
    }

    /// Adds the ring events to the first `count` events, merging those of the same member. Returns the new number of events.
    pub(crate) fn report(&mut self, events: &mut Events, count: usize) -> usize {
        let by_kernel = self.translate(events, count);
        self.ask_for_bytes_again();
        let mut count = by_kernel;
        if self.turns().is_of_nested {
            count = self.report_nested_rings(events, by_kernel, count);
        }
        count = self.report_rings(events, by_kernel, count);
        if !self.turns().is_of_nested {
            count = self.report_nested_rings(events, by_kernel, count);
        }
        let turns = self.turns();
        turns.is_of_nested = count == events.limit && !turns.is_of_nested;
        count
    }

    /// Reports the rings of members. `by_kernel` is the number of members that the kernel has reported: few, most often none.
    fn report_rings(&mut self, events: &mut Events, by_kernel: usize, mut count: usize) -> usize {
        let mut next = self.turns().next;
        let list = self.list();
        let first = list.partition_point(|member| member.fd < next);
        let (before, behind) = list.split_at_mut(first);
        for member in behind.iter_mut().chain(before) {
            let arrived = member.arrived();
            let ready = match member.ready() {
                0 => continue,
                ready => ready | member.room_in_tcp(ready),
            };
            let data = member.data;
            let its = (0..by_kernel).find(|at| events.get(*at).u64 == data);
            if let Some(at) = its {
                events.put(at, epoll_event { events: events.get(at).events | ready, u64: data });
            } else if count < events.limit {
                events.put(count, epoll_event { events: ready, u64: data });
                count += 1;
                next = member.fd + 1;
            } else {
                break;
            }
            member.reported(ready, arrived);
        }
        self.turns().next = next;
        count
    }

    /// The same for members that are sets.
    fn report_nested_rings(
        &mut self,
        events: &mut Events,
        by_kernel: usize,
        mut count: usize,
    ) -> usize {
        let list = self.nested();
        for index in 0..list.len() {
            let nested = &mut list[index];
            let ready = nested.ready();
            if ready == 0 || (0..by_kernel).any(|at| events.get(at).u64 == nested.data) {
                continue;
            }
            if count == events.limit {
                list.rotate_left(index); // The next report begins with it.
                break;
            }
            events.put(count, epoll_event { events: ready, u64: nested.data });
            nested.reported();
            count += 1;
        }
        count
    }

    /// Puts the program's data into tagged events of the kernel. Returns the number of events that stay.
    fn translate(&mut self, events: &mut Events, count: usize) -> usize {
        let mut kept = 0;
        for at in 0..count {
            let mut event = events.get(at);
            if let Some((EventSource::Set, fd)) = tagged(event.u64) {
                let Some(its) = self.report_nested(fd, event.events) else { continue };
                event = its;
            } else if let Some((kind, fd)) = tagged(event.u64) {
                let Ok(index) = self.find(fd) else { continue };
                if kind == EventSource::Bell {
                    self.check(index);
                    continue;
                }
                let Some(its) = self.translate_one(index, event.events) else { continue };
                event = its;
            }
            events.put(kept, event);
            kept += 1;
        }
        kept
    }

    /// The event to report for a member that the kernel has reported. `None` if there is none.
    fn translate_one(&mut self, index: usize, events: u32) -> Option<epoll_event> {
        let member = &self.list()[index];
        let arrived = member.arrived();
        let (is_in, reports_changes) = (member.is_in, member.wants & EDGE != 0);
        let mut its = events & (member.of_kernel() | ALWAYS);
        if !is_in {
            self.detach(index);
            return None;
        }
        if its == 0 && !reports_changes {
            self.request_events(index);
            return None;
        }
        if !member.armed {
            return None;
        }
        if self.is_of_bell_alone(index) {
            self.hush(index);
            its &= !IN;
        }
        let member = &mut self.list()[index];
        if its & HANGUP != 0 {
            its |= member.wants & OUT; // A write no longer blocks.
        } else if member.slot.side().is_some_and(|side| side.is_writable().is_some()) {
            // The room is in TCP, not in the ring. Another process may have made writes go there.
            member.slot.ring_takes_writes.store(true, Ordering::SeqCst);
            member.withheld_room |= its & OUT != 0;
            its &= !OUT;
        }
        // For a member whose writes go into the ring, room in TCP is no news, unless bytes have come that it does not wait for.
        its |= if its != 0 || member.wants & IN == 0 { member.there() } else { member.ready() };
        if its == 0 {
            if member.wants & ONCE != 0 {
                self.request_events(index); // The kernel has disarmed it.
            }
            return None;
        }
        member.reported(its, arrived);
        Some(epoll_event { events: its, u64: member.data })
    }

    /// A bell of a member has rung. The kernel reports the next ring even if the bell is not emptied, unless it is full.
    pub(super) fn check(&mut self, index: usize) {
        if let Some(side) = self.list()[index].slot.side() {
            side.check_peer_sometimes();
        }
    }

    /// Whether a read would find no bytes although the kernel has some, because others come first.
    fn is_of_bell_alone(&mut self, index: usize) -> bool {
        let side = self.list()[index].slot.side();
        side.is_some_and(|side| side.only_bell_ends_wait(Bell::Bytes) && !side.is_readable())
    }

    /// Does not ask the kernel for bytes of the member until a bell has rung.
    fn hush(&mut self, index: usize) {
        if let Some(side) = self.list()[index].slot.side() {
            side.ask_peer();
        }
        self.list()[index].is_hushed = true;
        self.turns().are_hushed = true;
        self.request_events(index);
    }

    /// Asks the kernel for bytes again where a bell has rung.
    fn ask_for_bytes_again(&mut self) {
        if !std::mem::take(&mut self.turns().are_hushed) {
            return;
        }
        for index in 0..self.list().len() {
            if !self.list()[index].is_hushed {
                continue;
            }
            if self.list()[index].attached && self.is_of_bell_alone(index) {
                self.turns().are_hushed = true;
                continue;
            }
            self.list()[index].is_hushed = false;
            if self.list()[index].attached {
                self.request_events(index);
            }
        }
    }

    /// Runs before a wait sleeps in the kernel. The caller looks once more.
    pub(crate) fn prepare_sleep(&mut self, hold: &Hold) {
        hold.add(SLEEPS[0]);
        self.ask();
    }

    /// The same for a set that has this one as a member.
    pub(super) fn prepare_sleep_of_set(&mut self) {
        self.set.sleepers.fetch_add(1, Ordering::SeqCst);
        self.ask();
    }

    /// Asks all members to wake the sleeping waits.
    pub(super) fn ask(&mut self) {
        self.ask_for_bytes_again();
        self.list().iter_mut().for_each(Member::ask);
        // A member that waits for the ring has asked by now, so the thread that makes its writes go by TCP later wakes it.
        self.follow_room();
        self.ask_nested();
    }

    /// Asks the kernel for room where writes go by TCP. Another process that has the connection may have changed that.
    pub(super) fn follow_room(&mut self) {
        for index in 0..self.list().len() {
            let member = &self.list()[index];
            let waits = member.attached && member.armed && member.is_in && member.wants & OUT != 0;
            let Some(side) = member.slot.side().filter(|_| waits) else { continue };
            let by_tcp = side.is_writable().is_none();
            let was_in_ring = member.slot.ring_takes_writes.swap(!by_tcp, Ordering::SeqCst);
            let is_news =
                by_tcp && (member.withheld_room || was_in_ring && member.needs_request(side));
            if is_news || member.of_kernel() & !member.requested != 0 {
                self.request_events(index);
                self.list()[index].withheld_room &= !by_tcp;
            }
        }
    }

    /// A member has changed while other threads may sleep. Asks it to wake them, and wakes them if it has events.
    pub(super) fn wake_sleepers(&mut self, index: usize) {
        if !self.set.has_sleepers() {
            return;
        }
        let member = &mut self.list()[index];
        member.ask();
        if member.ready() != 0
            && let Some(side) = member.slot.side()
        {
            side.nudge();
        }
    }

    /// Runs after a wait slept.
    pub(crate) fn end_sleep(&mut self, hold: &Hold) {
        hold.remove(SLEEPS[0]);
        self.disarm_bells();
    }

    /// The same for a set that has this one as a member.
    pub(super) fn end_sleep_of_set(&mut self) {
        let less = |count: u32| count.checked_sub(1);
        let _ = self.set.sleepers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        self.disarm_bells();
    }

    fn disarm_bells(&mut self) {
        if self.set.has_sleepers() {
            if self.set.is_watched() && self.is_any_ready() {
                self.wake(); // The kernel may have woken this thread only.
            }
            return;
        }
        for member in self.list().iter_mut() {
            for what in [Bell::Bytes, Bell::Room] {
                if std::mem::take(&mut member.asked[what as usize])
                    && let Some(side) = member.slot.side()
                {
                    side.remove_sleeper(what);
                }
            }
        }
        self.withdraw_nested();
    }

    /// Whether all members' peers last waited on this processor, so that spinning would only keep them from running.
    pub(crate) fn shares_processor(&mut self) -> bool {
        let mut attached = self.list().iter().filter(|member| member.attached);
        attached.all(|member| member.slot.side().is_some_and(Side::shares_processor))
            && self.nested().iter().all(|nested| {
                nested.set.members().is_ok_and(|mut members| members.shares_processor())
            })
    }
}
