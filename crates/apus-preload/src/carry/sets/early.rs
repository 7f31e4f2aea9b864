//! Sockets that were put into epoll sets before they were connected. They become members once connected.

use libc::{c_int, epoll_event};

use super::table::{Members, all};
use crate::carry::connection::slots::Slot;
use crate::carry::sets::member::{Early, Member};
use crate::descriptors::{self, EARLY, WATCHED};

impl Members<'_> {
    /// An unconnected socket was added to the set or changed there.
    pub(super) fn put_early(&mut self, fd: c_int, event: epoll_event) {
        self.forget_early(fd);
        self.early().push(Early { fd, event });
    }

    pub(super) fn forget_early(&mut self, fd: c_int) {
        self.early().retain(|early| early.fd != fd);
    }

    /// The set's unconnected sockets will not be carried.
    pub(super) fn give_up_early(&mut self) {
        while let Some(early) = self.early().pop() {
            descriptors::set(early.fd, WATCHED, 0);
        }
    }
}

/// A socket is connected or connecting. Sets that already have it learn its connection.
pub(crate) fn adopt(fd: c_int, slot: &'static Slot) {
    if descriptors::word(fd) & EARLY == 0 {
        return;
    }
    for set in all() {
        let Ok(mut members) = set.members() else { continue };
        let Some(at) = members.early().iter().position(|early| early.fd == fd) else { continue };
        let event = members.early().swap_remove(at).event;
        if let Err(index) = members.find(fd) {
            let member = Member::new(fd, slot, event.events, event.u64);
            members.list().insert(index, member);
        }
    }
    descriptors::set(fd, 0, EARLY);
}

/// Runs before a socket is closed that is unconnected, or never was connected.
pub(crate) fn closing_early(fd: c_int) {
    if descriptors::word(fd) & EARLY != 0 {
        for set in all() {
            if let Ok(mut members) = set.members() {
                members.forget_early(fd);
            }
        }
    }
}
