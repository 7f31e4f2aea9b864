//! Epoll sets that are left to the kernel, and sets that are closed.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::shared;
use super::table::{Set, adopt, all};
use crate::carry::connection::slots;
use crate::carry::inner;
use crate::carry::leaving::returning::return_to_kernel;
use crate::descriptors::{self, INHERITED, SET};
use crate::errno;

/// Leaves all sets to the kernel and removes this library's descriptors from them.
pub(crate) fn give_up_all() {
    for set in all() {
        give_up(set);
        let bells = set.bells.swap(-1, Ordering::SeqCst);
        if bells >= 0 {
            inner::close(bells);
        }
    }
}

/// Runs before a descriptor of a set is closed.
pub(crate) fn closing_set(fd: c_int) {
    let Some(set) = Set::of(fd) else { return };
    descriptors::set(fd, 0, SET | slots::MASK);
    let is_last = set.descriptors.load(Ordering::SeqCst) == 1;
    closing_nested(fd, is_last);
    let Ok(mut members) = set.members() else { return };
    if !is_last {
        if set.fd.load(Ordering::SeqCst) == fd {
            let mut others = descriptors::used_in(0..=u32::MAX);
            let other = others.find(|it| Set::of(*it).is_some_and(|it| std::ptr::eq(it, set)));
            set.fd.store(other.unwrap_or(-1), Ordering::SeqCst);
        }
    } else {
        while let Some(last) = members.list().len().checked_sub(1) {
            members.forget(last);
        }
        while let Some(last) = members.nested().len().checked_sub(1) {
            members.forget_nested(last);
        }
        members.early().clear();
        let bells = set.bells.swap(-1, Ordering::SeqCst);
        if bells >= 0 {
            inner::close(bells);
        }
    }
    drop(members);
    set.descriptors.fetch_sub(1, Ordering::SeqCst);
}

/// Runs before a descriptor of a set is closed that may be a member of other sets.
fn closing_nested(fd: c_int, is_last: bool) {
    for outer in all().filter(|outer| outer.nested.load(Ordering::SeqCst) > 0) {
        let kept = {
            let Ok(mut members) = outer.members() else { continue };
            match members.find_nested(fd) {
                // The kernel no longer reports the tag.
                Some(index) if is_last => {
                    members.forget_nested(index);
                    members.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
                    None
                }
                // The kernel keeps reporting it, because another descriptor keeps the set open.
                Some(index) => Some(members.detach_nested(index)),
                None => None,
            }
        };
        if let Some(set) = kept {
            give_up(set);
        }
    }
}

/// Makes all members of a set return to the kernel, because a wait bypasses this library.
#[cold]
pub(crate) fn give_up(set: &Set) {
    set.is_kernels.store(true, Ordering::SeqCst);
    if let Ok(mut members) = set.members() {
        members.give_up_early();
    }
    while let Ok(mut members) = set.members()
        && let Some(last) = members.nested().len().checked_sub(1)
    {
        let nested = members.detach_nested(last);
        drop(members);
        give_up(nested);
    }
    loop {
        let first = {
            let Ok(mut members) = set.members() else { return };
            members.list().first().map(|member| member.fd)
        };
        let Some(fd) = first else { return };
        return_to_kernel(fd, "a wait for its epoll set");
        // A connection that returned is no longer a member. Any other member is removed here.
        if let Ok(mut members) = set.members()
            && let Ok(index) = members.find(fd)
        {
            members.detach(index);
        }
    }
}

/// Runs before a set is used. For an inherited set, notifies the parent. If a child has used the set, gives its members up.
#[inline]
pub(crate) fn note_foreign_use(fd: c_int) {
    if descriptors::word(fd) & INHERITED != 0 {
        adopt(fd);
    }
    let word = descriptors::word(fd);
    if let Some(set) = Set::of(fd)
        && shared::is_marked(slots::number(word).wrapping_sub(1))
        && !set.is_kernels.load(Ordering::SeqCst)
    {
        errno::kept(|| give_up(set));
    }
}
