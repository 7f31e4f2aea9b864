//! A carried member of an epoll set, or a candidate.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use crate::carry::connection::readable::is_readable;
use crate::carry::connection::side::{Bell, Side};
use crate::carry::connection::slots::Slot;
use crate::carry::kernel;

/// The peer sends no more bytes.
const END: u32 = libc::EPOLLRDHUP as u32;
pub(super) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub(super) const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Both directions have ended.
pub(super) const HANGUP: u32 = libc::EPOLLHUP as u32;
/// A member that waits for one of these learns of all arrivals.
const ARRIVALS: u32 = IN | (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
/// Events that the kernel reports without being asked.
pub(super) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
pub(super) const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// One of several sets with the member wakes.
pub(super) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags that a reported and disarmed member keeps.
pub(super) const PRIVATE: u32 = EDGE | ONCE | libc::EPOLLWAKEUP as u32;

/// A carried member, or a candidate.
pub(super) struct Member {
    pub(super) fd: c_int,
    pub(super) slot: &'static Slot,
    /// The events that the program waits for, and the flags.
    pub(super) wants: u32,
    pub(super) data: u64,
    /// Whether the program has the member in the set. Some programs remove and add members with each call, which does not change the
    /// kernel's set.
    pub(super) is_in: bool,
    /// Whether the member's bells are in the kernel's set, and the kernel has its tag.
    pub(super) attached: bool,
    /// The events that were requested from the kernel, if attached.
    pub(super) requested: u32,
    /// Whether the kernel must not report bytes, because a read would not find them.
    pub(super) is_hushed: bool,
    /// False once a one-shot member was reported.
    pub(super) armed: bool,
    /// The arrivals at the last report. `u64::MAX` forces a new report.
    pub(super) seen: u64,
    /// Whether the member was reported as writable.
    pub(super) seen_room: bool,
    /// Whether the kernel has reported room in TCP while writes went into the ring. It does not report an edge-triggered or one-shot
    /// member again, and the program has not seen the report.
    pub(super) withheld_room: bool,
    /// Whether the end of the inbound direction was reported.
    pub(super) seen_end: bool,
    /// Whether the end of both directions was reported.
    pub(super) seen_hangup: bool,
    /// Whether the member asked to be woken: for bytes, for room.
    pub(super) asked: [bool; 2],
}

impl Member {
    pub(super) fn new(fd: c_int, slot: &'static Slot, wants: u32, data: u64) -> Self {
        Self {
            fd,
            slot,
            wants,
            data,
            is_in: true,
            attached: false,
            requested: 0,
            is_hushed: false,
            armed: true,
            seen: u64::MAX,
            seen_room: false,
            withheld_room: false,
            seen_end: false,
            seen_hangup: false,
            asked: [false; 2],
        }
    }

    /// Asks to be woken for the events that the program waits for. Runs before a wait sleeps.
    pub(super) fn ask(&mut self) {
        let Some(side) = self.slot.side().filter(|_| self.attached && self.armed && self.is_in)
        else {
            return;
        };
        let wanted =
            [self.wants & IN != 0, self.wants & OUT != 0 && side.is_writable() == Some(false)];
        for what in [Bell::Bytes, Bell::Room] {
            if wanted[what as usize] {
                if !self.asked[what as usize] {
                    side.add_sleeper(what);
                    self.asked[what as usize] = true; // A call left here by a jump stays counted, which is harmless.
                }
                side.ask(what);
            }
        }
    }

    /// The events that the kernel must report.
    pub(super) fn of_kernel(&self) -> u32 {
        if !self.armed {
            self.wants & PRIVATE
        } else {
            // For an edge-triggered member, any change reports all current events.
            let takes_writes = self.slot.ring_takes_writes.load(Ordering::SeqCst);
            let waits_for_ring =
                self.wants & EDGE == 0 || self.wants & ONCE != 0 && self.withheld_room;
            let by_ring = takes_writes && waits_for_ring;
            let without = if by_ring { OUT } else { 0 } | if self.is_hushed { IN } else { 0 };
            self.wants & !without
        }
    }

    /// Whether the events must be requested from the kernel again, because writes go by TCP from now on. The kernel then reports the
    /// room of an edge-triggered member if there was none.
    pub(super) fn needs_request(&self, side: &Side) -> bool {
        self.wants & EDGE == 0
            || self.withheld_room
            || side.was_full()
            || self.of_kernel() != self.requested
    }

    /// The current events of the ring, whether reported or not.
    #[inline]
    pub(super) fn there(&self) -> u32 {
        let Some(side) = self.slot.side().filter(|_| self.is_active()) else { return 0 };
        let has_bytes = self.wants & IN != 0 && is_readable(self.slot, side, self.fd);
        let has_room = self.wants & OUT != 0 && side.is_writable() == Some(true);
        // The kernel reports the end once the ring was read.
        let has_end = self.wants & END != 0 && side.has_input_ended();
        let bits = [(has_bytes, IN), (has_room, OUT), (has_end, END), (side.has_hung_up(), HANGUP)];
        bits.iter().filter(|(is_there, _)| *is_there).fold(0, |all, (_, bit)| all | bit)
            & (self.wants | HANGUP)
    }

    /// The events of the ring that must be reported.
    #[inline]
    pub(super) fn ready(&self) -> u32 {
        let there = self.there();
        if self.wants & EDGE == 0 || there != 0 && self.has_changed(there) {
            return there;
        }
        // Arrived bytes may have been read already, which may have made room.
        let is_news = there == 0 && self.is_active() && self.has_arrivals();
        if is_news { self.room_in_tcp(0) } else { 0 }
    }

    /// Whether the member can report events.
    fn is_active(&self) -> bool {
        self.attached && self.armed && self.is_in
    }

    fn has_arrivals(&self) -> bool {
        let has_new = |side: &Side| side.arrived() != self.seen;
        self.wants & ARRIVALS != 0 && self.slot.side().is_some_and(has_new)
    }

    /// `OUT` if it must be reported along with `ready`: that event is new, the member is edge-triggered and so reports all
    /// current events, and TCP has room.
    #[inline]
    pub(super) fn room_in_tcp(&self, ready: u32) -> u32 {
        let asks = self.wants & EDGE != 0 && self.wants & OUT & !ready != 0;
        let by_tcp = |side: &Side| side.is_writable().is_none();
        let has_room = || self.slot.side().is_some_and(by_tcp) && kernel::has_room(self.fd);
        if asks && has_room() { self.wants & OUT } else { 0 }
    }

    /// Whether an edge-triggered member has news.
    fn has_changed(&self, there: u32) -> bool {
        let Some(side) = self.slot.side() else { return false };
        self.has_arrivals()
            || there & OUT != 0 && (!self.seen_room || side.was_full())
            || side.has_input_ended() && !self.seen_end
            || there & HANGUP != 0 && !self.seen_hangup
    }

    /// A value that changes with each arrival, for [`reported`](Self::reported). Read it before the current events.
    #[inline]
    pub(super) fn arrived(&self) -> u64 {
        let side = self.slot.side().filter(|_| self.wants & EDGE != 0);
        side.map_or(0, Side::arrived)
    }

    /// Notes that these events were reported.
    pub(super) fn reported(&mut self, events: u32, arrived: u64) {
        self.armed = self.wants & ONCE == 0;
        if self.wants & EDGE != 0
            && let Some(side) = self.slot.side()
        {
            self.seen = arrived;
            self.seen_end |= side.has_input_ended() && self.wants & END == 0 || events & END != 0;
            self.seen_hangup |= events & HANGUP != 0;
            if events & OUT != 0 {
                self.seen_room = true;
                self.withheld_room = false;
                side.forget_was_full();
            }
        }
    }
}

/// A member that is not connected.
pub(super) struct Early {
    pub(super) fd: c_int,
    pub(super) event: epoll_event,
}
