//! Threads in [`Socket::serve`](crate::Socket::serve), so that a handler that waits for its own
//! thread can be told.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use apus_net::Link;

use crate::address::Address;
use crate::socket::SocketInner;

/// Who takes the requests of a socket.
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

thread_local! {
    /// The socket the calling thread serves: its end in the first shard.
    static SERVED: RefCell<Option<Arc<SocketInner>>> = const { RefCell::new(None) };
}

/// While it lives, the calling thread serves a socket.
pub(crate) struct Serving {
    served: Arc<SocketInner>,
    before: Option<Arc<SocketInner>>,
}

impl Serving {
    pub(crate) fn begin(served: &Arc<SocketInner>) -> Self {
        served.takers.serving.fetch_add(1, Ordering::Relaxed);
        let before = SERVED.replace(Some(Arc::clone(served)));
        Self { served: Arc::clone(served), before }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.served.takers.serving.fetch_sub(1, Ordering::Relaxed);
        SERVED.set(self.before.take());
    }
}

/// What the calling thread serves, if a call through `caller` to `to` is one to that very service.
#[inline]
pub(crate) fn serves_itself(
    caller: &SocketInner,
    link: &mut dyn Link,
    to: Address,
) -> Option<Arc<SocketInner>> {
    SERVED.with_borrow(|served| {
        let served = served.as_ref()?;
        let is_it = served.is_port(caller, to.port) && is_own(link, to.host);
        is_it.then(|| Arc::clone(served))
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
