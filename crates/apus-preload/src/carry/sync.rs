//! Atomics, and numbers of threads. In the model tests (`--cfg apus_model`) they are those of a scheduler that tries one
//! interleaving after the other.

#[cfg(not(all(test, apus_model)))]
mod real {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::thread_local;
}

#[cfg(not(all(test, apus_model)))]
pub(crate) use real::*;

#[cfg(all(test, apus_model))]
mod model {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64 as Ended;

    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use shuttle::thread_local;

    /// The tables are the process's, so one test of a model runs at a time.
    pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// A bit for each ended thread of a run.
    static ENDED: Ended = Ended::new(0);

    /// The number of the modelled thread. `None` outside of a model.
    pub(crate) fn thread() -> Option<u64> {
        shuttle::current::try_get_current_task().map(|task| usize::from(task) as u64 + 1)
    }

    /// The modelled thread ends.
    pub(crate) fn end() {
        ENDED.fetch_or(1 << thread().unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn has_ended(thread: u64) -> bool {
        ENDED.load(Ordering::Relaxed) & 1 << thread != 0
    }

    /// Begins a run.
    pub(crate) fn forget_ended() {
        ENDED.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, apus_model))]
pub(crate) use model::*;
