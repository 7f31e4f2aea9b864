//! Clients and ports in an event loop of asyncio.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use apus::{CallError, Flush, Requests, Responses};
use futures_core::Stream;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::bodies::body;
use crate::client::{Client, options};
use crate::errors::{IntoException, OrRaise, misuse, of_call};
use crate::message::Message;
use crate::node::{Address, PyNode, seconds, some_seconds};
use crate::port::{Port, Request};
use crate::reactor::{Outcome, Reactor, Receiver, complete, until};

/// Messages that a receiver takes before other callbacks of the loop have their turn.
const BATCH: usize = 256;

/// Operations of one loop iteration share one transmission, that of a scheduled turn, if others are under way.
fn flush(others: bool) -> Flush {
    if others { Flush::Later } else { Flush::Now }
}

/// Schedules a turn after an operation that leaves with the next turn.
fn after(py: Python<'_>, flush: Flush, schedule_turn: &Py<PyAny>) -> PyResult<()> {
    if flush == Flush::Later { schedule_turn.call0(py).map(drop) } else { Ok(()) }
}

/// Calls of an event loop. Made by ``apus.aio.Client``.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct AsyncClient {
    calls: Arc<Calls>,
    reactor: Py<Reactor>,
    source: u64,
    /// Schedules a turn of the node in the next iteration of the loop.
    schedule_turn: Py<PyAny>,
    next: AtomicU64,
}

struct Calls {
    client: apus::Client,
    responses: Mutex<Responses>,
    /// The futures of outstanding calls, by their cookies.
    outstanding: Mutex<HashMap<u64, Py<PyAny>>>,
}

impl Calls {
    fn outstanding(&self) -> MutexGuard<'_, HashMap<u64, Py<PyAny>>> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_response(&self, task: &mut Context<'_>) -> Poll<Option<apus::Response>> {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *responses).poll_next(task)
    }

    /// The client is closed, and no results come any more.
    #[cold]
    fn end(&self, py: Python<'_>) {
        let outstanding = std::mem::take(&mut *self.outstanding());
        for future in outstanding.into_values() {
            let error = of_call(py, &CallError::Closed);
            let completed = complete(py, future.bind(py), Err(error));
            if let Err(error) = completed {
                error.write_unraisable(py, None);
            }
        }
    }
}

impl Receiver for Calls {
    fn look(&self, py: Python<'_>, task: &mut Context<'_>) -> bool {
        for _ in 0..BATCH {
            let response = match self.next_response(task) {
                Poll::Ready(Some(response)) => response,
                Poll::Ready(None) => {
                    self.end(py);
                    return false;
                }
                Poll::Pending => return false,
            };
            let Some(future) = self.outstanding().remove(&response.cookie) else { continue };
            let result = response.result.map(Message::new).or_raise(py);
            let result = result.and_then(|message| Ok(Py::new(py, message)?.into_any()));
            if let Err(error) = complete(py, future.bind(py), result) {
                error.write_unraisable(py, Some(future.bind(py)));
            }
        }
        true
    }
}

#[pymethods]
impl AsyncClient {
    #[new]
    fn new(client: &Client, reactor: Py<Reactor>, schedule_turn: Py<PyAny>) -> Self {
        let client = client.inner().clone();
        let calls = Arc::new(Calls {
            responses: Mutex::new(client.responses()),
            client,
            outstanding: Mutex::new(HashMap::new()),
        });
        let source = reactor.get().add_receiver(Arc::clone(&calls) as Arc<_>);
        Self { calls, reactor, source, schedule_turn, next: AtomicU64::new(0) }
    }

    /// Sends a request. The future gets the result. Returns the cookie.
    #[pyo3(signature = (to, body, timeout, future, /))]
    fn start(
        &self,
        to: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        future: Py<PyAny>,
    ) -> PyResult<u64> {
        let (py, to) = (to.py(), Address::of(to)?);
        let options = options(some_seconds(timeout)?);
        let body = self::body(body)?;
        let cookie = self.next.fetch_add(1, Ordering::Relaxed);
        let others = {
            let mut outstanding = self.calls.outstanding();
            let others = !outstanding.is_empty();
            outstanding.insert(cookie, future);
            others
        };
        let flush = flush(others);
        if let Err(error) = self.calls.client.send_with(to, body, cookie, flush, options) {
            self.calls.outstanding().remove(&cookie);
            return Err(error).or_raise(py);
        }
        after(py, flush, &self.schedule_turn)?;
        Ok(cookie)
    }

    /// Gives up a call whose future was cancelled.
    fn cancel(&self, cookie: u64) -> bool {
        let future = self.calls.outstanding().remove(&cookie);
        future.is_some() && self.calls.client.cancel(cookie)
    }

    /// The futures of outstanding calls.
    fn outstanding<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all: Vec<_> =
            self.calls.outstanding().values().map(|future| future.clone_ref(py)).collect();
        PyList::new(py, all)
    }

    /// Performs first contact.
    #[pyo3(signature = (to, timeout, future, /))]
    fn connect(
        &self,
        to: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        future: Py<PyAny>,
    ) -> PyResult<u64> {
        let (py, to, timeout) = (to.py(), Address::of(to)?, some_seconds(timeout)?);
        let client = self.calls.client.clone();
        let operation = Box::pin(async move {
            let mut connect = client.connect(to);
            if let Some(timeout) = timeout {
                connect = connect.deadline(timeout);
            }
            let result = connect.await;
            Box::new(move |py: Python<'_>| result.or_raise(py).map(|()| py.None())) as Outcome
        });
        self.reactor.get().run(py, operation, future)
    }

    /// Closes the client. Its calls end with ``ClosedError``.
    fn close(&self, py: Python<'_>) {
        self.calls.client.shutdown();
        self.reactor.get().remove(self.source);
        self.calls.end(py);
    }
}

impl Drop for AsyncClient {
    fn drop(&mut self) {
        // The source has the port.
        self.reactor.get().remove(self.source);
    }
}

/// Requests of an event loop. Made by ``apus.aio.Port``.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct AsyncPort {
    arrivals: Arc<Arrivals>,
    reactor: Py<Reactor>,
    source: u64,
    schedule_turn: Py<PyAny>,
}

struct Arrivals {
    port: apus::Port,
    requests: Mutex<Requests>,
    /// Takes lists of requests, and `None` at the end.
    taker: Mutex<Option<Py<PyAny>>>,
    /// Requests that were taken and are not answered.
    in_service: AtomicUsize,
    /// The program takes no requests for now.
    is_paused: AtomicBool,
}

impl Arrivals {
    fn next_request(&self, task: &mut Context<'_>) -> Poll<Option<apus::Request>> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *requests).poll_next(task)
    }

    fn give(&self, py: Python<'_>, requests: Bound<'_, PyAny>) -> PyResult<()> {
        let taker = {
            let taker = self.taker.lock().unwrap_or_else(PoisonError::into_inner);
            taker.as_ref().map(|taker| taker.clone_ref(py))
        };
        let Some(taker) = taker else { return Ok(()) };
        taker.call1(py, (requests,)).map(drop)
    }

    fn take(&self, py: Python<'_>, task: &mut Context<'_>) -> PyResult<bool> {
        if self.is_paused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (batch, mut again) = (PyList::empty(py), true);
        let mut is_over = false;
        for _ in 0..BATCH {
            match self.next_request(task) {
                Poll::Ready(Some(request)) => batch.append(Request::new(request))?,
                Poll::Ready(None) => is_over = true,
                Poll::Pending => again = false,
            }
            if is_over || !again {
                break;
            }
        }
        let count = batch.len();
        if count > 0 {
            self.in_service.fetch_add(count, Ordering::Relaxed);
            self.give(py, batch.into_any())?;
        }
        if is_over {
            self.give(py, py.None().into_bound(py))?;
            return Ok(false);
        }
        Ok(again)
    }
}

impl Receiver for Arrivals {
    fn look(&self, py: Python<'_>, task: &mut Context<'_>) -> bool {
        self.take(py, task).unwrap_or_else(|error| {
            error.write_unraisable(py, None);
            true
        })
    }
}

#[pymethods]
impl AsyncPort {
    #[new]
    fn new(port: &Port, reactor: Py<Reactor>, schedule_turn: Py<PyAny>, taker: Py<PyAny>) -> Self {
        let port = port.inner().clone();
        let arrivals = Arc::new(Arrivals {
            requests: Mutex::new(port.requests()),
            port,
            taker: Mutex::new(Some(taker)),
            in_service: AtomicUsize::new(0),
            is_paused: AtomicBool::new(false),
        });
        let source = reactor.get().add_receiver(Arc::clone(&arrivals) as Arc<_>);
        Self { arrivals, reactor, source, schedule_turn }
    }

    /// Answers a request, together with others of the same round.
    #[pyo3(signature = (request, body, /))]
    fn reply(&self, request: &Request, body: &Bound<'_, PyAny>) -> PyResult<()> {
        let others = self.arrivals.in_service.load(Ordering::Relaxed) > 1;
        let flush = flush(others);
        request.reply_with(body, flush)?;
        after(body.py(), flush, &self.schedule_turn)
    }

    /// A request that was taken is over. With ``failed`` its client gets ``HandlerError``, unless it was answered.
    #[pyo3(signature = (request, failed, /))]
    fn ended(&self, request: &Request, failed: bool) {
        self.arrivals.in_service.fetch_sub(1, Ordering::Relaxed);
        if failed {
            request.fail();
        }
    }

    /// Whether to take no requests for now.
    fn pause(&self, paused: bool) {
        if self.arrivals.is_paused.swap(paused, Ordering::Relaxed) && !paused {
            self.reactor.get().wake(self.source);
        }
    }

    /// Has the future get ``None`` when nobody needs the response to the request any more. Returns the number of the operation.
    #[pyo3(signature = (request, future, /))]
    fn watch(&self, py: Python<'_>, request: Py<Request>, future: Py<PyAny>) -> PyResult<u64> {
        self.reactor.get().run(py, until(Watched(request)), future)
    }

    /// Closes the port.
    fn close(&self) {
        self.arrivals.port.shutdown();
        self.reactor.get().wake(self.source);
    }

    /// Ends the receiver. The taker is dropped, which may have this object.
    fn detach(&self) {
        self.reactor.get().remove(self.source);
        let taker = self.arrivals.taker.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(taker);
    }
}

/// Waits until nobody needs the response to a request. A request that was answered is no longer watched.
struct Watched(Py<Request>);

impl Future for Watched {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        self.0.get().with(|request| request.poll_cancelled(task)).unwrap_or(Poll::Pending)
    }
}

/// Closes a node in an event loop. The future gets the result.
#[pyfunction]
#[pyo3(signature = (node, reactor, timeout, future, /))]
pub(crate) fn close_node(
    py: Python<'_>,
    node: &PyNode,
    reactor: &Reactor,
    timeout: f64,
    future: Py<PyAny>,
) -> PyResult<u64> {
    let timeout: Duration = seconds(timeout)?;
    let ports = Arc::clone(node.ended_ports());
    let Some(node) = node.take() else { return Err(misuse("the node is closed already")) };
    let closing = node.close_async(timeout);
    let operation = Box::pin(async move {
        let result = closing.await;
        ports.close_all();
        Box::new(move |py: Python<'_>| {
            result.map_err(|error| error.exception(py)).map(|()| py.None())
        }) as Outcome
    });
    reactor.run(py, operation, future)
}
