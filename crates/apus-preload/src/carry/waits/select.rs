//! `select`: its descriptors become members of a `poll`.

use std::ptr;
use std::slice;
use std::time::Duration;

use libc::{c_int, c_short, c_ulong, fd_set, pollfd, sigset_t};

use super::poll::{self, FEW};
use crate::carry::scratch::Scratch;
use crate::carry::spin::Clock;

const BITS: usize = c_ulong::BITS as usize;

/// For each set, the events that `poll` is asked for, and those of its answer that count (`POLLIN_SET` and its relatives in the
/// kernel).
const ASKED: [c_short; 3] = [
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND,
    libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND,
    libc::POLLPRI,
];
const COUNTS: [c_short; 3] =
    [ASKED[0] | libc::POLLHUP | libc::POLLERR, ASKED[1] | libc::POLLERR, ASKED[2]];

/// Sets with `count` significant bits. Programs pass sets larger than `FD_SETSIZE`, so the words are read as the kernel reads
/// them.
pub(crate) struct Sets {
    sets: [*mut fd_set; 3],
    count: usize,
}

impl Sets {
    /// # Safety
    ///
    /// Each set is null or has `count` bits.
    pub(crate) unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Self {
        Self { sets, count: usize::try_from(count).unwrap_or(0) }
    }

    fn word(&self, set: usize, fd: usize) -> Option<*mut c_ulong> {
        let first = self.sets[set].cast::<c_ulong>();
        // SAFETY: the caller of `new` guarantees the bits.
        (!first.is_null()).then(|| unsafe { first.add(fd / BITS) })
    }

    fn has(&self, set: usize, fd: usize) -> bool {
        // SAFETY: as above.
        self.word(set, fd).is_some_and(|word| unsafe { *word } >> (fd % BITS) & 1 == 1)
    }

    fn put(&self, set: usize, fd: usize, is_in: bool) {
        if let Some(word) = self.word(set, fd) {
            let bit = 1 << (fd % BITS);
            // SAFETY: as above.
            unsafe { *word = if is_in { *word | bit } else { *word & !bit } };
        }
    }

    /// The descriptors in any of the sets.
    pub(crate) fn members(&self) -> impl Iterator<Item = c_int> {
        (0..self.count).filter(|fd| (0..3).any(|set| self.has(set, *fd))).map(|fd| fd as c_int)
    }

    /// Writes the answer of `poll` into the sets. Returns `None` if none of its events count.
    fn take(&self, members: &[pollfd]) -> Option<c_int> {
        let counts = |set: usize, member: &pollfd| {
            self.has(set, member.fd as usize) && member.revents & COUNTS[set] != 0
        };
        let all = || members.iter().flat_map(|member| (0..3).map(move |set| (set, member)));
        let ready = all().filter(|(set, member)| counts(*set, member)).count();
        let is_empty = members.iter().all(|member| member.revents == 0);
        if ready == 0 && !is_empty {
            return None;
        }
        for (set, member) in all() {
            self.put(set, member.fd as usize, counts(set, member));
        }
        Some(ready as c_int)
    }
}

/// Waits as `pselect` does, and also returns the remaining time. Returns `None` if the kernel should handle the call.
///
/// # Safety
///
/// The mask is null or valid.
#[cold]
pub(crate) unsafe fn select(
    sets: &Sets,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<(c_int, Duration)> {
    let count = sets.members().count();
    if sets.members().filter(|fd| poll::has_to_look_at(*fd)).count() == 0 {
        return None;
    }
    if count <= FEW {
        // SAFETY: guaranteed by the caller.
        return unsafe { select_among_few(sets, timeout, mask) };
    }
    let mut scratch = Scratch::new(count * size_of::<pollfd>())?;
    let list: *mut pollfd = scratch.as_mut_ptr().cast();
    // SAFETY: the memory has room for the list, and zeros are valid members. The caller guarantees that the mask is valid.
    unsafe {
        ptr::write_bytes(list, 0, count);
        select_among(sets, slice::from_raw_parts_mut(list, count), timeout, mask)
    }
}

/// The same with a list on the stack.
#[inline(never)]
unsafe fn select_among_few(
    sets: &Sets,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<(c_int, Duration)> {
    let mut list = [pollfd { fd: -1, events: 0, revents: 0 }; FEW];
    // SAFETY: guaranteed by the caller.
    unsafe { select_among(sets, &mut list, timeout, mask) }
}

/// The same with a list that has room for all members.
unsafe fn select_among(
    sets: &Sets,
    list: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<(c_int, Duration)> {
    let mut count = 0;
    for fd in sets.members() {
        let events = (0..3).filter(|set| sets.has(*set, fd as usize)).map(|set| ASKED[set]);
        *list.get_mut(count)? =
            pollfd { fd, events: events.fold(0, |all, one| all | one), revents: 0 };
        count += 1;
    }
    let began = Clock::now();
    // SAFETY: the list has `count` members; the caller guarantees that the mask is valid.
    let result = unsafe { poll::poll(list.as_mut_ptr(), count, timeout, mask)? };
    let left = timeout.unwrap_or_default().saturating_sub(Clock::now() - began);
    if result < 0 {
        return Some((result, left));
    }
    if list[..count].iter().any(|member| member.revents & libc::POLLNVAL != 0) {
        crate::errno::set(libc::EBADF);
        return Some((-1, left));
    }
    Some((sets.take(&list[..count])?, left))
}
