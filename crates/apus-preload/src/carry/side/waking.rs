//! How the threads of a side sleep, and how the peer is woken.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use apus_shm::bell;
use apus_sockets::layout;

use super::{ANSWER, Bell, Side};
use crate::carry::inner::Inner;
use crate::carry::sleep;
use crate::carry::spin::SLEEPERS;
use crate::errno;
use crate::originals::own as originals;

impl Side {
    /// One more of this process sleeps until there is something. The caller [asks](Self::ask) before each sleep.
    pub(crate) fn add_sleeper(&self, what: Bell) {
        self.sleepers[what as usize].fetch_add(1, Ordering::SeqCst);
        SLEEPERS.fetch_add(1, Ordering::Relaxed);
    }

    /// One of the sleepers does not ask the kernel if it [need not](Self::only_bell_tells). True if it does not; it looks once more
    /// whether that still holds.
    pub(crate) fn relies_on_bell(&self, what: Bell) -> bool {
        let relies = self.only_bell_tells(what);
        if relies {
            self.relying[what as usize].fetch_add(1, Ordering::SeqCst);
        }
        relies
    }

    /// Asks to be woken for this; the caller looks once more before it sleeps.
    pub(crate) fn ask(&self, what: Bell) {
        sleep::ask(self.own.word(layout::BELLS[what as usize]));
    }

    /// One that slept has got up. `relied`: it had not asked the kernel.
    pub(crate) fn get_up(&self, what: Bell, relied: bool) {
        SLEEPERS.fetch_sub(1, Ordering::Relaxed);
        let relying = &self.relying[what as usize];
        let others_rely = if relied {
            relying.fetch_sub(1, Ordering::SeqCst) > 1
        } else {
            relying.load(Ordering::SeqCst) > 0
        };
        let sleepers = &self.sleepers[what as usize];
        sleepers.fetch_sub(1, Ordering::SeqCst);
        let others = sleep::withdraw(self.own.word(layout::BELLS[what as usize]), sleepers);
        let is_there = || match what {
            Bell::Bytes => self.has_bytes(),
            Bell::Room => self.is_writable() == Some(true),
        };
        if others && is_there() || others_rely && !self.only_bell_tells(what) {
            self.wake_self(what); // The bell may have been heard by this one only.
        }
    }

    /// Empties the bell.
    pub(crate) fn hear(&self, what: Bell) {
        let mut count = 0_u64;
        // SAFETY: there is room for the count. If nothing is there, another thread has heard it.
        let _ = unsafe { originals::read(self.bell(what), (&raw mut count).cast(), 8) };
    }

    /// Wakes the peer if it sleeps for this.
    #[inline]
    pub(super) fn ring(&self, what: Bell) {
        let word = layout::BELLS[what as usize];
        let asked = bell::asked::<AtomicU64>(|| self.peer.load(word, Ordering::Relaxed));
        if let Some(count) = asked
            && self.woken[what as usize].swap(count, Ordering::Relaxed) != count
        {
            wake(&self.peer_bells[what as usize]);
        }
    }

    /// Wakes the peer, whatever it waits for.
    #[cold]
    pub(crate) fn wake_peer(&self) {
        self.peer_bells.iter().for_each(wake);
    }

    /// Wakes whoever of this process waits.
    pub(crate) fn wake_self(&self, what: Bell) {
        wake(&self.bells[what as usize]);
    }

    /// Says on which processor this side waits; true if the peer was on the same one when it waited last, so that looking at memory
    /// would only keep it from running.
    #[inline]
    pub(crate) fn shares_processor(&self) -> bool {
        if self.is_between_hosts {
            return true; // The carrier has to run.
        }
        // SAFETY: the call has no arguments.
        let here = unsafe { libc::sched_getcpu() } as u64 + 1;
        let word = self.own.word(layout::PROCESSOR);
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
        self.peer.load(layout::PROCESSOR, Ordering::Relaxed) == here
    }

    /// Has the thread of the peer follow.
    #[cold]
    pub(crate) fn ask_peer(&self) {
        self.wake_peer();
        let fd = self.channel.descriptor().as_raw_fd();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message is a byte. A channel that is full has messages enough.
        errno::kept(|| unsafe { originals::send(fd, [ANSWER].as_ptr().cast(), 1, flags) });
    }
}

fn wake(bell: &Inner) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the count has 8 bytes. A bell that is full rings.
    errno::kept(|| unsafe { originals::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) });
}
