//! The ends of calls with one response, which one thread of the process waits for.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use pyo3::prelude::*;

use crate::message::Message;
use crate::rpc::client_call::{ClientCall, RpcCall};
use crate::rpc::directions::Directions;

/// Calls whose ends a thread takes.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct RpcEnds {
    queue: Arc<Queue>,
}

/// The calls that the thread has to poll.
#[derive(Default)]
struct Queue {
    due: Mutex<VecDeque<Arc<Watched>>>,
    changed: Condvar,
}

/// A call that is watched. It has the waker of its stream, so it stays as long as the call.
struct Watched {
    queue: Arc<Queue>,
    call: Arc<ClientCall>,
    is_due: AtomicBool,
    /// The function that gets the end, and the first response once it is there.
    state: Mutex<(Option<Py<PyAny>>, Option<Bytes>)>,
}

/// A function, the response, and whether there are more of them.
type Ended = (Py<PyAny>, Option<Message>, bool);

impl Queue {
    fn due(&self) -> MutexGuard<'_, VecDeque<Arc<Watched>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, watched: Arc<Watched>) {
        self.due().push_back(watched);
        self.changed.notify_one();
    }

    /// Waits until calls have ended.
    fn wait(&self) -> Vec<Ended> {
        loop {
            let mut due = self.due();
            while due.is_empty() {
                due = self.changed.wait(due).unwrap_or_else(PoisonError::into_inner);
            }
            let polled = mem::take(&mut *due);
            drop(due);
            let ended: Vec<_> = polled.iter().filter_map(Watched::poll).collect();
            if !ended.is_empty() {
                return ended;
            }
        }
    }
}

impl Watched {
    fn poll(self: &Arc<Self>) -> Option<Ended> {
        self.is_due.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(self));
        let task = Context::from_waker(&waker);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Poll::Ready(response) = self.call.poll_read(&task) else { return None };
            let has_more = state.1.is_some() && response.is_some();
            if response.is_some() && state.1.is_none() {
                state.1 = response;
                continue;
            }
            let (taker, first) = mem::take(&mut *state);
            return Some((taker?, first.map(Message::new), has_more));
        }
    }
}

impl Wake for Watched {
    fn wake(self: Arc<Self>) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            Arc::clone(&self.queue).push(self);
        }
    }
}

#[pymethods]
impl RpcEnds {
    #[new]
    fn new() -> Self {
        Self { queue: Arc::default() }
    }

    /// Has ``wait`` return this function with the end of a call.
    #[pyo3(signature = (call, taker, /))]
    fn watch(&self, call: &RpcCall, taker: Py<PyAny>) {
        let watched = Watched {
            queue: Arc::clone(&self.queue),
            call: Arc::clone(call.inner()),
            is_due: AtomicBool::new(true),
            state: Mutex::new((Some(taker), None)),
        };
        self.queue.push(Arc::new(watched));
    }

    /// Waits until calls have ended. Returns their functions, each with the response and whether there are more.
    fn wait(&self, py: Python<'_>) -> Vec<Ended> {
        py.detach(|| self.queue.wait())
    }
}
