//! What tasks wait for beside streams: descriptors and times.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Events that one look takes.
const EVENTS_MAX: usize = 64;
/// Times are looked at this often at least.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Reactor {
    epoll: Epoll,
    next: AtomicU64,
    sources: Mutex<BTreeMap<u64, Weak<Waiting>>>,
    times: Mutex<BTreeMap<(Instant, u64), Waker>>,
}

/// The task that waits for a source.
type Waiting = Mutex<Option<Waker>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            next: AtomicU64::new(0),
            sources: Mutex::default(),
            times: Mutex::default(),
        }))
    }

    /// Sleeps until something happens, and runs the tasks that wait for it.
    pub(crate) fn turn(&self) -> io::Result<()> {
        let next = lock(&self.times).keys().next().map(|(at, _)| *at);
        let left = next.map_or(LOOK_EVERY, |at| at.saturating_duration_since(Instant::now()));
        let millis = left.min(LOOK_EVERY).as_millis() as u16 + 1;
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        let count = match self.epoll.wait(&mut events, EpollTimeout::from(millis)) {
            Err(Errno::EINTR) => 0,
            count => count?,
        };
        for event in &events[..count] {
            let waiting = lock(&self.sources).get(&event.data()).and_then(Weak::upgrade);
            let waker = waiting.and_then(|waiting| lock(&waiting).take());
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        loop {
            let due = lock(&self.times)
                .first_entry()
                .filter(|first| first.key().0 <= Instant::now())
                .map(|first| first.remove());
            match due {
                Some(waker) => waker.wake(),
                None => return Ok(()),
            }
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// What a future gives, or `None` if that takes longer than `time`. Times are rounded up to a second.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut future = pin!(future);
        let key = (Instant::now() + time, self.number());
        let result = poll_fn(|context| {
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            if key.0 <= Instant::now() {
                return Poll::Ready(None);
            }
            lock(&self.times).insert(key, context.waker().clone());
            Poll::Pending
        });
        let result = result.await;
        lock(&self.times).remove(&key);
        result
    }
}

/// A descriptor that a task waits for.
pub(crate) struct Source<T: AsFd> {
    inner: T,
    number: u64,
    waiting: Arc<Waiting>,
    reactor: Arc<Reactor>,
}

impl<T: AsFd> Source<T> {
    pub(crate) fn new(inner: T, reactor: &Arc<Reactor>) -> io::Result<Self> {
        let (number, waiting) = (reactor.number(), Arc::<Waiting>::default());
        lock(&reactor.sources).insert(number, Arc::downgrade(&waiting));
        let source = Self { inner, number, waiting, reactor: Arc::clone(reactor) };
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        reactor.epoll.add(&source.inner, EpollEvent::new(flags, number))?;
        Ok(source)
    }

    pub(crate) fn get(&self) -> &T {
        &self.inner
    }

    /// Does `operation` once the descriptor is readable. The task is woken then.
    pub(crate) fn poll<R>(
        &self,
        context: &Context<'_>,
        operation: impl FnOnce(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        *lock(&self.waiting) = Some(context.waker().clone());
        match operation(&self.inner) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        }
    }
}

impl<T: AsFd> Drop for Source<T> {
    fn drop(&mut self) {
        lock(&self.reactor.sources).remove(&self.number);
        // Others may have the same description open, which would keep it in the set.
        let _ = self.reactor.epoll.delete(&self.inner);
    }
}
