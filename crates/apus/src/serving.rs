//! Threads in [`Service::serve`](crate::Service::serve), so that a handler that waits for its own
//! thread can be told.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use apus_net::Link;

use crate::address::Address;
use crate::socket::SocketInner;

/// Who takes the requests of a service.
#[derive(Debug, Default)]
pub(crate) struct Takers {
    /// Threads in `serve`.
    serving: AtomicU32,
    /// Somebody has received by other means.
    others: AtomicBool,
}

impl Takers {
    /// Somebody receives by other means than `serve`.
    #[inline]
    pub(crate) fn note_other(&self) {
        self.others.store(true, Ordering::Relaxed);
    }

    /// One thread takes everything that comes.
    pub(crate) fn is_one(&self) -> bool {
        self.serving.load(Ordering::Relaxed) == 1 && !self.others.load(Ordering::Relaxed)
    }
}

/// A service: its end in the first shard, and who takes its requests.
type Served = (Arc<SocketInner>, Arc<Takers>);

thread_local! {
    /// What the calling thread serves.
    static SERVED: RefCell<Option<Served>> = const { RefCell::new(None) };
}

/// While it lives, the calling thread serves a service.
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

/// Who takes the requests of the service that the calling thread serves, if a call through `caller` to `to` is one to
/// that very service.
#[inline]
pub(crate) fn serves_itself(
    caller: &SocketInner,
    link: &mut dyn Link,
    to: Address,
) -> Option<Arc<Takers>> {
    SERVED.with_borrow(|served| {
        let (served, takers) = served.as_ref()?;
        let is_it = served.is_port(caller, to.port) && is_own(link, to.host);
        is_it.then(|| Arc::clone(takers))
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
