//! The engine behind its lock.

use crate::delivery::{Delivery, Regime};
use crate::engine::{AfterUnlock, CountedOutside, Engine, QueuedReplies};
use crate::error::Unusable;
use crate::sync::clock;
use crate::sync::{
    self, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, TRIES, TryLockError, thread,
};
use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::panicking;

use apus_net::{Descriptors, Examination, OwningProcess, shard_of};
use apus_proto::{Remote, SpentBodies, TraceEvent};
use apus_wire::{PathError, PathId};

use crate::address::Address;
use crate::error::CallError;
use crate::observe::time_trace;
use crate::resolve::is_unspecified;

/// State that all handles of a node share.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    /// Threads that wait for the lock. A polling leader releases it for them.
    pub(crate) contenders: AtomicU32,
    /// The CPU of the thread that polled last. No follower polls on that CPU.
    pub(crate) leader_cpu: AtomicU32,
    /// Counted outside the lock, where the wake-ups are made.
    wake_ups: AtomicU64,
    /// Counted where the lock was not to be had.
    lock_misses: AtomicU64,
    /// All shards of the node, where there are several.
    shards: OnceLock<Vec<Weak<Self>>>,
    pub(crate) delivery: Delivery,
    pub(crate) regime: Regime,
    /// Descriptors of the link and of the neighbours. They are stale once the node has stopped; no thread sleeps on them then.
    pub(crate) descriptors: Descriptors,
    /// Responses that wait outside the lock.
    pub(crate) replies: Arc<QueuedReplies>,
    /// Where the node was started: in a child of that process the lock may be held by a thread that
    /// does not exist there, and the link is the parent's.
    process: OwningProcess,
}

impl Shared {
    pub(crate) fn new(engine: Engine, delivery: Delivery, process: OwningProcess) -> Self {
        let mut descriptors = engine.link.descriptors();
        if let Some(near) = engine.near_descriptor()
            && let Some(free) = descriptors.iter_mut().find(|descriptor| **descriptor < 0)
        {
            *free = near;
        }
        Self {
            replies: Arc::clone(&engine.replies),
            engine: Mutex::new(engine),
            contenders: AtomicU32::new(0),
            leader_cpu: AtomicU32::new(u32::MAX),
            wake_ups: AtomicU64::new(0),
            lock_misses: AtomicU64::new(0),
            shards: OnceLock::new(),
            delivery,
            regime: delivery.regime(),
            descriptors,
            process,
        }
    }

    /// Takes the lock for an operation that the application begins. Later steps of the same operation use [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// In a child of the process that started the node; otherwise as [`lock`](Self::lock).
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>, Unusable> {
        if self.is_forked() { Err(Unusable::Forked) } else { self.lock() }
    }

    /// Takes the lock as [`enter`](Self::enter) does, for a message to `to`, and returns the path. Examines a host outside the lock
    /// before the first message to it.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter); when the node is being closed, the address is invalid, or no link reaches it.
    #[inline]
    pub(crate) fn enter_towards(&self, to: Address) -> Result<(Guard<'_>, Remote), CallError> {
        if is_unspecified(to) {
            return Err(CallError::UnspecifiedAddress(to));
        }
        let mut engine = self.enter()?;
        let mut path = engine.resolve(to);
        if let Ok(known) = path
            && let Some(examination) = first_examination(&engine, known)
        {
            engine = self.examine(engine, examination)?;
            path = engine.resolve(to);
        }
        if engine.drain.begun {
            return Err(CallError::Closed);
        }
        Ok((engine, Remote::new(path?, to.port)))
    }

    /// [`enter`](Self::enter) for a message by `path`. Its host is examined if it was not yet, off the lock.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    #[inline]
    pub(crate) fn enter_by(&self, path: PathId) -> Result<Guard<'_>, Unusable> {
        let engine = self.enter()?;
        match first_examination(&engine, path) {
            Some(examination) => self.examine(engine, examination),
            None => Ok(engine),
        }
    }

    #[cold]
    fn examine<'a>(
        &'a self,
        engine: Guard<'a>,
        examination: Examination,
    ) -> Result<Guard<'a>, Unusable> {
        drop(engine);
        let examined = examination.run();
        let mut engine = self.lock()?;
        engine.examined(examined);
        Ok(engine)
    }

    /// This is a child of the process that started the node: nothing of it may be touched.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// # Errors
    ///
    /// [`Unusable::Panicked`]: a thread panicked under the lock, and the engine's state is unknown.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Guard<'_>, Unusable> {
        match self.engine.try_lock() {
            Ok(engine) => Ok(self.guard(engine)),
            Err(TryLockError::WouldBlock) => self.contend(),
            Err(TryLockError::Poisoned(_)) => Err(Unusable::Panicked),
        }
    }

    /// `Ok(None)`: another thread has it.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub(crate) fn try_lock(&self) -> Result<Option<Guard<'_>>, Unusable> {
        match self.engine.try_lock() {
            Ok(engine) => Ok(Some(self.guard(engine))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(Unusable::Panicked),
        }
    }

    #[inline]
    fn guard<'a>(&'a self, engine: MutexGuard<'a, Engine>) -> Guard<'a> {
        let unwinding = panicking();
        Guard { engine: Some(engine), shared: self, unwinding }
    }

    #[cold]
    fn contend(&self) -> Result<Guard<'_>, Unusable> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        self.lock_misses.fetch_add(1, Ordering::Relaxed);
        let (mut tries, since) = (0, clock::now());
        let engine = loop {
            match self.engine.try_lock() {
                Ok(engine) => break Some(engine),
                Err(TryLockError::Poisoned(_)) => break None,
                Err(TryLockError::WouldBlock) if tries == TRIES => break self.engine.lock().ok(),
                Err(TryLockError::WouldBlock) => sync::spin_loop(),
            }
            tries += 1;
        };
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        let waited = clock::now().saturating_since(since).as_nanos();
        let waited = u32::try_from(waited).unwrap_or(u32::MAX);
        time_trace::record(TraceEvent::LockWait, [waited, 0, 0, 0]);
        engine.map(|engine| self.guard(engine)).ok_or(Unusable::Panicked)
    }

    /// Wakes the chosen waiters and lets other threads take the lock, on behalf of a thread that polls.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    pub(crate) fn let_others_in<'a>(
        &'a self,
        mut engine: Guard<'a>,
    ) -> Result<Guard<'a>, Unusable> {
        engine.settle();
        if engine.has_work_after_unlock() || engine.publication_is_due() {
            drop(engine);
        } else if self.contenders.load(Ordering::Relaxed) > 0 {
            drop(engine);
            self.stand_aside();
        } else {
            return Ok(engine);
        }
        self.lock()
    }

    #[cold]
    fn stand_aside(&self) {
        for _ in 0..TRIES {
            if self.contenders.load(Ordering::Relaxed) == 0 {
                return;
            }
            sync::spin_loop();
        }
        thread::yield_now();
    }

    /// Runs the work that the engine left for after the unlock.
    fn finish(&self, work: AfterUnlock) {
        let AfterUnlock { wakes, discarded, misrouted, examinations, handlers } = work;
        drop((discarded, handlers));
        let woken = wakes.into_iter().map(|waiter| u64::from(waiter.wake())).sum();
        self.wake_ups.fetch_add(woken, Ordering::Relaxed);
        if !misrouted.is_empty() {
            self.forward(misrouted);
        }
        for examination in examinations {
            let examined = examination.run();
            if let Ok(mut engine) = self.lock() {
                engine.examined(examined);
            }
        }
    }

    /// Passes on errors that came to the link of another engine.
    #[cold]
    fn forward(&self, misrouted: Vec<(SocketAddr, PathError)>) {
        let Some(shards) = self.shards.get() else { return };
        for (peer, error) in misrouted {
            if let Some(shard) = shards[shard_of(peer, shards.len())].upgrade()
                && let Ok(mut engine) = shard.lock()
            {
                engine.handle_misrouted(peer, error);
            }
        }
    }

    /// The shards of the node, this one among them, in their order.
    pub(crate) fn introduce(&self, shards: Vec<Weak<Self>>) {
        let before = self.shards.set(shards);
        debug_assert!(before.is_ok(), "a node is put together once");
    }

    pub(crate) fn counted_outside(&self) -> CountedOutside {
        CountedOutside {
            wake_ups: self.wake_ups.load(Ordering::Relaxed),
            lock_misses: self.lock_misses.load(Ordering::Relaxed),
        }
    }
}

/// The examination that a path needs before its first message.
#[inline]
fn first_examination(engine: &Engine, path: PathId) -> Option<Examination> {
    if engine.knows(path) { None } else { engine.link.examination(path) }
}

/// The locked engine.
///
/// Dropping the guard chooses which waiters to wake, releases the lock, then wakes them and drops values whose destructors may run
/// application code.
///
/// A guard that is dropped by a panic poisons the engine. All waiters are woken, and each of their operations returns
/// [`Unusable::Panicked`].
pub(crate) struct Guard<'a> {
    /// `None` only while the guard is being dropped.
    engine: Option<MutexGuard<'a, Engine>>,
    shared: &'a Shared,
    /// The thread was already unwinding when it took the lock, so the panic did not happen under the lock.
    unwinding: bool,
}

impl Deref for Guard<'_> {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        self.engine.as_ref().expect(HELD)
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        self.engine.as_mut().expect(HELD)
    }
}

thread_local! {
    /// An empty list, whose memory is used again: freeing it has an allocator tidy up, at every turn with many messages.
    static SPENT: Cell<SpentBodies> = Cell::default();
}

const HELD: &str = "the lock is held until the guard is dropped";

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        if !self.unwinding && panicking() {
            return self.end_in_panic(engine);
        }
        engine.settle();
        engine.rest();
        engine.publish(|| self.shared.counted_outside());
        if engine.has_work_after_unlock() {
            if let Some(body) = engine.take_only_work() {
                drop(engine);
                return drop(body);
            }
            self.end_with_work(engine);
        }
    }
}

impl<'a> Guard<'a> {
    /// The thread panics under the lock.
    #[cold]
    #[inline(never)]
    fn end_in_panic(&self, mut engine: MutexGuard<'a, Engine>) {
        // The engine may be in a state in which this panics as well.
        let woken = AssertUnwindSafe(&mut engine);
        let work = panic::catch_unwind(|| { woken }.0.wake_all_after_panic());
        drop(engine);
        work.into_iter().flatten().for_each(|work| self.shared.finish(work));
    }

    /// Does the work that the engine has left for after the unlock.
    #[inline(never)]
    fn end_with_work(&self, mut engine: MutexGuard<'a, Engine>) {
        // Another guard that is dropped meanwhile, by the destructor of a body, has a list of its own.
        let mut spent = SPENT.try_with(Cell::take).unwrap_or_default();
        engine.take_spent(&mut spent);
        let work = engine.take_after_unlock();
        drop(engine);
        if let Some(work) = work {
            self.shared.finish(work);
        }
        spent.clear();
        let _ = SPENT.try_with(|empty| empty.set(spent)); // In vain while the thread ends.
    }
}
