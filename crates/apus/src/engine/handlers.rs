//! Sockets with a handler, and the time at which each handler is due.

use std::mem;
use std::sync::Arc;

use apus_proto::{SocketKey, Time};

/// Handlers of sockets. `H` is the trait of a handler.
pub(crate) struct Handlers<H: ?Sized> {
    /// By [`SocketKey::index`].
    entries: Vec<Option<Registration<H>>>,
    /// No handler is due before.
    due: Option<Time>,
    /// Removed handlers, to be dropped when the lock is released.
    removed: Vec<Arc<H>>,
}

struct Registration<H: ?Sized> {
    key: SocketKey,
    handler: Arc<H>,
    due: Option<Time>,
}

impl<H: ?Sized> Handlers<H> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), due: None, removed: Vec::new() }
    }

    pub(crate) fn insert(&mut self, key: SocketKey, handler: Arc<H>) {
        if key.index() >= self.entries.len() {
            self.entries.resize_with(key.index() + 1, || None);
        }
        self.entries[key.index()] = Some(Registration { key, handler, due: None });
    }

    fn entry(&mut self, key: SocketKey) -> Option<&mut Registration<H>> {
        self.entries.get_mut(key.index())?.as_mut().filter(|entry| entry.key == key)
    }

    pub(crate) fn find(&mut self, key: SocketKey) -> Option<Arc<H>> {
        self.entry(key).map(|entry| Arc::clone(&entry.handler))
    }

    /// Sets the time at which a handler is due.
    pub(crate) fn set_due(&mut self, key: SocketKey, due: Option<Time>) {
        if let Some(entry) = self.entry(key) {
            entry.due = due;
            self.due = [self.due, due].into_iter().flatten().min();
        }
    }

    /// Sets the time at which a handler is due, unless it is due earlier.
    pub(crate) fn set_due_by(&mut self, key: SocketKey, due: Time) {
        let sooner = self.entry(key).map(|entry| entry.due.map_or(due, |known| known.min(due)));
        if sooner.is_some() {
            self.set_due(key, sooner);
        }
    }

    /// Time at which the first handler is due, or slightly before.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// The handlers that are due now. Looks at each.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<SocketKey> {
        let entries = || self.entries.iter().flatten();
        let is_due = |entry: &&Registration<H>| entry.due.is_some_and(|due| due <= now);
        let due = entries().filter(is_due).map(|entry| entry.key).collect();
        self.due = entries().filter(|entry| !is_due(entry)).filter_map(|entry| entry.due).min();
        due
    }

    /// Removes a handler, which is dropped when the lock is released.
    pub(crate) fn remove(&mut self, key: SocketKey) -> Option<Arc<H>> {
        self.entry(key)?;
        let entry = self.entries[key.index()].take()?;
        self.removed.push(Arc::clone(&entry.handler));
        Some(entry.handler)
    }

    pub(crate) fn keys(&self) -> Vec<SocketKey> {
        self.entries.iter().flatten().map(|entry| entry.key).collect()
    }

    #[inline]
    pub(crate) fn has_removed(&self) -> bool {
        !self.removed.is_empty()
    }

    pub(crate) fn take_removed(&mut self) -> Vec<Arc<H>> {
        mem::take(&mut self.removed)
    }
}
