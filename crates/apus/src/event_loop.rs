//! An event loop of the application that turns a node: one descriptor to watch, and one function to call.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use apus_net::only;
use apus_proto::Time;

use crate::delivery::event_source::Look;
use crate::delivery::parker::Parker;
use crate::engine::lock::Shared;
use crate::engine::shards::Shards;
use crate::error::{EventLoopError, Unusable};
use crate::sync::{EventSource, Mutex};

#[cfg(feature = "tokio")]
mod in_tokio;

/// A node's place in an event loop of the application: epoll, tokio, asyncio, libuv. From
/// [`Node::event_loop`](crate::Node::event_loop).
///
/// Without it, a background thread turns the engine for tasks that await calls or requests: a message wakes that thread, and the
/// thread wakes the task. An event loop has no such hop. It watches one [descriptor](AsFd), level-triggered, and calls
/// [`turn`](Self::turn) when the descriptor is readable. In this call tasks are woken and responses come into the queues of their
/// clients. With the feature `tokio`, `EventLoop::drive` does this.
///
/// Other operations, such as a look at another queue or a call of a port of the same node, may bring messages as well. The descriptor
/// becomes readable if no thread or task waits for such a message, so a loop that takes all messages after each turn misses none.
///
/// Threads that wait in blocking functions of the node turn the engine themselves meanwhile, as without an event loop. Nothing hangs if
/// no thread watches the descriptor, or if the thread of the loop computes: what has arrived waits for at most twice the
/// setting `suspend_timeout` (10 ms), then the background thread turns the engine until the loop calls again.
///
/// Clones are handles to the same event loop, which ends when the last one is dropped. It does not keep the node running.
///
/// ```
/// use std::os::fd::AsFd;
/// use std::time::Duration;
/// use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = apus::Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// # let server = apus::Node::start(&config)?;
/// # let port = server.bind(4000)?;
/// # let address = apus::Address::new(server.local_addr(), 4000);
/// # std::thread::spawn(move || {
/// #     port.serve(|request| {
/// #         let body = request.body().clone();
/// #         let _ = request.reply(body);
/// #     });
/// # });
/// let node = apus::Node::start(&config)?;
/// let client = node.client()?;
/// let event_loop = node.event_loop()?;
/// client.send(address, "hello", 7, apus::Flush::Now)?;
/// let response = loop {
///     // Other descriptors of the program are watched here as well.
///     poll(&mut [PollFd::new(event_loop.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
///     event_loop.turn();
///     if let Ok(response) = client.try_recv() {
///         break response;
///     }
/// };
/// assert_eq!(response.cookie, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EventLoop {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    me: Arc<Parker>,
    source: EventSource,
    /// When the timer of the source expires.
    timer: Mutex<Option<Time>>,
}

impl EventLoop {
    pub(crate) fn new(shards: &Shards) -> Result<Self, EventLoopError> {
        let mut all = shards.iter();
        let (Some(shared), None) = (all.next(), all.next()) else {
            return Err(EventLoopError::Shards(shards.iter().len()));
        };
        let me = Parker::of_event_loop().map_err(EventLoopError::Descriptor)?;
        let sleeper = me.sleeper().expect("an event loop has a sleeper");
        let source =
            EventSource::new(shared.descriptors, sleeper).map_err(EventLoopError::Descriptor)?;
        let descriptor = only(source.as_fd().as_raw_fd());
        let me = Arc::new(me);
        let look = shared.add_event_loop(&me, descriptor)?;
        let inner = Inner { shared: Arc::clone(shared), me, source, timer: Mutex::new(None) };
        inner.set_timer(&look);
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Turns the engine once: receives messages, runs timers, transmits, and wakes tasks and threads. Returns the number of datagrams
    /// and of messages from processes of this host; zero if nothing has arrived, or if the node is closed.
    ///
    /// A turn takes a bounded number of messages. The descriptor stays readable if more have arrived. An event loop that is
    /// notified only when a descriptor becomes readable calls this function until it returns zero.
    pub fn turn(&self) -> usize {
        self.inner.turn().received
    }

    /// Turns the engine until a task of the calling thread is woken, for as long as polling has paid before, and for at most
    /// `at_most`. Returns true if a task was woken. Returns false at once if no task waits for the node.
    ///
    /// An event loop calls this function before it sleeps: a message that comes soon then needs no wake-up. Other descriptors of
    /// the loop wait meanwhile, so `at_most` is about 50 µs.
    ///
    /// After `true` the loop must call this function again before its thread sleeps, or messages are late as if no
    /// thread watched the descriptor. A loop does so that runs the woken tasks in the calling thread, and sleeps only if none is left to
    /// run.
    pub fn poll(&self, at_most: Duration) -> bool {
        self.inner.poll(at_most, false).woke
    }

    /// Returns whether the node has been closed. Its descriptor is not readable then, after one last time.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.shared.enter().map_or(true, |engine| engine.stopped)
    }
}

impl Inner {
    /// With `goes_on` the event loop stays awake after `at_most` if polling is to go on, and calls again before its thread sleeps.
    fn poll(&self, at_most: Duration, goes_on: bool) -> Look {
        self.looked(self.shared.poll_in_event_loop(&self.me, at_most, goes_on))
    }

    #[cfg(feature = "tokio")]
    fn turn_between_tasks(&self) -> Look {
        self.looked(self.shared.turn_between_tasks(&self.me))
    }

    fn turn(&self) -> Look {
        self.looked(self.shared.turn_in_event_loop(&self.me))
    }

    fn looked(&self, look: Result<Look, Unusable>) -> Look {
        let look = look.unwrap_or(Look::STOPPED);
        if !look.awake {
            self.set_timer(&look);
        }
        look
    }

    /// The timer is set again only if it would expire too late or has expired: one that expires too early costs a turn, and
    /// setting it costs a system call for nearly every message.
    fn set_timer(&self, look: &Look) {
        let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = timer.is_some_and(|at| at <= look.now);
        let is_late = look.due.is_some_and(|due| timer.is_none_or(|at| due < at));
        if is_over || is_late {
            *timer = look.due;
            self.source.set_timer(look.due.map(|due| due.saturating_since(look.now)));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.remove_event_loop(self.me.id());
    }
}

/// Readable when [`turn`](EventLoop::turn) is to be called. Other uses of the descriptor are not allowed.
impl AsFd for EventLoop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.source.as_fd()
    }
}

/// As [`as_fd`](Self::as_fd), for libraries that take numbers.
impl AsRawFd for EventLoop {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").finish_non_exhaustive()
    }
}
