//! The ports of servers that have ended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apus_rpc::Drained;

/// The ports of a node whose servers have ended. The last responses may be under way, so a port stays open until it is opened again or
/// the node is closed, which waits for them.
#[derive(Default)]
pub(crate) struct EndedPorts {
    state: Mutex<Ports>,
}

#[derive(Default)]
struct Ports {
    open: HashMap<u16, Drained>,
    is_node_closed: bool,
}

impl EndedPorts {
    fn state(&self) -> MutexGuard<'_, Ports> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a port open.
    pub(crate) fn hold(&self, number: u16, port: Drained) {
        let mut state = self.state();
        if !state.is_node_closed {
            state.open.insert(number, port);
        }
    }

    /// Closes a port if its server has ended, so that it can be opened again.
    pub(crate) fn close(&self, number: u16) {
        let port = self.state().open.remove(&number);
        drop(port);
    }

    /// Closes all ports, after the node.
    pub(crate) fn close_all(&self) {
        let ports = {
            let mut state = self.state();
            state.is_node_closed = true;
            std::mem::take(&mut state.open)
        };
        drop(ports);
    }
}
