//! Threads in [`Port::serve`](crate::Port::serve): a handler that calls the service which only its own thread serves gets an
//! error.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use apus_net::Link;

use crate::address::Address;
use crate::delivery::parker;
use crate::socket::{PortId, SocketInner};

/// The threads that take the requests of a service.
#[derive(Debug, Default)]
pub(crate) struct Takers {
    /// Threads in `serve`.
    serving: AtomicU32,
    /// The thread that has received by other means: [`NOT_SET`], its id, or [`SEVERAL`].
    other: AtomicU64,
}

/// Stands for no recorded thread; no thread has this id.
const NOT_SET: u64 = 0;
const SEVERAL: u64 = u64::MAX;

impl Takers {
    /// The calling thread receives by other means than `serve`. `served` is the service's end in the first shard.
    #[inline]
    pub(crate) fn note_other(self: &Arc<Self>, served: &Arc<SocketInner>) {
        let other = self.other.load(Ordering::Relaxed);
        if other != SEVERAL && other != parker::thread_id() {
            self.note_new(served);
        }
    }

    #[cold]
    fn note_new(self: &Arc<Self>, served: &Arc<SocketInner>) {
        let (me, relaxed) = (parker::thread_id(), Ordering::Relaxed);
        if self.other.compare_exchange(NOT_SET, me, relaxed, relaxed).is_err() {
            return self.other.store(SEVERAL, relaxed);
        }
        RECEIVED.with_borrow_mut(|received| {
            received.retain(|received| received.served.strong_count() > 0);
            received.push(RecentService {
                served: Arc::downgrade(served),
                port: served.port_id(),
                takers: Arc::clone(self),
            });
        });
    }

    /// Whether the calling thread takes all requests of the service.
    pub(crate) fn is_only_this_thread(&self) -> bool {
        let serves = SERVED.with_borrow(|served| {
            served.as_ref().is_some_and(|(_, takers)| std::ptr::eq(&raw const **takers, self))
        });
        let other = self.other.load(Ordering::Relaxed);
        let receives = other == parker::thread_id();
        self.serving.load(Ordering::Relaxed) == u32::from(serves)
            && (receives || other == NOT_SET && serves)
    }
}

/// A service from which a thread has received. Looked at under the engine's lock, so nothing here may be the last reference.
struct RecentService {
    served: Weak<SocketInner>,
    port: PortId,
    takers: Arc<Takers>,
}

/// A service: its end in the first shard, and the threads that take its requests.
type Served = (Arc<SocketInner>, Arc<Takers>);

thread_local! {
    /// The service that the calling thread serves.
    static SERVED: RefCell<Option<Served>> = const { RefCell::new(None) };
    /// Services from which the calling thread was the first to receive by other means, as a task or in a loop of its own.
    static RECEIVED: RefCell<Vec<RecentService>> = const { RefCell::new(Vec::new()) };
}

/// Marks the calling thread as one that serves a service, until it is dropped.
pub(crate) struct Serving {
    takers: Arc<Takers>,
    before: Option<Served>,
}

impl Serving {
    pub(crate) fn begin(served: &Arc<SocketInner>, takers: &Arc<Takers>) -> Self {
        takers.serving.fetch_add(1, Ordering::Relaxed);
        let before = SERVED.replace(Some((Arc::clone(served), Arc::clone(takers))));
        Self { takers: Arc::clone(takers), before }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.takers.serving.fetch_sub(1, Ordering::Relaxed);
        SERVED.set(self.before.take());
    }
}

/// The threads that take the requests of the service at `to`, if the calling thread serves it or has received from it.
#[inline]
pub(crate) fn serves_itself(
    caller: &SocketInner,
    link: &mut dyn Link,
    to: Address,
) -> Option<Arc<Takers>> {
    let served = SERVED.with_borrow(|served| {
        let (served, takers) = served.as_ref()?;
        served.is_port(caller, to.port).then(|| Arc::clone(takers))
    });
    let takers = served.or_else(|| received(caller, to.port))?;
    (caller.node_addr() == to.host || is_own(link, to.host)).then_some(takers)
}

#[inline]
fn received(caller: &SocketInner, port: u16) -> Option<Arc<Takers>> {
    RECEIVED.with_borrow(|received| {
        let is_it =
            |it: &&RecentService| it.served.strong_count() > 0 && caller.is_at(&it.port, port);
        received.iter().find(is_it).map(|it| Arc::clone(&it.takers))
    })
}

/// `host` is the node with this link.
fn is_own(link: &mut dyn Link, host: SocketAddr) -> bool {
    let own = link.local_addr();
    own == host
        || (own.ip().is_unspecified()
            && own.port() == host.port()
            && link.find(host).is_some_and(|path| link.path(path).loopback))
}
