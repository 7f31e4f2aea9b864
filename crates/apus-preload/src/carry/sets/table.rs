//! The sets that this process has created, and their member lists.

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64 as Word;

use libc::{c_int, epoll_event};

use super::shared::{self, SETS_MAX};
use crate::carry::connection::slots::{self, Slot};
use crate::carry::holds;
use crate::carry::sets::member::{Early, Member};
use crate::carry::spin::Spin;
use crate::carry::sync::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::carry::thread;
use crate::carry::token::{Interrupted, Token};
use crate::descriptors::{self, EARLY, INHERITED, SET, WATCHED};
use crate::originals::own;

/// Upper bound on carried members of a set. Each wait looks at all of them.
pub(super) const MEMBERS_MAX: usize = 2_048;

static SETS: [Set; SETS_MAX] = [const { Set::new() }; SETS_MAX];

/// Upper end of the sets that were ever in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A set of the program.
pub(crate) struct Set {
    /// Number of descriptors of the set. 0 for a free place.
    pub(super) descriptors: AtomicU32,
    /// One of the descriptors.
    pub(super) fd: AtomicI32,
    /// The bell set, if the set is watched. -1 if the bells are in the program's set.
    pub(super) bells: AtomicI32,
    /// The thread that holds the members.
    holder: Word,
    members: UnsafeCell<Lists>,
    /// Number of attached members.
    pub(crate) attached: AtomicUsize,
    /// Number of members that are sets.
    pub(crate) nested: AtomicUsize,
    /// Number of sleeping sets that have this one as a member.
    pub(super) sleepers: AtomicU32,
    /// Whether a wait bypasses this library, so that no member is carried.
    pub(crate) is_kernels: AtomicBool,
    /// Whether the set is the parent's and this process has not used it.
    is_inherited: AtomicBool,
    /// Time at which the kernel was last asked, in nanoseconds.
    pub(crate) asked_kernel: AtomicU64,
    /// Whether the kernel had events then.
    pub(crate) kernel_had_events: AtomicBool,
    /// Whether the kernel's events then filled the buffer, so that rings were left out.
    pub(crate) kernel_took_all: AtomicBool,
    pub(crate) spin: Spin,
}

// SAFETY: only the thread in `holder` uses the members.
unsafe impl Sync for Set {}

struct Lists {
    members: Vec<Member>,
    early: Vec<Early>,
    nested: Vec<Nested>,
    turns: Turns,
}

/// The state of the rotation when more members are ready than a call has room for.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    /// The descriptor at which the next report begins.
    pub(super) next: c_int,
    /// Whether the next report begins with members that are sets.
    pub(super) is_of_nested: bool,
    /// Whether the kernel is not asked for bytes of some members.
    pub(super) are_hushed: bool,
}

impl Lists {
    const fn new() -> Self {
        Self {
            members: Vec::new(),
            early: Vec::new(),
            nested: Vec::new(),
            turns: Turns { next: 0, is_of_nested: false, are_hushed: false },
        }
    }
}

/// A member that is a known set.
pub(super) struct Nested {
    pub(super) fd: c_int,
    pub(super) set: &'static Set,
    pub(super) wants: u32,
    pub(super) data: u64,
    /// False once a one-shot member was reported.
    pub(super) armed: bool,
    /// The arrivals in the set at the last report. `u64::MAX` forces a new report.
    pub(super) seen: u64,
    /// Whether the set was asked to wake this one.
    pub(super) asked: bool,
}

impl Nested {
    /// Runs in a child of fork: the parent asked, not this process.
    pub(super) fn forget_asked(&mut self) {
        self.asked = false;
    }
}

/// The members of a set, held by one thread.
pub(crate) struct Members<'a> {
    pub(super) set: &'a Set,
    _token: Token<'a>,
}

impl Set {
    const fn new() -> Self {
        Self {
            descriptors: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            bells: AtomicI32::new(-1),
            holder: Word::new(0),
            members: UnsafeCell::new(Lists::new()),
            attached: AtomicUsize::new(0),
            nested: AtomicUsize::new(0),
            sleepers: AtomicU32::new(0),
            is_kernels: AtomicBool::new(false),
            is_inherited: AtomicBool::new(false),
            asked_kernel: AtomicU64::new(0),
            kernel_had_events: AtomicBool::new(false),
            kernel_took_all: AtomicBool::new(false),
            spin: Spin::new(),
        }
    }

    /// The set of a descriptor, if known.
    #[inline]
    pub(crate) fn of(fd: c_int) -> Option<&'static Self> {
        let word = descriptors::word(fd);
        let set = SETS.get(slots::number(word).wrapping_sub(1))?;
        (word & SET != 0).then_some(set)
    }

    /// Takes the members. Their holder never sleeps. It is a thread of this process, because each process has its own table. The
    /// members of an ended thread are released like those of a call left by a jump.
    pub(crate) fn members(&self) -> Result<Members<'_>, Interrupted> {
        Ok(Members { set: self, _token: Token::of(&self.holder)? })
    }

    /// Whether a wait must look at rings.
    #[inline]
    pub(crate) fn has_rings(&self) -> bool {
        self.attached.load(Ordering::SeqCst) > 0 || self.nested.load(Ordering::SeqCst) > 0
    }

    /// The number of the set, from 1.
    pub(crate) fn number(&self) -> usize {
        let bytes = std::ptr::from_ref(self).addr() - SETS.as_ptr().addr();
        bytes / size_of::<Self>() + 1
    }

    /// Whether a wait for the set sleeps.
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0 || holds::sleep_in(self.number())
    }

    fn is_used(&self) -> bool {
        self.descriptors.load(Ordering::SeqCst) != 0
    }
}

impl Members<'_> {
    pub(super) fn list(&mut self) -> &mut Vec<Member> {
        // SAFETY: this value exists once at a time, because it holds the token.
        unsafe { &mut (*self.set.members.get()).members }
    }

    /// Members that are not connected.
    pub(super) fn early(&mut self) -> &mut Vec<Early> {
        // SAFETY: as above.
        unsafe { &mut (*self.set.members.get()).early }
    }

    pub(super) fn turns(&mut self) -> &mut Turns {
        // SAFETY: as above.
        unsafe { &mut (*self.set.members.get()).turns }
    }

    /// Members that are sets.
    pub(super) fn nested(&mut self) -> &mut Vec<Nested> {
        // SAFETY: as above.
        unsafe { &mut (*self.set.members.get()).nested }
    }

    /// Whether the member at `index` is this connection.
    pub(super) fn is_at(&mut self, index: usize, slot: &Slot) -> bool {
        std::ptr::eq(self.list()[index].slot, slot)
    }

    pub(super) fn find(&mut self, fd: c_int) -> Result<usize, usize> {
        self.list().binary_search_by_key(&fd, |member| member.fd)
    }

    pub(super) fn control(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> bool {
        let mut event = epoll_event { events, u64: data };
        let set = self.set.fd.load(Ordering::Relaxed);
        // SAFETY: the event is a local variable.
        unsafe { own::epoll_ctl(set, operation, fd, &raw mut event) == 0 }
    }
}

/// Notes that the program has created a set.
pub(crate) fn made(fd: c_int) {
    for (index, set) in SETS.iter().enumerate() {
        let taken =
            set.descriptors.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if taken {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            set.fd.store(fd, Ordering::SeqCst);
            set.is_kernels.store(false, Ordering::SeqCst);
            set.is_inherited.store(false, Ordering::SeqCst);
            set.bells.store(-1, Ordering::SeqCst);
            shared::clear(index);
            descriptors::set(fd, SET | slots::word_of(index), slots::MASK);
            return;
        }
    }
}

pub(super) fn all() -> impl Iterator<Item = &'static Set> {
    let is_known = |set: &&Set| set.is_used() && !set.is_inherited.load(Ordering::Relaxed);
    SETS[..USED.load(Ordering::Acquire)].iter().filter(is_known)
}

/// A descriptor of a set was duplicated.
pub(crate) fn duplicated(fd: c_int) {
    if let Some(set) = Set::of(fd) {
        set.descriptors.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs in a child of fork: sets stay the parent's until this process uses one ([`adopt`]). The members that this thread has taken
/// stay with it, because its call continues.
pub(crate) fn forget_all() {
    let me = thread::thread();
    for set in &SETS[..USED.load(Ordering::Acquire)] {
        let holder = set.holder.load(Ordering::Relaxed);
        if holder != 0 && holder != me {
            set.holder.store(0, Ordering::Relaxed);
            // SAFETY: the child has one thread. A thread of the parent may have been changing the lists, so they are not dropped.
            unsafe { std::ptr::write(set.members.get(), Lists::new()) };
            set.nested.store(0, Ordering::Relaxed);
            set.attached.store(0, Ordering::Relaxed);
        }
        set.sleepers.store(0, Ordering::Relaxed);
        set.is_inherited.store(true, Ordering::Relaxed);
    }
    for fd in descriptors::used_in(0..=u32::MAX) {
        if descriptors::word(fd) & SET != 0 {
            descriptors::set(fd, INHERITED, SET);
        }
        if descriptors::word(fd) & EARLY != 0 {
            descriptors::set(fd, WATCHED, EARLY);
        }
    }
}

/// A child of fork uses a set of its parent for the first time. The kernel has tags of the parent's members, and both processes
/// must give those members up.
#[cold]
pub(super) fn adopt(fd: c_int) {
    let index = slots::number(descriptors::word(fd)).wrapping_sub(1);
    let Some(set) = SETS.get(index) else { return };
    if set.is_inherited.swap(false, Ordering::SeqCst) {
        set.fd.store(fd, Ordering::SeqCst);
        if let Ok(mut members) = set.members() {
            members.list().iter_mut().for_each(|member| member.asked = [false; 2]);
            members.nested().iter_mut().for_each(Nested::forget_asked);
        }
    }
    descriptors::set(fd, SET, INHERITED);
    shared::mark(index);
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_ends_with_the_members_does_not_keep_them() {
        static SET: Set = Set::new();
        std::thread::spawn(|| mem::forget(SET.members())).join().unwrap();
        drop(SET.members());
        assert_eq!(SET.holder.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_child_that_is_killed_with_the_members_keeps_none_of_its_parents() {
        static SET: Set = Set::new();
        // SAFETY: the child has one thread and makes no calls but these.
        let child = unsafe { libc::fork() };
        if child == 0 {
            mem::forget(SET.members());
            // SAFETY: the call ends the child.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: the buffer has room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status));
        assert_eq!(SET.holder.load(Ordering::Relaxed), 0);
        drop(SET.members());
    }

    #[test]
    fn a_running_holder_is_waited_for() {
        static SET: Set = Set::new();
        let (take, taken) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let members = SET.members();
            take.send(()).unwrap();
            released.recv().unwrap();
            SET.sleepers.store(1, Ordering::Relaxed);
            drop(members);
        });
        taken.recv().unwrap();
        let waiter = std::thread::spawn(|| {
            let _members = SET.members();
            SET.sleepers.load(Ordering::Relaxed)
        });
        release.send(()).unwrap();
        assert_eq!(waiter.join().unwrap(), 1);
        holder.join().unwrap();
    }
}
