//! A node in an event loop of asyncio: two descriptors to watch, and one function to call when one of them is readable.
//!
//! The thread of the loop turns the engine and completes the futures of the program itself, so that a message wakes no other thread. A
//! *source* is a receiver of messages or a future of Rust.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use apus::EventLoop;
use apus_rpc::BoxTask;
use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::node::PyNode;
use crate::wakes::{SourceWaker, Wakes};

/// The result of a source that ends, made with the GIL.
pub(crate) type Outcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A future of Rust whose result completes a future of Python.
pub(crate) type Operation = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// An operation with the result ``None``, which ends with a future.
pub(crate) fn until(future: impl Future<Output = ()> + Send + 'static) -> Operation {
    Box::pin(async move {
        future.await;
        Box::new(|py: Python<'_>| Ok(py.None())) as Outcome
    })
}

/// A receiver of messages. It is looked at when its waker was called.
pub(crate) trait Receiver: Send + Sync {
    /// Takes messages until none waits or it has taken a number of them. Returns whether it must be looked at again.
    fn look(&self, py: Python<'_>, task: &mut Context<'_>) -> bool;
}

enum Source {
    Receiver(Arc<dyn Receiver>),
    /// `None` while it is polled.
    Operation(Option<(Operation, Option<Py<PyAny>>)>),
}

/// The sources of an event loop of asyncio.
#[pyclass(frozen, module = "apus._native", weakref)]
pub(crate) struct Reactor {
    /// `None` for a loop that turns no node.
    event_loop: Mutex<Option<EventLoop>>,
    wakes: Arc<Wakes>,
    sources: Mutex<HashMap<u64, (Source, Arc<SourceWaker>)>>,
    next: AtomicU64,
}

impl Reactor {
    fn sources(&self) -> MutexGuard<'_, HashMap<u64, (Source, Arc<SourceWaker>)>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, source: Source) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.sources().insert(number, (source, self.wakes.waker(number)));
        number
    }

    /// Adds a receiver, and looks at it in the next turn.
    pub(crate) fn add_receiver(&self, receiver: Arc<dyn Receiver>) -> u64 {
        let number = self.insert(Source::Receiver(receiver));
        self.wake(number);
        number
    }

    /// Has a future of Python get the result of one of Rust, which is polled at once. Returns the number of the operation.
    pub(crate) fn run(
        &self,
        py: Python<'_>,
        operation: Operation,
        future: Py<PyAny>,
    ) -> PyResult<u64> {
        let number = self.insert(Source::Operation(Some((operation, Some(future)))));
        self.look(py, number)?;
        Ok(number)
    }

    /// Adds a task, and polls it. Returns its number.
    pub(crate) fn start_task(&self, py: Python<'_>, task: BoxTask) -> u64 {
        let number = self.insert(Source::Operation(Some((until(task), None))));
        self.poll_task(py, number);
        number
    }

    /// Polls a task.
    pub(crate) fn poll_task(&self, py: Python<'_>, number: u64) {
        if let Err(error) = self.look(py, number) {
            error.write_unraisable(py, None);
        }
    }

    fn look(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        let mut sources = self.sources();
        let Some((source, waker)) = sources.get_mut(&number) else { return Ok(()) };
        let waker = Arc::clone(waker);
        waker.looked_at();
        let task = waker.waker();
        let mut task = Context::from_waker(&task);
        match source {
            Source::Receiver(receiver) => {
                let receiver = Arc::clone(receiver);
                drop(sources);
                if receiver.look(py, &mut task) {
                    task.waker().wake_by_ref();
                }
                Ok(())
            }
            Source::Operation(place) => {
                let Some((mut operation, future)) = place.take() else { return Ok(()) };
                drop(sources);
                match operation.as_mut().poll(&mut task) {
                    Poll::Ready(outcome) => {
                        self.sources().remove(&number);
                        let result = outcome(py);
                        future.map_or(Ok(()), |future| complete(py, future.bind(py), result))
                    }
                    Poll::Pending => {
                        // It may have been removed meanwhile.
                        if let Some((Source::Operation(place), _)) = self.sources().get_mut(&number)
                        {
                            *place = Some((operation, future));
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    /// Looks at a source in the next turn.
    pub(crate) fn wake(&self, number: u64) {
        let waker = self.sources().get(&number).map(|(_, waker)| waker.waker());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends a source. Returns whether it was there.
    pub(crate) fn remove(&self, number: u64) -> bool {
        let removed = self.sources().remove(&number);
        removed.is_some()
    }
}

/// Gives a future of asyncio its result, unless it is over.
pub(crate) fn complete(
    py: Python<'_>,
    future: &Bound<'_, PyAny>,
    result: PyResult<Py<PyAny>>,
) -> PyResult<()> {
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    match result {
        Ok(value) => future.call_method1(intern!(py, "set_result"), (value,))?,
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error.into_value(py),))?,
    };
    Ok(())
}

#[pymethods]
impl Reactor {
    #[new]
    #[pyo3(signature = (node = None))]
    fn new(py: Python<'_>, node: Option<&PyNode>) -> PyResult<Self> {
        let event_loop = match node {
            Some(node) => Some(node.with(py, apus::Node::event_loop)?.or_raise(py)?),
            None => None,
        };
        let wakes = Wakes::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self {
            event_loop: Mutex::new(event_loop),
            wakes,
            sources: Mutex::new(HashMap::new()),
            next: AtomicU64::new(1),
        })
    }

    /// Whether it turns no node any more.
    #[getter]
    fn closed(&self) -> bool {
        self.event_loop.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The descriptors to watch, level-triggered.
    fn filenos(&self) -> Vec<RawFd> {
        let event_loop = self.event_loop.lock().unwrap_or_else(PoisonError::into_inner);
        let node = event_loop.as_ref().map(AsRawFd::as_raw_fd);
        node.into_iter().chain([self.wakes.descriptor()]).collect()
    }

    /// Turns the node, and gives the program all that has arrived. With ``alone`` the loop has nothing else to do, and the thread polls
    /// for a message as long as that pays, without the GIL. Returns whether it has to be called again before the thread sleeps.
    fn turn(&self, py: Python<'_>, alone: bool) -> PyResult<bool> {
        self.wakes.begin();
        let event_loop = self.event_loop.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let awake = match event_loop {
            Some(event_loop) if alone => py.detach(|| event_loop.poll(POLL_MAX)),
            Some(event_loop) => event_loop.poll(Duration::ZERO),
            None => false,
        };
        let mut result = Ok(());
        for _ in 0..ROUNDS {
            let due = self.wakes.take();
            if due.is_empty() {
                break;
            }
            for number in due {
                let looked = self.look(py, number);
                result = result.and(looked);
            }
        }
        self.wakes.sleep();
        result.map(|()| awake)
    }

    /// Drops an operation whose future was cancelled.
    fn cancel(&self, number: u64) -> bool {
        self.remove(number)
    }

    /// Ends all sources. The node's own thread turns it from now on.
    fn close(&self) {
        drop(self.event_loop.lock().unwrap_or_else(PoisonError::into_inner).take());
        let sources = std::mem::take(&mut *self.sources());
        drop(sources);
    }
}

/// The longest poll in vain. Timers and other descriptors of the loop wait meanwhile.
const POLL_MAX: Duration = Duration::from_micros(50);

/// Looks at sources that are due again before other callbacks of the loop have their turn.
const ROUNDS: usize = 4;
