//! Primitives that threads share: locks, atomics, sleeping. They come from the standard library and `apus-net`; in the model test
//! (`--cfg apus_model`) from a scheduler that tries one interleaving after the other. `clock` is the process's clock, `on_thread`
//! runs blocking work on a thread of its own.

pub(crate) mod clock;
pub(crate) mod on_thread;

#[cfg(not(all(test, apus_model)))]
mod real {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
    pub(crate) use std::sync::mpsc;
    pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
    pub(crate) use std::thread;
    pub(crate) use std::thread_local;

    pub(crate) use apus_net::{EventSource, Sleeper};

    /// Times a thread tries for a lock before it sleeps for it: some microseconds, several turns.
    pub(crate) const TRIES: u32 = 200;
}

#[cfg(not(all(test, apus_model)))]
pub(crate) use real::*;

#[cfg(all(test, apus_model))]
mod model;

#[cfg(all(test, apus_model))]
pub(crate) use model::*;
