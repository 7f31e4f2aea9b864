//! The time at which the packets of an operation are transmitted.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;

use apus_proto::{SocketKey, Time};

use crate::engine::Engine;
use crate::engine::lock::{Guard, Shared};
use crate::sync::clock;

/// The time at which the packets of an operation are transmitted.
///
/// ```no_run
/// use apus::Flush;
///
/// # fn example(client: &apus::Client, servers: &[apus::Address]) -> Result<(), apus::CallError> {
/// // The requests leave together, with the last one.
/// for (number, server) in servers.iter().enumerate() {
///     let is_last = number + 1 == servers.len();
///     let flush = if is_last { Flush::Now } else { Flush::Later };
///     client.send(*server, "question", number as u64, flush)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Flush {
    /// All queued packets that may be sent are transmitted before the call returns.
    #[default]
    Now,
    /// Another operation on this node follows within microseconds (like `MSG_MORE`). Packets may stay queued until then, to
    /// share a datagram and a system call. The next operation with [`Flush::Now`], or any thread that waits, transmits them;
    /// without either, they may stay until another event on the node. Deadlines of such a burst count from its start.
    Later,
}

/// Does one operation that does not wait, and transmits unless another operation follows.
#[inline]
pub(crate) fn operate<T, E>(
    shared: &Shared,
    mut engine: Guard<'_>,
    flush: Flush,
    operation: impl FnOnce(&mut Engine, Time) -> Result<T, E>,
) -> Result<T, E> {
    let stay = flush == Flush::Later || CORKED.get().0 == ptr::from_ref(shared).addr();
    if stay {
        // One reading of the clock serves a whole burst.
        let now = engine.corked().unwrap_or_else(clock::now);
        let result = operation(&mut engine, now)?;
        engine.cork(now);
        return Ok(result);
    }
    let now = clock::now();
    let result = operation(&mut engine, now)?;
    engine.transmit(now);
    engine.transmit_due(now);
    Ok(result)
}

thread_local! {
    /// The node for which this thread holds operations back, as the address of its [`Shared`], and the service of the handlers.
    static CORKED: Cell<(usize, Option<SocketKey>)> = const { Cell::new((0, None)) };
}

/// Whether the calling thread handles a batch of requests of this service.
#[inline]
pub(crate) fn is_corked(shared: &Shared, service: SocketKey) -> bool {
    CORKED.get() == (ptr::from_ref(shared).addr(), Some(service))
}

/// While it lives, this thread's operations on a node stay queued.
pub(crate) struct Cork {
    shared: Arc<Shared>,
    before: (usize, Option<SocketKey>),
}

impl Cork {
    /// `service`: the calling thread handles a batch of its requests.
    pub(crate) fn new(shared: &Arc<Shared>, service: SocketKey) -> Self {
        let before = CORKED.replace((Arc::as_ptr(shared).addr(), Some(service)));
        Self { shared: Arc::clone(shared), before }
    }
}

impl Drop for Cork {
    fn drop(&mut self) {
        CORKED.set(self.before);
        let Ok(mut engine) = self.shared.enter() else { return };
        if engine.holds_back() && !engine.stopped {
            let now = clock::now();
            engine.transmit(now);
            engine.transmit_due(now);
        }
    }
}
