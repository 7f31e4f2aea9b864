//! A member of an epoll set that is carried, or may come to be.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use crate::carry::connection::readable::is_readable;
use crate::carry::connection::side::{Bell, Side};
use crate::carry::connection::slots::Slot;
use crate::carry::kernel;

/// The peer sends nothing more.
const END: u32 = libc::EPOLLRDHUP as u32;
pub(super) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub(super) const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Both directions have ended.
pub(super) const HANGUP: u32 = libc::EPOLLHUP as u32;
/// A member that waits for one of these learns of all that has come.
const ARRIVALS: u32 = IN | (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
/// What the kernel reports although nobody asks for it.
pub(super) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
pub(super) const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// Of several sets that have the member, one is to be woken.
pub(super) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// What a member keeps that was reported once and is not armed.
pub(super) const PRIVATE: u32 = EDGE | ONCE | libc::EPOLLWAKEUP as u32;

/// A member that is carried, or may come to be.
pub(super) struct Member {
    pub(super) fd: c_int,
    pub(super) slot: &'static Slot,
    /// What the program waits for, and how.
    pub(super) wants: u32,
    pub(super) data: u64,
    /// The program has it in the set. Programs that wait now for this and now for that take members out and put them in with each
    /// call; the kernel is not told so often.
    pub(super) is_in: bool,
    /// Its bells are in the kernel's set, and the kernel has its tag.
    pub(super) attached: bool,
    /// What the kernel is to report of it, if it is attached.
    pub(super) told: u32,
    /// The kernel is not to report bytes of it, since a read would not find them.
    pub(super) is_hushed: bool,
    /// False after it was reported, if once was enough.
    pub(super) armed: bool,
    /// What had arrived when it was reported last; `u64::MAX`: report anew.
    pub(super) seen: u64,
    /// It was reported as writable.
    pub(super) seen_room: bool,
    /// The end of what comes in was reported.
    pub(super) seen_end: bool,
    /// The end of both directions was reported.
    pub(super) seen_hangup: bool,
    /// It asked to be woken for bytes, for room.
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
            told: 0,
            is_hushed: false,
            armed: true,
            seen: u64::MAX,
            seen_room: false,
            seen_end: false,
            seen_hangup: false,
            asked: [false; 2],
        }
    }

    /// Asks to be woken for what it is waited for, before a wait sleeps.
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
                    self.asked[what as usize] = true; // A call that is left in between is counted, which does no harm.
                }
                side.ask(what);
            }
        }
    }

    /// What the kernel has to report of it.
    pub(super) fn of_kernel(&self) -> u32 {
        if !self.armed {
            self.wants & PRIVATE
        } else {
            // Of a member that reports changes, any change has all be reported that is there.
            let takes_writes = self.slot.ring_takes_writes.load(Ordering::SeqCst);
            let by_ring = takes_writes && self.wants & EDGE == 0;
            let without = if by_ring { OUT } else { 0 } | if self.is_hushed { IN } else { 0 };
            self.wants & !without
        }
    }

    /// Whether the kernel has to be told anew that the program waits for room, since writes go by TCP from now on: a member that reports
    /// changes reports the room then if there was none.
    pub(super) fn has_to_be_told(&self, side: &Side) -> bool {
        self.wants & EDGE == 0 || side.was_full() || self.of_kernel() != self.told
    }

    /// What its ring has, whether it was reported or not.
    #[inline]
    pub(super) fn there(&self) -> u32 {
        let Some(side) = self.slot.side().filter(|_| self.is_active()) else { return 0 };
        let has_bytes = self.wants & IN != 0 && is_readable(self.slot, side, self.fd);
        let has_room = self.wants & OUT != 0 && side.is_writable() == Some(true);
        // The kernel tells of it when the ring was read.
        let has_end = self.wants & END != 0 && side.has_input_ended();
        let bits = [(has_bytes, IN), (has_room, OUT), (has_end, END), (side.has_hung_up(), HANGUP)];
        bits.iter().filter(|(is_there, _)| *is_there).fold(0, |all, (_, bit)| all | bit)
            & (self.wants | HANGUP)
    }

    /// What is to be reported of its ring.
    #[inline]
    pub(super) fn ready(&self) -> u32 {
        let there = self.there();
        if self.wants & EDGE == 0 || there != 0 && self.has_changed(there) {
            return there;
        }
        // What has come may have been read since; then there may be room.
        let is_news = there == 0 && self.is_active() && self.has_arrivals();
        if is_news { self.room_in_tcp(0) } else { 0 }
    }

    /// Whether something of it can be reported.
    fn is_active(&self) -> bool {
        self.attached && self.armed && self.is_in
    }

    fn has_arrivals(&self) -> bool {
        let has_new = |side: &Side| side.arrived() != self.seen;
        self.wants & ARRIVALS != 0 && self.slot.side().is_some_and(has_new)
    }

    /// `OUT` if that is to be reported with `ready`, which is new, since a member reports all that is there and TCP has room.
    #[inline]
    pub(super) fn room_in_tcp(&self, ready: u32) -> u32 {
        let asks = self.wants & EDGE != 0 && self.wants & OUT & !ready != 0;
        let by_tcp = |side: &Side| side.is_writable().is_none();
        let has_room = || self.slot.side().is_some_and(by_tcp) && kernel::has_room(self.fd);
        if asks && has_room() { self.wants & OUT } else { 0 }
    }

    /// Whether something is new of a member that reports changes.
    fn has_changed(&self, there: u32) -> bool {
        let Some(side) = self.slot.side() else { return false };
        self.has_arrivals()
            || there & OUT != 0 && (!self.seen_room || side.was_full())
            || side.has_input_ended() && !self.seen_end
            || there & HANGUP != 0 && !self.seen_hangup
    }

    /// What changes when more arrives, as [`reported`](Self::reported) is to know it. It is asked for before what is there.
    #[inline]
    pub(super) fn arrived(&self) -> u64 {
        let side = self.slot.side().filter(|_| self.wants & EDGE != 0);
        side.map_or(0, Side::arrived)
    }

    /// These events of it were reported.
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
                side.forget_was_full();
            }
        }
    }
}

/// A member that is not connected yet.
pub(super) struct Early {
    pub(super) fd: c_int,
    pub(super) event: epoll_event,
}
