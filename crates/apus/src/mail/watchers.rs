//! Tasks that wait for the end of requests ([`Request::cancelled`](crate::Request::cancelled)).

use std::collections::BTreeMap;

use apus_proto::{RpcKey, SocketKey};

use crate::delivery::parker::Waiter;

/// One task for each request in service that a task watches.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    by_request: BTreeMap<RpcKey, (SocketKey, Waiter)>,
}

impl Watchers {
    pub(super) const fn new() -> Self {
        Self { by_request: BTreeMap::new() }
    }

    /// Registers the task, and returns the one that it replaces.
    pub(super) fn insert(
        &mut self,
        socket: SocketKey,
        request: RpcKey,
        task: Waiter,
    ) -> Option<Waiter> {
        self.by_request.insert(request, (socket, task)).map(|(_, task)| task)
    }

    pub(super) fn remove(&mut self, request: RpcKey) -> Option<Waiter> {
        self.by_request.remove(&request).map(|(_, task)| task)
    }

    /// Takes the tasks that watch requests of a socket.
    pub(super) fn take_of(&mut self, socket: SocketKey) -> impl Iterator<Item = Waiter> {
        let all = std::mem::take(&mut self.by_request);
        let (taken, kept): (BTreeMap<_, _>, _) =
            all.into_iter().partition(|(_, (of, _))| *of == socket);
        self.by_request = kept;
        taken.into_values().map(|(_, task)| task)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waiter> {
        std::mem::take(&mut self.by_request).into_values().map(|(_, task)| task)
    }
}
