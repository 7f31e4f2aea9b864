//! The engine behind its lock, and the manners of those who want it.

use crate::delivery::{Delivery, Regime};
use crate::engine::Engine;
use crate::error::Forked;
use crate::sync::{
    self, AtomicU32, AtomicU64, LockResult, Mutex, MutexGuard, Ordering, PoisonError, TRIES,
    TryLockError, thread,
};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{OnceLock, Weak};

use apus_net::{Process, shard_of};
use apus_wire::PathError;

pub(crate) type Guard<'a> = MutexGuard<'a, Engine>;

/// What all handles of a node share.
pub(crate) struct Shared {
    engine: Mutex<Engine>,
    /// Threads that want the lock and did not get it at once: whoever polls lets them in.
    contenders: AtomicU32,
    /// Where the thread that polls last was, so that nobody keeps it from its core.
    pub(crate) leader_cpu: AtomicU32,
    /// Counted outside the lock, where the wake-ups are made.
    wake_ups: AtomicU64,
    /// All shards of the node, where there are several.
    shards: OnceLock<Vec<Weak<Self>>>,
    pub(crate) delivery: Delivery,
    pub(crate) regime: Regime,
    /// The link's descriptor; outdated once the node has stopped, but then nobody sleeps any more.
    pub(crate) descriptor: RawFd,
    /// Where the node was started: in a child of that process the lock may be held by a thread that
    /// does not exist there, and the link is the parent's.
    process: Process,
}

impl Shared {
    pub(crate) fn new(engine: Engine, delivery: Delivery, process: Process) -> Self {
        let descriptor = engine.link.descriptor();
        Self {
            engine: Mutex::new(engine),
            contenders: AtomicU32::new(0),
            leader_cpu: AtomicU32::new(u32::MAX),
            wake_ups: AtomicU64::new(0),
            shards: OnceLock::new(),
            delivery,
            regime: delivery.regime(),
            descriptor,
            process,
        }
    }

    /// The lock, for an operation that an application begins. What goes on in the same operation
    /// takes the [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// In a child of the process that started the node.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>, Forked> {
        if self.is_forked() { Err(Forked) } else { Ok(self.lock()) }
    }

    /// This is a child of the process that started the node: nothing of it may be touched.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// # Panics
    ///
    /// When a thread panicked while it turned the engine: nothing can be said of its state then.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(_) => self.contend().expect("no thread has panicked while it turned the engine"),
        }
    }

    /// None: another thread has it, or panicked with it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        self.engine.try_lock().ok()
    }

    /// For clean-up, which must not panic: also gives an engine whose thread panicked. `None` in a
    /// child of the process that started the node, where nothing is to be cleaned up.
    pub(crate) fn lock_for_cleanup(&self) -> Option<Guard<'_>> {
        (!self.is_forked()).then(|| self.contend().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn contend(&self) -> LockResult<Guard<'_>> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let mut tries = 0;
        let engine = loop {
            match self.engine.try_lock() {
                Ok(engine) => break Ok(engine),
                Err(TryLockError::Poisoned(error)) => break Err(error),
                Err(TryLockError::WouldBlock) if tries == TRIES => break self.engine.lock(),
                Err(TryLockError::WouldBlock) => sync::spin_loop(),
            }
            tries += 1;
        };
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// A thread that polls gives others their turn.
    #[inline]
    pub(crate) fn let_others_in<'a>(&'a self, engine: Guard<'a>) -> Guard<'a> {
        if self.contenders.load(Ordering::Relaxed) == 0 {
            return engine;
        }
        drop(engine);
        self.stand_aside();
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

    /// Lets go of the lock, then wakes whom the engine has chosen.
    #[inline]
    pub(crate) fn unlock(&self, mut engine: Guard<'_>) {
        engine.settle();
        if engine.keeps_to_itself() && engine.mail.discarded.is_empty() {
            return;
        }
        let wakes = std::mem::take(&mut engine.mail.wakes);
        let discarded = std::mem::take(&mut engine.mail.discarded);
        let astray = std::mem::take(&mut engine.astray);
        drop(engine);
        drop(discarded);
        let woken = wakes.into_iter().map(|waiter| u64::from(waiter.wake())).sum();
        self.wake_ups.fetch_add(woken, Ordering::Relaxed);
        if !astray.is_empty() {
            self.pass_on(astray);
        }
    }

    /// Tells the engines concerned of errors that came to the wrong link.
    #[cold]
    fn pass_on(&self, astray: Vec<(SocketAddr, PathError)>) {
        let Some(shards) = self.shards.get() else { return };
        for (peer, error) in astray {
            if let Some(shard) = shards[shard_of(peer, shards.len())].upgrade()
                && let Some(mut engine) = shard.lock_for_cleanup()
            {
                engine.handle_astray(peer, error);
                shard.unlock(engine);
            }
        }
    }

    /// The shards of the node, this one among them, in their order.
    pub(crate) fn introduce(&self, shards: Vec<Weak<Self>>) {
        let before = self.shards.set(shards);
        debug_assert!(before.is_ok(), "a node is put together once");
    }

    pub(crate) fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }
}
