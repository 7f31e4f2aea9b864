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
    use std::cell::Cell;
    use std::ops::Deref;
    use std::sync::atomic;

    pub(crate) use shuttle::hint::spin_loop;
    use shuttle::sync::atomic::AtomicBool as Shuttled;
    pub(crate) use std::sync::atomic::Ordering;

    /// An atomic before each use of which another thread of the model may run. Outside of a model it is an ordinary one: the test
    /// program itself writes by the calls of this library.
    pub(crate) struct Modelled<A>(A);

    pub(crate) type AtomicBool = Modelled<atomic::AtomicBool>;
    pub(crate) type AtomicI32 = Modelled<atomic::AtomicI32>;
    pub(crate) type AtomicU32 = Modelled<atomic::AtomicU32>;
    pub(crate) type AtomicU64 = Modelled<atomic::AtomicU64>;
    pub(crate) type AtomicUsize = Modelled<atomic::AtomicUsize>;
    pub(crate) type AtomicPtr<T> = Modelled<atomic::AtomicPtr<T>>;

    macro_rules! new {
        ($($name:ident: $value:ty),*) => {$(
            impl Modelled<atomic::$name> {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }
            }
        )*};
    }

    new!(AtomicBool: bool, AtomicI32: i32, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);

    impl<T> Modelled<atomic::AtomicPtr<T>> {
        pub(crate) const fn new(value: *mut T) -> Self {
            Self(atomic::AtomicPtr::new(value))
        }
    }

    impl<A> Deref for Modelled<A> {
        type Target = A;

        fn deref(&self) -> &A {
            if IS_MODEL.get() && !std::thread::panicking() {
                POINT.load(Ordering::SeqCst);
            }
            &self.0
        }
    }

    thread_local! {
        /// A model runs on this thread, with all its threads.
        pub(crate) static IS_MODEL: Cell<bool> = const { Cell::new(false) };
    }

    shuttle::lazy_static! {
        static ref POINT: Shuttled = Shuttled::new(false);
    }

    /// The addresses that were freed. No model has a value at them.
    pub(crate) static FREED: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());

    /// Notes that a value is freed.
    pub(crate) unsafe fn free<T>(value: *mut T) {
        FREED.lock().unwrap().push(value.addr());
    }
}

#[cfg(all(test, apus_model))]
pub(crate) use model::*;
