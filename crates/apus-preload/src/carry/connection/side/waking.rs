//! The sleep of a side's threads, and the wake-up of the peer.
//!
//! Two descriptors wake a sleeping thread. The *bell* is a unix socket whose ends were made by the two sides themselves, so
//! neither writes to a descriptor of the other. A byte from the peer asks this side to look at memory. The *nudge* is an eventfd,
//! by which processes of this side wake each other: a thread that has taken a byte from the bell passes it on if others sleep.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use apus_shm::bell;
use apus_sockets::{introduction, layout};
use libc::c_int;

use super::{ANSWER, Bell, Side};
use crate::carry::holds::{self, RELIES};
use crate::carry::inner::{Checked, InnerChannel};
use crate::carry::process;
use crate::carry::sleep;
use crate::carry::thread;
use crate::errno;
use crate::originals::own as originals;

impl Side {
    /// One more member of a set sleeps. The caller [asks](Self::ask) before each sleep.
    pub(crate) fn add_sleeper(&self, what: Bell) {
        if self.sleepers[what as usize].fetch_add(1, Ordering::SeqCst) == 0 {
            self.holders.add_sleeper(what as usize, all_threads());
        }
    }

    /// A member of a set no longer sleeps.
    pub(crate) fn remove_sleeper(&self, what: Bell) {
        let sleepers = &self.sleepers[what as usize];
        let less = |count: u32| count.checked_sub(1);
        if sleepers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1) {
            self.holders.remove_sleeper(what as usize, all_threads());
            if sleepers.load(Ordering::SeqCst) > 0 {
                self.holders.add_sleeper(what as usize, all_threads()); // Another sleep has begun.
            }
        }
        self.end_sleep(what);
    }

    /// Asks the peer to ring for this event. The caller looks once more before it sleeps.
    pub(crate) fn ask(&self, what: Bell) {
        sleep::ask(self.own.word(layout::BELLS[what as usize]));
    }

    /// A sleeper is awake and no longer counts.
    pub(crate) fn end_sleep(&self, what: Bell) {
        sleep::withdraw(self.own.word(layout::BELLS[what as usize]), || self.others_sleep(what));
        self.pass_on();
    }

    /// Wakes other threads of this side whose event has come.
    pub(crate) fn pass_on(&self) {
        if [Bell::Bytes, Bell::Room].into_iter().any(|what| self.is_awaited(what)) {
            self.nudge(); // Only this thread may have seen the bell.
        }
    }

    /// Whether another thread of this side sleeps for this event, in this process or another one.
    pub(super) fn others_sleep(&self, what: Bell) -> bool {
        self.sleepers[what as usize].load(Ordering::SeqCst) != 0
            || self.holders.have_sleepers(what as usize, thread::thread())
    }

    /// Whether another thread of this side may sleep for an event that has come, or sleeps without having asked the kernel, which
    /// knows now.
    fn is_awaited(&self, what: Bell) -> bool {
        let is_there = || match what {
            Bell::Bytes => self.has_bytes(),
            Bell::Room => self.is_writable() == Some(true),
        };
        let number = self.number.load(Ordering::Relaxed);
        let rely = || holds::have(number, RELIES[what as usize]);
        self.others_sleep(what) && (is_there() || rely() && !self.only_bell_ends_wait(what))
    }

    /// Descriptors that become readable when the peer or this side wakes this side.
    pub(crate) fn bells(&self) -> [c_int; 2] {
        [self.bell.as_raw_fd(), self.nudge.as_raw_fd()]
    }

    /// The same for `poll`. The first is -1 if the peer has ended, because `poll` would report that again and again.
    pub(crate) fn polled_bells(&self) -> [c_int; 2] {
        let [by_peer, by_side] = self.bells();
        [if self.bell_has_ended.load(Ordering::Relaxed) { -1 } else { by_peer }, by_side]
    }

    /// Empties the bells, after one of them was readable.
    pub(crate) fn check(&self) {
        let mut count = 0_u64;
        // SAFETY: the buffer holds the count. If the read finds no count, another thread has taken it.
        let _ = unsafe { originals::read(self.nudge.as_raw_fd(), (&raw mut count).cast(), 8) };
        if errno::kept(|| drain(&self.bell)) {
            self.bell_has_ended.store(true, Ordering::Relaxed);
        }
        // The bytes just taken may have been for other threads, which the peer now believes awake. The bell is armed for them
        // again; this time the woken thread looks on their behalf.
        for what in [Bell::Bytes, Bell::Room] {
            if self.others_sleep(what) {
                self.ask(what);
            }
        }
    }

    /// The same for a wait that learns of each byte as it comes. Some bytes may stay in the bell while it has room.
    pub(crate) fn check_peer_sometimes(&self) {
        if self.unchecked.fetch_add(1, Ordering::Relaxed) >= UNCHECKED_MAX {
            self.unchecked.store(0, Ordering::Relaxed);
            self.check();
        }
    }

    /// Wakes the peer if it sleeps for this event.
    #[inline]
    pub(super) fn ring(&self, what: Bell) {
        let word = layout::BELLS[what as usize];
        let asked = bell::asked::<AtomicU64>(|| self.peer.load(word, Ordering::Relaxed));
        if let Some(count) = asked
            && self.woken[what as usize].swap(count, Ordering::Relaxed) != count
        {
            self.wake_peer();
        }
    }

    /// Wakes the peer in any case.
    #[cold]
    pub(crate) fn wake_peer(&self) {
        if !notify(self.bell.as_raw_fd(), ANSWER) {
            notify(self.channel.as_raw_fd(), introduction::FULL);
        }
    }

    /// Empties the bells, which were full, and wakes the threads of this side.
    #[cold]
    pub(crate) fn empty_bells(&self) {
        self.check();
        self.nudge();
    }

    /// Wakes the sleeping threads of this side.
    pub(crate) fn nudge(&self) {
        let one = 1_u64.to_ne_bytes();
        let fd = self.nudge.as_raw_fd();
        // SAFETY: the count has 8 bytes. A full eventfd is readable, and this write never sleeps.
        errno::kept(|| unsafe { originals::write(fd, one.as_ptr().cast(), one.len()) });
    }

    /// Publishes the processor on which this side waits. Returns `true` if the peer last waited on the same one, so that spinning
    /// would only keep it from running.
    #[inline]
    pub(crate) fn shares_processor(&self) -> bool {
        if self.is_between_hosts {
            return true; // The carrier has to run.
        }
        // SAFETY: the call takes no arguments.
        let here = unsafe { libc::sched_getcpu() } as u64 + 1;
        let word = self.own.word(layout::PROCESSOR);
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
        self.peer.load(layout::PROCESSOR, Ordering::Relaxed) == here
    }

    /// Makes the peer's answering thread follow.
    #[cold]
    pub(crate) fn ask_peer(&self) {
        self.wake_peer();
        notify(self.channel.as_raw_fd(), ANSWER);
    }
}

/// The number that stands for all threads of this process.
fn all_threads() -> u64 {
    let process = u64::from(process::id());
    process << 32 | process
}

/// Sends a message. Returns `false` if the socket is full, or the peer has closed its end.
fn notify(socket: c_int, message: u8) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message is one byte.
    errno::kept(|| unsafe { originals::send(socket, [message].as_ptr().cast(), 1, flags) }) > 0
}

/// Upper bound on messages taken at a time.
pub(crate) const CHECKED_AT_ONCE: usize = 64;

/// Upper bound on messages that stay in the bell. A socket holds more than a hundred.
const UNCHECKED_MAX: u32 = 48;

/// Empties a bell. Returns `true` if the peer has closed its end.
fn drain(socket: &InnerChannel) -> bool {
    for _ in 0..CHECKED_AT_ONCE {
        match socket.check() {
            Checked::Message(_) => {}
            Checked::Nothing => return false,
            Checked::End => return true,
        }
    }
    false
}
