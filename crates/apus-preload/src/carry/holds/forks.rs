//! Calls that a fork interrupts: a signal handler forks within them, and they continue in both processes.

use std::cell::Cell;
use std::ptr;

use super::{ADDRESS, Entry, NUMBER, OWN, ObjectType, Record, SLEEPS, Word, left, records};
use crate::carry::sync::Ordering;
use crate::carry::thread;
use crate::errno;

/// Runs before this thread forks.
pub(crate) fn before_fork() {
    if let Some(own) = OWN.with(Cell::get) {
        own.make_snapshots();
    }
}

/// Runs in the parent after a fork.
pub(crate) fn after_fork() {
    if let Some(own) = OWN.with(Cell::get) {
        own.made.discard();
    }
}

/// Runs in a child of fork, which has one thread: the holds of the other threads are the parent's.
pub(crate) fn begin_in_child() {
    let own = OWN.with(Cell::get);
    for record in records() {
        if own.is_some_and(|own| ptr::eq(own, record)) {
            errno::kept(|| record.go_on_in_child(record.owner.load(Ordering::Relaxed)));
        } else if record.owner.swap(0, Ordering::Relaxed) != 0 {
            // Tokens are not released, because both processes share their words.
            record.entries().iter().for_each(|entry| entry.what.store(0, Ordering::Relaxed));
            record.length.store(0, Ordering::Relaxed);
            record.floor.store(0, Ordering::Relaxed);
        }
    }
}

impl Record {
    /// Copies the memory of connections whose tokens the thread holds. Runs before it forks.
    fn make_snapshots(&self) {
        let owner = self.owner.load(Ordering::Relaxed);
        for word in self.tokens() {
            // SAFETY: the word is static, or belongs to a side that the same call uses.
            let is_held = unsafe { (*word).load(Ordering::Relaxed) } == owner;
            if is_held && let Some(places) = (left().segments)(word.addr()) {
                self.made.add(places);
            }
        }
    }

    fn tokens(&self) -> impl Iterator<Item = *const Word> {
        self.held().filter(|(_, what)| ObjectType::Token.has(*what)).map(|(_, what)| word_of(what))
    }

    /// The entries of the calls that the thread is in, from the first one.
    fn held(&self) -> impl DoubleEndedIterator<Item = (&Entry, u64)> {
        let length = self.length.load(Ordering::Relaxed);
        let entries = self.entries().iter().take(length);
        let with_values = entries.map(|entry| (entry, entry.what.load(Ordering::Relaxed)));
        with_values.filter(|(_, what)| *what != 0)
    }

    /// Runs in a child of fork, in the thread that forked, which had the number `before`.
    fn go_on_in_child(&self, before: u64) {
        let me = thread::thread();
        self.owner.store(me, Ordering::Relaxed);
        self.snapshots.inherit(&self.made);
        if self.snapshots.are_there() && self.has_few() {
            self.grow();
        }
        for (entry, what) in self.held() {
            if ObjectType::Token.has(what) {
                let word = word_of(what);
                if self.snapshots.have(word.addr()) {
                    entry.what.store(ObjectType::Parents.entry(what & ADDRESS), Ordering::Relaxed);
                } else if (left().segments)(word.addr()).is_none() {
                    // SAFETY: the word is memory of this process.
                    let word = unsafe { &*word };
                    let (taken, relaxed) = (Ordering::Relaxed, Ordering::Relaxed);
                    let _ = word.compare_exchange(before, me, taken, relaxed);
                }
            }
            for sleeps in [0, 1] {
                if ObjectType::Connection.has(what) && what & SLEEPS[sleeps] != 0 {
                    (left().asleep)((what & NUMBER) as usize, sleeps, me);
                }
            }
        }
        self.follow_snapshots();
    }

    /// Uses the snapshots while the thread is in a call that needs them, and the shared memory in other calls, which handlers
    /// make meanwhile. The call is the one with the last entry.
    #[cold]
    pub(super) fn follow_snapshots(&self) {
        if !self.snapshots.are_there() {
            return;
        }
        let is_parents = |(_, what): &(&Entry, u64)| ObjectType::Parents.has(*what);
        let uses = self.held().next_back().is_some_and(|last| is_parents(&last));
        let is_needed = self.held().any(|entry| is_parents(&entry));
        errno::kept(|| {
            without_signals(|| match is_needed {
                true => self.snapshots.show(uses),
                false => self.snapshots.end(),
            });
        });
    }
}

/// The word of an entry of a token.
fn word_of(what: u64) -> *const Word {
    ptr::with_exposed_provenance((what & ADDRESS) as usize)
}

/// Runs `work` while no handler interrupts it.
fn without_signals(work: impl FnOnce()) {
    // SAFETY: the first calls initialize the sets.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}
