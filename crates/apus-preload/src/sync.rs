//! What the table of connections is made of: atomics of the standard library, or in the model test (`--cfg apus_model`) those of a
//! scheduler that tries one interleaving after the other.

#[cfg(not(all(test, apus_model)))]
mod real {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };

    /// Frees a value.
    ///
    /// # Safety
    ///
    /// The pointer is that of a box, and nobody uses the value any more.
    pub(crate) unsafe fn free<T>(value: *mut T) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(value) });
    }
}

#[cfg(not(all(test, apus_model)))]
pub(crate) use real::*;

#[cfg(all(test, apus_model))]
mod model {
    pub(crate) use shuttle::hint::spin_loop;
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };

    /// The addresses that were freed. No model has a value at them.
    pub(crate) static FREED: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

    /// Notes that a value is freed.
    pub(crate) unsafe fn free<T>(value: *mut T) {
        FREED.lock().unwrap().push(value.addr());
    }
}

#[cfg(all(test, apus_model))]
pub(crate) use model::*;
