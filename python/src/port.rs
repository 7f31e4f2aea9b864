//! Ports: requests for threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use apus::{Flush, ReplyError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::bodies::body;
use crate::client::{LONG, receive};
use crate::errors::{IntoException, OrRaise};
use crate::message::Message;
use crate::node::{Address, some_seconds};

/// A port that clients call. Any number of threads may use it at once.
#[pyclass(frozen, module = "apus", weakref)]
pub(crate) struct Port {
    port: apus::Port,
}

impl Port {
    pub(crate) fn new(port: apus::Port) -> Self {
        Self { port }
    }

    pub(crate) fn inner(&self) -> &apus::Port {
        &self.port
    }
}

#[pymethods]
impl Port {
    /// The number of the Homa port.
    #[getter]
    fn number(&self) -> u16 {
        self.port.number()
    }

    /// Waits for the next request.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let request = receive(py, some_seconds(timeout)?, |slice| match slice {
            Some(slice) => self.port.recv_timeout(slice),
            None => self.port.recv(),
        })?;
        Ok(Request::new(request))
    }

    /// Waits for the next request, and returns up to ``max`` that are there.
    #[pyo3(signature = (max = 256, timeout = None))]
    fn recv_many<'py>(
        &self,
        py: Python<'py>,
        max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let received = receive(py, some_seconds(timeout)?, |slice| {
            let mut batch = Vec::new();
            self.port.recv_many(&mut batch, max, slice).map(|_| batch)
        })?;
        PyList::new(py, received.into_iter().map(Request::new))
    }

    /// Admits only requests of peers that one of the patterns names.
    fn allow(&self, py: Python<'_>, patterns: Vec<String>) -> PyResult<()> {
        py.detach(|| self.port.allow(patterns.iter().map(String::as_str))).or_raise(py)
    }

    /// Closes the port: threads that wait return, and unanswered requests are given up.
    fn close(&self) {
        self.port.shutdown();
    }

    fn __repr__(&self) -> String {
        format!("<apus.Port {}>", self.port.number())
    }
}

/// A request from a client. It is answered once, by any thread.
#[pyclass(frozen, module = "apus", weakref)]
pub(crate) struct Request {
    /// `None` once it is answered or given up.
    request: Mutex<Option<apus::Request>>,
    body: bytes::Bytes,
    from: apus::Address,
}

impl Request {
    pub(crate) fn new(request: apus::Request) -> Self {
        let (body, from) = (request.body().clone(), request.from());
        Self { request: Mutex::new(Some(request)), body, from }
    }

    fn request(&self) -> MutexGuard<'_, Option<apus::Request>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function with the request, unless it is over.
    pub(crate) fn with<T>(&self, run: impl FnOnce(&apus::Request) -> T) -> Option<T> {
        self.request().as_ref().map(run)
    }

    fn send(&self, body: &Bound<'_, PyAny>, flush: Flush) -> Result<(), Answered> {
        let bytes = self::body(body).map_err(Answered::Body)?;
        let request = self.request().take().ok_or(Answered::Reply(ReplyError::Gone))?;
        let is_long = bytes.len() >= LONG;
        let reply = || request.reply_with(bytes, flush);
        let replied = if is_long { body.py().detach(reply) } else { reply() };
        replied.map_err(|failed| {
            let error = failed.error();
            *self.request() = Some(failed.into_request());
            Answered::Reply(error)
        })
    }

    /// [`reply`](Self::reply), which may stay queued until the next turn of an event loop.
    pub(crate) fn reply_with(&self, body: &Bound<'_, PyAny>, flush: Flush) -> PyResult<()> {
        self.send(body, flush).map_err(|error| error.raise(body.py()))
    }

    /// Ends the request as a panic of its handler does: the client is notified at once.
    pub(crate) fn fail(&self) {
        let request = self.request().take();
        if let Some(request) = request {
            request.fail();
        }
    }
}

/// Why there is no answer.
enum Answered {
    Body(PyErr),
    Reply(ReplyError),
}

impl Answered {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Body(error) => error,
            Self::Reply(error) => error.exception(py),
        }
    }
}

#[pymethods]
impl Request {
    /// The bytes of the request.
    #[getter]
    fn body(&self) -> Message {
        Message::new(self.body.clone())
    }

    /// The client's node and port. The address is not authenticated; ``peer`` is.
    #[getter]
    fn client(&self) -> Address {
        self.from.into()
    }

    /// The name of the client's certificate, or ``None`` for one without.
    #[getter]
    fn peer(&self) -> Option<String> {
        self.with(|request| request.peer().map(|peer| peer.name().to_owned())).flatten()
    }

    /// The process that has made the request, as ``(pid, uid)``, if the request came through memory.
    #[getter]
    fn caller(&self) -> Option<(i32, u32)> {
        let caller = self.with(apus::Request::caller).flatten();
        caller.map(|caller| (caller.pid, caller.uid))
    }

    /// The seconds until the deadline of the call, or ``None`` if it has none.
    #[getter]
    fn remaining(&self) -> Option<f64> {
        self.with(apus::Request::remaining).flatten().map(|left| left.as_secs_f64())
    }

    /// Whether nobody needs the response any more.
    fn cancelled(&self) -> bool {
        self.with(apus::Request::is_cancelled).unwrap_or(true)
    }

    /// Answers the request.
    fn reply(&self, body: &Bound<'_, PyAny>) -> PyResult<()> {
        self.reply_with(body, Flush::Now)
    }

    /// Answers with the result of a handler, unless the request is over. With ``flush=False`` the answer may leave with the next operation.
    #[pyo3(signature = (body, flush, /))]
    fn _answer(&self, body: &Bound<'_, PyAny>, flush: bool) -> PyResult<()> {
        if self.request().is_none() {
            return Ok(());
        }
        match self.send(body, if flush { Flush::Now } else { Flush::Later }) {
            // The client has gone.
            Ok(()) | Err(Answered::Reply(ReplyError::Gone)) => Ok(()),
            Err(error) => Err(error.raise(body.py())),
        }
    }

    /// Ends the request as a panic of its handler does: the client is notified at once.
    fn _fail(&self) {
        self.fail();
    }

    /// Gives the request up: the client learns that there will be no response.
    fn abandon(&self) {
        drop(self.request().take());
    }

    fn __repr__(&self) -> String {
        format!("<apus.Request of {} bytes from {}>", self.body.len(), self.from)
    }
}
