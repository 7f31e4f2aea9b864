//! The sleep of one thread, and its end by other threads.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use apus_net::{Descriptors, OwningProcess, cpu, only};
use apus_proto::Time;

use crate::sync::clock;
use crate::sync::thread::{self, Thread};
use crate::sync::{self, AtomicU8, Ordering, Sleeper};

/// A waiting thread or task, unique in the process.
pub(crate) type WaiterId = u64;

/// Number of ids that a thread takes at a time.
const IDS: u64 = 1 << 10;

/// A new id for a task that waits. Threads take ids in blocks, because every poll of a task needs one: a shared counter would move
/// between their cores.
#[inline]
pub(crate) fn next_id() -> WaiterId {
    static NEXT_BLOCK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    std::thread_local! {
        static NEXT: Cell<WaiterId> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let mut id = next.get();
        if id.is_multiple_of(IDS) {
            id = NEXT_BLOCK.fetch_add(1, Ordering::Relaxed) * IDS;
        }
        next.set(id + 1);
        id
    })
}

/// The calling thread's id. Costs a thread-local read.
#[inline]
pub(crate) fn thread_id() -> WaiterId {
    PARKER.with(|parker| parker.borrow().id)
}

/// The calling thread's parker.
pub(crate) fn current() -> Arc<Parker> {
    PARKER.with(|parker| {
        let mut parker = parker.borrow_mut();
        if parker.process.is_some_and(|process| !process.is_current()) {
            // A copy from before a fork has the sleeper of the parent, and would end the sleep of a thread there.
            *parker = Arc::new(Parker { id: parker.id, ..Parker::new() });
        }
        Arc::clone(&parker)
    })
}

sync::thread_local! {
    static PARKER: RefCell<Arc<Parker>> = RefCell::new(Arc::new(Parker::new()));
    static TASK_POLLS: Cell<u64> = const { Cell::new(0) };
}

/// Number of times that the calling thread has polled a future of a node.
#[cfg(feature = "tokio")]
pub(crate) fn task_polls() -> u64 {
    TASK_POLLS.with(Cell::get)
}

/// Counts a poll of a future of a node.
#[inline]
pub(crate) fn count_task_poll() {
    TASK_POLLS.with(|polls| polls.set(polls.get().wrapping_add(1)));
}

/// The place where one thread parks. The thread calls [`prepare`](Self::prepare) under the engine's lock, releases the lock, and
/// parks. A thread that takes this handle from under the lock calls [`notify`](Self::notify) after it has released the lock. So no
/// wake-up is lost, and a late one only makes the thread check once more.
#[derive(Debug)]
pub(crate) struct Parker {
    id: WaiterId,
    thread: Thread,
    state: AtomicU8,
    /// Created by the first sleep on a link; `None` if the process had no descriptor left.
    sleeper: OnceLock<Option<Sleeper>>,
    /// Whether the thread's timers are precise.
    precise: OnceLock<()>,
    /// Number of cores on which the thread may run beside its own. If there is none, polling would only stop the thread for which
    /// it waits.
    other_cores: usize,
    /// The process that created it, if the system reports it.
    process: Option<OwningProcess>,
}

impl Parker {
    pub(crate) fn new() -> Self {
        Self {
            id: next_id(),
            thread: thread::current(),
            state: AtomicU8::new(AWAKE),
            sleeper: OnceLock::new(),
            precise: OnceLock::new(),
            other_cores: cpu::allowed().len() - 1,
            process: OwningProcess::current().ok(),
        }
    }

    /// The place where an event loop sleeps: somewhere in the application, which watches a descriptor that
    /// [`sleeper`](Self::sleeper) makes readable.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub(crate) fn of_event_loop() -> io::Result<Self> {
        Ok(Self { sleeper: OnceLock::from(Some(Sleeper::new()?)), ..Self::new() })
    }

    pub(crate) fn id(&self) -> WaiterId {
        self.id
    }

    /// The object that ends the sleep of an event loop.
    pub(crate) fn sleeper(&self) -> Option<&Sleeper> {
        self.sleeper.get()?.as_ref()
    }

    /// The event loop sleeps from now on. After a wake-up since [`prepare`](Self::prepare) its sleep ends at once.
    pub(crate) fn begin_event_loop_sleep(&self) {
        if !self.begin_sleep(AS_LEADER)
            && let Some(sleeper) = self.sleeper()
        {
            sleeper.wake();
        }
    }

    /// The event loop looks, because its sleep has ended or for another reason. Discards earlier wake-ups. Returns whether it slept.
    pub(crate) fn end_event_loop_sleep(&self) -> bool {
        let slept = self.state.swap(AWAKE, Ordering::AcqRel) != AWAKE;
        if let Some(sleeper) = self.sleeper() {
            sleeper.discard_wake();
        }
        slept
    }

    pub(crate) fn other_cores(&self) -> usize {
        self.other_cores
    }

    /// Discards earlier wake-ups. Called under the engine's lock, after the thread has found no message; and after a sleep, since
    /// an awake thread needs no wake-up.
    pub(crate) fn prepare(&self) {
        self.state.store(AWAKE, Ordering::Release);
    }

    /// Ends the current or the next sleep of this thread. Returns `true` if that took a system call: a thread that polls or runs
    /// needs none.
    pub(crate) fn notify(&self) -> bool {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            PARKED => {
                self.thread.unpark();
                true
            }
            AS_LEADER => {
                if let Some(Some(sleeper)) = self.sleeper.get() {
                    sleeper.wake();
                } else {
                    self.thread.unpark();
                }
                true
            }
            _ => false,
        }
    }

    /// Polls for a notification for up to `budget` and while `pays` returns `true`, then sleeps until a notification or the
    /// timeout. Returns `true` if it slept.
    pub(crate) fn park(
        &self,
        budget: Duration,
        pays: impl Fn() -> bool,
        timeout: Option<Duration>,
    ) -> bool {
        let start = clock::now();
        while clock::now().saturating_since(start) < budget && pays() {
            if self.state.load(Ordering::Acquire) == NOTIFIED {
                return false;
            }
            sync::spin_loop();
        }
        if !self.begin_sleep(PARKED) {
            return false;
        }
        self.sleep_parked(start, timeout);
        self.prepare();
        true
    }

    fn sleep_parked(&self, start: Time, timeout: Option<Duration>) {
        while self.state.load(Ordering::Acquire) == PARKED {
            match timeout {
                None => thread::park(),
                Some(timeout) => {
                    let left = timeout.saturating_sub(clock::now().saturating_since(start));
                    if left.is_zero() {
                        return;
                    }
                    thread::park_timeout(left);
                }
            }
        }
    }

    /// Sleeps until a notification, the timeout or, in the kind for that, until the link is ready. Returns `true` if it slept. If
    /// the process has no descriptor left, the thread checks the link every millisecond instead.
    pub(crate) fn sleep_as_leader(
        &self,
        kind: SleepKind,
        links: Descriptors,
        timeout: Option<Duration>,
    ) -> bool {
        let sleeper = self.sleeper.get_or_init(|| Sleeper::new().ok());
        let links = match kind {
            SleepKind::Link => links,
            SleepKind::Timer(_) => {
                self.precise.get_or_init(cpu::sleep_precisely);
                only(-1)
            }
        };
        if !self.begin_sleep(AS_LEADER) {
            return false;
        }
        match sleeper {
            Some(sleeper) => {
                sleeper.sleep(links, timeout);
            }
            None => thread::park_timeout(timeout.map_or(LOOK_EVERY, |time| time.min(LOOK_EVERY))),
        }
        self.prepare();
        true
    }

    /// Whether no notification came since [`prepare`](Self::prepare).
    fn begin_sleep(&self, place: u8) -> bool {
        self.state.compare_exchange(AWAKE, place, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

const AWAKE: u8 = 0;
const PARKED: u8 = 1;
const AS_LEADER: u8 = 2;
const NOTIFIED: u8 = 3;

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The kind of a leader's sleep. In either kind another thread can wake it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SleepKind {
    /// Until a packet arrives.
    Link,
    /// For this time, even if packets arrive: their senders must not pay for a wake-up.
    Timer(Duration),
}

impl SleepKind {
    /// Time at which a sleep that begins now ends by itself.
    pub(crate) fn until(self, now: Time) -> Option<Time> {
        match self {
            Self::Link => None,
            Self::Timer(time) => Some(now + time),
        }
    }
}

/// A thread or task that waits for a message.
#[derive(Clone, Debug)]
pub(crate) enum Waiter {
    /// A sleeping thread.
    Thread(Arc<Parker>),
    /// A task of an executor.
    Task(Task),
}

/// A task that waits for a message.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    id: WaiterId,
    waker: Waker,
    /// The thread that ran the task when it began to wait.
    thread: WaiterId,
}

impl Waiter {
    /// A task that the calling thread runs.
    pub(crate) fn task(id: WaiterId, waker: &Waker) -> Self {
        Self::Task(Task { id, waker: waker.clone(), thread: thread_id() })
    }

    pub(crate) fn id(&self) -> WaiterId {
        match self {
            Self::Thread(parker) => parker.id,
            Self::Task(task) => task.id,
        }
    }

    pub(crate) fn is_task(&self) -> bool {
        matches!(self, Self::Task(..))
    }

    /// Whether the waiter is a task that the calling thread ran when the task began to wait.
    pub(crate) fn is_task_of_this_thread(&self) -> bool {
        matches!(self, Self::Task(task) if task.thread == thread_id())
    }

    /// Whether the waiter is a task that this waker wakes.
    #[cfg(feature = "tower")]
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        matches!(self, Self::Task(task) if task.waker.will_wake(waker))
    }

    /// Wakes the waiter. Called outside the engine's lock. Returns `true` if the waiter slept.
    pub(crate) fn wake(self) -> bool {
        match self {
            Self::Thread(parker) => parker.notify(),
            Self::Task(task) => {
                task.waker.wake();
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_between_prepare_and_sleep_is_not_lost() {
        let parker = Parker::new();
        parker.prepare();
        assert!(!parker.notify(), "nobody sleeps, so nobody is woken");
        parker.park(Duration::ZERO, || true, None);
        parker.prepare();
        assert!(!parker.notify());
        parker.sleep_as_leader(SleepKind::Link, only(-1), None);
    }

    #[test]
    fn a_sleeping_thread_is_woken_wherever_it_sleeps() {
        for on_link in [false, true] {
            let (send, receive) = std::sync::mpsc::channel();
            let sleeper = thread::spawn(move || {
                let parker = current();
                parker.prepare();
                send.send(Arc::clone(&parker)).unwrap();
                if on_link {
                    parker.sleep_as_leader(SleepKind::Link, only(-1), None);
                } else {
                    parker.park(Duration::ZERO, || true, None);
                }
            });
            receive.recv().unwrap().notify();
            sleeper.join().unwrap();
        }
    }

    #[test]
    fn a_timeout_ends_the_sleep() {
        let parker = Parker::new();
        parker.prepare();
        parker.park(Duration::from_micros(1), || true, Some(Duration::from_micros(10)));
        parker.prepare();
        parker.sleep_as_leader(
            SleepKind::Timer(Duration::ZERO),
            only(-1),
            Some(Duration::from_nanos(1)),
        );
    }
}
