//! The health of the services of a server.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Whether a service serves. The numbers are those of `grpc.health.v1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ServingStatus {
    /// Not known yet.
    #[default]
    Unknown = 0,
    /// It serves.
    Serving = 1,
    /// It does not serve at present.
    NotServing = 2,
    /// The server has no such service. Watchers alone get this.
    ServiceUnknown = 3,
}

impl ServingStatus {
    pub(crate) fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Serving,
            2 => Self::NotServing,
            3 => Self::ServiceUnknown,
            _ => Self::Unknown,
        }
    }
}

/// The health of the services of a server: [`ServerBuilder::add`](crate::ServerBuilder::add) serves it. Clones are the same.
///
/// The whole server, whose name is empty, is [`ServingStatus::Serving`] at the beginning. When the server begins to
/// [end](crate::Serving::drain), its watchers get [`ServingStatus::NotServing`] for all services. The statuses themselves do not change
/// then: other servers that this health was added to go on with them.
#[derive(Clone)]
pub struct Health {
    board: Arc<Mutex<Board>>,
}

struct Board {
    statuses: BTreeMap<String, ServingStatus>,
    /// Tasks that wait for a change, by number.
    watchers: BTreeMap<u64, Waker>,
    next: u64,
}

/// The health at one server.
#[derive(Clone)]
pub(super) struct ServedHealth {
    health: Health,
    is_ending: Arc<AtomicBool>,
}

/// The number of a watcher, which waits no longer when this is dropped.
pub(super) struct Watcher {
    served: ServedHealth,
    number: u64,
}

impl Health {
    /// A server that serves, without services of which more is known.
    #[must_use]
    pub fn new() -> Self {
        let statuses = BTreeMap::from([(String::new(), ServingStatus::Serving)]);
        let board = Board { statuses, watchers: BTreeMap::new(), next: 0 };
        Self { board: Arc::new(Mutex::new(board)) }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the board, and wakes the watchers.
    fn change(&self, change: impl FnOnce(&mut Board)) {
        let watchers = {
            let mut board = self.board();
            change(&mut board);
            std::mem::take(&mut board.watchers)
        };
        watchers.into_values().for_each(Waker::wake);
    }

    /// Sets the status of a service; the empty name is the whole server.
    pub fn set(&self, service: impl Into<String>, status: ServingStatus) {
        self.change(|board| {
            board.statuses.insert(service.into(), status);
        });
    }

    /// Forgets a service: it is not known from now on.
    pub fn clear(&self, service: &str) {
        self.change(|board| {
            board.statuses.remove(service);
        });
    }

    /// The status of a service. `None` if it is not known.
    #[must_use]
    pub fn status(&self, service: &str) -> Option<ServingStatus> {
        self.board().statuses.get(service).copied()
    }

    /// Number of watches that wait for a change.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.board().watchers.len()
    }
}

impl ServedHealth {
    pub(super) fn new(health: Health) -> Self {
        Self { health, is_ending: Arc::default() }
    }

    /// The server begins to end.
    pub(super) fn end(&self) {
        self.health.change(|_| self.is_ending.store(true, Ordering::SeqCst));
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// The status of a service at this server. `None` if it is not known.
    pub(super) fn status(&self, service: &str) -> Option<ServingStatus> {
        self.seen(self.health.status(service))
    }

    /// A server that ends serves nothing.
    fn seen(&self, status: Option<ServingStatus>) -> Option<ServingStatus> {
        if self.is_ending() { status.map(|_| ServingStatus::NotServing) } else { status }
    }

    pub(super) fn watcher(&self) -> Watcher {
        let mut board = self.health.board();
        board.next += 1;
        Watcher { served: self.clone(), number: board.next }
    }
}

impl Watcher {
    /// Waits until the status of a service is another than this. Returns it, and whether the server ends.
    pub(super) async fn changed(
        &self,
        service: &str,
        last: Option<ServingStatus>,
    ) -> (ServingStatus, bool) {
        poll_fn(|task| {
            let mut board = self.served.health.board();
            // It changes under the lock.
            let is_ending = self.served.is_ending();
            let status = self.served.seen(board.statuses.get(service).copied());
            let status = status.unwrap_or(ServingStatus::ServiceUnknown);
            if Some(status) != last || is_ending {
                return Poll::Ready((status, is_ending));
            }
            board.watchers.insert(self.number, task.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let waker = self.served.health.board().watchers.remove(&self.number);
        drop(waker);
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("statuses", &self.board().statuses).finish_non_exhaustive()
    }
}
