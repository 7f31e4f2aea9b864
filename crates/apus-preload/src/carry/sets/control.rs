//! `epoll_ctl` for carried members and candidates.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::giving_up::{give_up, note_foreign_use};
use super::table::{Members, Set};
use crate::carry::connection::slots;
use crate::carry::leaving::returning::return_to_kernel;
use crate::carry::peers::answering;
use crate::carry::sets::member::{EXCLUSIVE, Member, PRIVATE};
use crate::descriptors::{self, EARLY, WATCHED};
use crate::{errno, originals, report};

/// The arguments of `epoll_ctl`.
pub(crate) struct Control {
    pub(crate) set: c_int,
    pub(crate) operation: c_int,
    pub(crate) fd: c_int,
    pub(crate) event: *mut epoll_event,
}

impl Control {
    fn original(&self) -> c_int {
        // SAFETY: the program's arguments are passed through.
        unsafe { originals::epoll_ctl(self.set, self.operation, self.fd, self.event) }
    }
}

/// `epoll_ctl` for a carried descriptor, a candidate or a set. Returns the kernel's result.
#[cold]
pub(crate) fn control(call: &Control) -> c_int {
    note_foreign_use(call.set);
    if let Some(nested) = Set::of(call.fd) {
        return control_nested(call, nested);
    }
    if !descriptors::is_ours(call.fd) {
        let result = call.original();
        if result == 0 {
            errno::kept(|| note_other(call));
        }
        return result;
    }
    let is_removal = call.operation == libc::EPOLL_CTL_DEL;
    // SAFETY: the program passes an event or null.
    let event = unsafe { call.event.as_ref() }.copied();
    let known = Set::of(call.set)
        .filter(|set| !set.is_kernels.load(Ordering::SeqCst) && (event.is_some() || is_removal));
    let result = known.and_then(|set| {
        let mut members = set.members().ok()?;
        match call.operation {
            libc::EPOLL_CTL_ADD => add(&mut members, call, event?),
            libc::EPOLL_CTL_MOD => modify(&mut members, call, event?),
            libc::EPOLL_CTL_DEL => remove(&mut members, call),
            _ => Some(call.original()),
        }
    });
    result.unwrap_or_else(|| {
        return_to_kernel(call.fd, "epoll_ctl");
        call.original()
    })
}

/// Runs after `epoll_ctl` for a descriptor that is not carried. Notes the sets of an unconnected socket. Any other socket that is
/// connected later is never carried.
fn note_other(call: &Control) {
    let is_early = descriptors::word(call.fd) & EARLY != 0;
    let is_known = is_early || call.operation == libc::EPOLL_CTL_ADD && is_unconnected(call.fd);
    // SAFETY: the program passes an event or null.
    let event = unsafe { call.event.as_ref() }.copied();
    let set = Set::of(call.set).filter(|set| !set.is_kernels.load(Ordering::SeqCst));
    let members = set.filter(|_| is_known).and_then(|set| set.members().ok());
    match (members, call.operation, event) {
        (Some(mut members), libc::EPOLL_CTL_DEL, _) => members.forget_early(call.fd),
        (Some(mut members), _, Some(event)) => {
            members.put_early(call.fd, event);
            descriptors::set(call.fd, EARLY, 0);
        }
        (None, libc::EPOLL_CTL_ADD, _) => descriptors::set(call.fd, WATCHED, 0),
        _ => {}
    }
}

fn is_unconnected(fd: c_int) -> bool {
    report::local_address(fd).is_some() && report::addresses(fd).is_none()
}

/// `epoll_ctl` for a known set as a member of another set.
fn control_nested(call: &Control, nested: &'static Set) -> c_int {
    // SAFETY: the program passes an event or null.
    let event = unsafe { call.event.as_ref() }.copied();
    let outer = Set::of(call.set).filter(|outer| !outer.is_kernels.load(Ordering::SeqCst));
    if let Some(outer) = outer
        && let Ok(mut members) = outer.members()
        && let Some(index) = members.find_nested(call.fd)
    {
        return match (call.operation, event) {
            (libc::EPOLL_CTL_MOD, Some(event)) => {
                let (wants, data) = (event.events, event.u64);
                if members.put_nested(call.fd, nested, wants, data) { 0 } else { -1 }
            }
            (libc::EPOLL_CTL_DEL, _) => {
                errno::kept(|| members.forget_nested(index));
                call.original()
            }
            _ => call.original(),
        };
    }
    if call.operation == libc::EPOLL_CTL_DEL || nested.is_kernels.load(Ordering::SeqCst) {
        return call.original();
    }
    if call.operation == libc::EPOLL_CTL_ADD
        && let Some(event) = event
        && let Some(outer) = outer
        && errno::kept(|| nested.watch())
        && let Ok(mut members) = outer.members()
    {
        return if members.put_nested(call.fd, nested, event.events, event.u64) { 0 } else { -1 };
    }
    give_up(nested);
    call.original()
}

/// Returns `None` if the connection must return before the call is made.
fn add(members: &mut Members<'_>, call: &Control, event: epoll_event) -> Option<c_int> {
    let slot = slots::slot_of(descriptors::word(call.fd))?;
    let index = match members.find(call.fd) {
        Ok(index) if members.list()[index].is_in => return Some(call.original()),
        // The kernel cannot change the events of such a member later.
        Ok(index) if event.events & EXCLUSIVE != 0 => {
            errno::kept(|| members.detach(index));
            index
        }
        Ok(index) => {
            members.list()[index].is_in = true;
            return modify(members, call, event);
        }
        Err(index) => index,
    };
    let result = call.original();
    if result == 0 {
        let member = Member::new(call.fd, slot, event.events, event.u64);
        members.list().insert(index, member);
        // If the connection becomes carried meanwhile, `attach` waits for the members and finds this one.
        if slot.may_be_attached() && !errno::kept(|| members.attach(index)) {
            members.list().remove(index);
            members.control(libc::EPOLL_CTL_DEL, call.fd, 0, 0);
            return None;
        }
    }
    Some(result)
}

fn modify(members: &mut Members<'_>, call: &Control, event: epoll_event) -> Option<c_int> {
    let Ok(index) = members.find(call.fd) else {
        // The kernel does not have the member either, or it has one that this library does not know.
        return Some(call.original()).filter(|result| *result != 0);
    };
    if !members.list()[index].is_in {
        errno::set(libc::ENOENT);
        return Some(-1);
    }
    if (event.events | members.list()[index].wants) & EXCLUSIVE != 0 {
        return Some(call.original()); // The kernel refuses it.
    }
    let member = &mut members.list()[index];
    let before = (member.wants, member.data, member.armed);
    (member.wants, member.data, member.armed) = (event.events, event.u64, true);
    // A one-shot member is armed from now on, which its attachment was waiting for.
    let is_later = !member.attached && member.slot.may_be_attached();
    let done = if member.attached {
        members.request_events_if_needed(index)
    } else if is_later && errno::kept(|| members.attach(index)) {
        answering::wake();
        true
    } else {
        call.original() == 0
    };
    let member = &mut members.list()[index];
    if done {
        (member.seen, member.seen_room) = (u64::MAX, false);
        (member.seen_end, member.seen_hangup) = (false, false);
        errno::kept(|| members.wake_sleepers(index));
    } else {
        (member.wants, member.data, member.armed) = before;
    }
    Some(if done { 0 } else { -1 })
}

fn remove(members: &mut Members<'_>, call: &Control) -> Option<c_int> {
    let Ok(index) = members.find(call.fd) else { return Some(call.original()) };
    let member = &members.list()[index];
    if !member.is_in {
        errno::set(libc::ENOENT);
        return Some(-1);
    }
    let is_simple = member.requested & PRIVATE == 0 && member.wants & EXCLUSIVE == 0;
    if member.attached && is_simple && !members.set.is_watched() {
        members.list()[index].is_in = false;
        return Some(0);
    }
    errno::kept(|| members.forget(index));
    Some(call.original())
}
