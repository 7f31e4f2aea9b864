//! Wake-ups of a thread that sleeps in an event loop.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// The sources of an event loop that have to be looked at, and a descriptor that wakes its thread.
pub(crate) struct Wakes {
    due: Mutex<Vec<u64>>,
    descriptor: OwnedFd,
    /// The descriptor is readable, or about to be.
    is_signalled: AtomicBool,
    /// The thread that looks at the list before it sleeps; 0 for none.
    awake: AtomicU64,
}

thread_local! {
    static THREAD: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// The number of the calling thread.
fn this_thread() -> u64 {
    THREAD.with(|it| *it)
}

impl Wakes {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            due: Mutex::new(Vec::new()),
            descriptor,
            is_signalled: AtomicBool::new(false),
            awake: AtomicU64::new(0),
        }))
    }

    /// The descriptor, which is readable when there is something to look at.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// A waker that puts this source on the list.
    pub(crate) fn waker(self: &Arc<Self>, source: u64) -> Arc<SourceWaker> {
        Arc::new(SourceWaker { wakes: Arc::clone(self), source, is_due: AtomicBool::new(false) })
    }

    fn push(&self, source: u64) {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push(source);
        if self.awake.load(Ordering::SeqCst) != this_thread() {
            self.signal();
        }
    }

    /// Wakes the thread.
    fn signal(&self) {
        if self.announce() {
            self.write();
        }
    }

    /// Begins a wake-up. Returns whether the caller has to [write](Self::write).
    pub(crate) fn announce(&self) -> bool {
        !self.is_signalled.swap(true, Ordering::SeqCst)
    }

    /// Makes the descriptor readable.
    pub(crate) fn write(&self) {
        // An event of 64 bits cannot fail to be added; nothing is lost if it is there already.
        let _ = io::write(self.descriptor.as_fd(), &1_u64.to_ne_bytes());
    }

    /// The calling thread looks at the list until [`sleep`](Self::sleep).
    pub(crate) fn begin(&self) {
        self.awake.store(this_thread(), Ordering::SeqCst);
        // The one that has announced itself may not have written yet: the next call reads it then. Those that come between the two steps
        // are on the list, which is read afterwards.
        if self.is_signalled.load(Ordering::SeqCst)
            && io::read(self.descriptor.as_fd(), &mut [0_u8; 8]).is_ok()
        {
            self.is_signalled.store(false, Ordering::SeqCst);
        }
    }

    /// Takes the list.
    pub(crate) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The thread stops polling the list. It is woken again if the list is not empty.
    pub(crate) fn sleep(&self) {
        self.awake.store(0, Ordering::SeqCst);
        let is_due = !self.due.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if is_due {
            self.signal();
        }
    }
}

/// Puts a source on the list, once until it is looked at.
pub(crate) struct SourceWaker {
    wakes: Arc<Wakes>,
    source: u64,
    is_due: AtomicBool,
}

impl SourceWaker {
    /// As a waker for futures.
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        Arc::clone(self).into()
    }

    /// The source is looked at: later wake-ups put it on the list again.
    pub(crate) fn looked_at(&self) {
        self.is_due.store(false, Ordering::SeqCst);
    }
}

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            self.wakes.push(self.source);
        }
    }
}
