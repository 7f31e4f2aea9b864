//! Clients: calls of threads.

use std::time::Duration;

use apus::{CallOptions, Flush, RecvError};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::blocking::block_on;
use crate::bodies::body;
use crate::errors::{OrRaise, of_call};
use crate::message::Message;
use crate::node::{Address, seconds, some_seconds};
use crate::waiting;

/// Makes calls from a port of its own. Any number of threads may use it at once.
#[pyclass(frozen, module = "apus", weakref)]
pub(crate) struct Client {
    client: apus::Client,
}

impl Client {
    pub(crate) fn new(client: apus::Client) -> Self {
        Self { client }
    }

    pub(crate) fn inner(&self) -> &apus::Client {
        &self.client
    }
}

/// The options of a call.
pub(crate) fn options(timeout: Option<Duration>) -> CallOptions {
    let options = CallOptions::new();
    timeout.map_or(options, |timeout| options.deadline(timeout))
}

/// Waits for a call. A thread that runs handlers of signals looks for them meanwhile; if one raises, the call is given up.
fn call_and_wait(
    py: Python<'_>,
    client: &apus::Client,
    to: apus::Address,
    body: Bytes,
    options: CallOptions,
) -> PyResult<Result<Bytes, apus::CallError>> {
    let call = client.call(to, body).options(options);
    if !waiting::sees_signals() {
        return Ok(py.detach(|| call.wait()));
    }
    let mut call = match py.detach(|| call.start()) {
        Ok(call) => Some(call),
        Err(error) => return Ok(Err(error)),
    };
    let result = waiting::wait(py, None, |slice| {
        let waited = call.take()?.wait_timeout(slice.unwrap_or(Duration::MAX));
        waited.map_err(|unfinished| call = Some(unfinished)).ok()
    })?;
    Ok(result.expect("a wait without end has a result"))
}

#[pymethods]
impl Client {
    /// The Homa port of the client.
    #[getter]
    fn port(&self) -> u16 {
        self.client.port()
    }

    /// Sends a request and waits for the response.
    #[pyo3(signature = (to, body, /, timeout = None, *, wait_for_room = true))]
    fn call(
        &self,
        to: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        wait_for_room: bool,
    ) -> PyResult<Message> {
        let (py, to) = (to.py(), Address::of(to)?);
        let options = options(some_seconds(timeout)?).wait_for_room(wait_for_room);
        let body = self::body(body)?;
        let result = call_and_wait(py, &self.client, to, body, options)?;
        result.map(Message::new).or_raise(py)
    }

    /// Sends a request, whose result ``recv_many`` returns with the cookie. With ``flush=False`` it may leave with the next operation.
    #[pyo3(signature = (to, body, cookie, /, timeout = None, *, flush = true))]
    fn send(
        &self,
        to: &Bound<'_, PyAny>,
        body: &Bound<'_, PyAny>,
        cookie: u64,
        timeout: Option<f64>,
        flush: bool,
    ) -> PyResult<()> {
        let (py, to) = (to.py(), Address::of(to)?);
        let options = options(some_seconds(timeout)?);
        let body = self::body(body)?;
        let flush = if flush { Flush::Now } else { Flush::Later };
        let is_long = body.len() >= LONG;
        let send = || self.client.send_with(to, body, cookie, flush, options);
        if is_long { py.detach(send) } else { send() }.or_raise(py)
    }

    /// Waits for results of ``send``, and returns up to ``max`` that are there.
    #[pyo3(signature = (max = 256, timeout = None))]
    fn recv_many<'py>(
        &self,
        py: Python<'py>,
        max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let received = receive(py, some_seconds(timeout)?, |slice| {
            let mut batch = Vec::new();
            self.client.recv_many(&mut batch, max, slice).map(|_| batch)
        })?;
        PyList::new(py, received.into_iter().map(Response::new))
    }

    /// Ends the outstanding calls of ``send`` with this cookie. Returns whether there was one.
    fn cancel(&self, cookie: u64) -> bool {
        self.client.cancel(cookie)
    }

    /// Performs first contact with a node, so that the first call takes one round trip.
    #[pyo3(signature = (to, timeout = None))]
    fn connect(&self, to: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let (py, to) = (to.py(), Address::of(to)?);
        let mut connect = self.client.connect(to);
        if let Some(timeout) = timeout {
            connect = connect.deadline(seconds(timeout)?);
        }
        block_on(py, Box::pin(connect.into_future()))?.or_raise(py)
    }

    /// Calls only peers that one of the patterns names, from now on.
    fn expect(&self, py: Python<'_>, patterns: Vec<String>) -> PyResult<()> {
        py.detach(|| self.client.expect(patterns.iter().map(String::as_str))).or_raise(py)
    }

    /// Closes the port. Calls end with ``ClosedError``.
    fn close(&self) {
        self.client.shutdown();
    }

    fn __repr__(&self) -> String {
        format!("<apus.Client at port {}>", self.client.port())
    }
}

/// A body from this length on is passed to the engine without the GIL.
pub(crate) const LONG: usize = 64 << 10;

/// Receives messages, for at most `timeout`.
pub(crate) fn receive<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut receive: impl FnMut(Option<Duration>) -> Result<T, RecvError> + Send,
) -> PyResult<T> {
    let received = waiting::wait(py, timeout, |slice| match receive(slice) {
        Err(RecvError::Timeout) => None,
        received => Some(received),
    })?;
    received.unwrap_or(Err(RecvError::Timeout)).or_raise(py)
}

/// The result of a call of ``Client.send``.
#[pyclass(frozen, module = "apus")]
pub(crate) struct Response {
    response: apus::Response,
}

impl Response {
    fn new(response: apus::Response) -> Self {
        Self { response }
    }
}

#[pymethods]
impl Response {
    /// The cookie of the call.
    #[getter]
    fn cookie(&self) -> u64 {
        self.response.cookie
    }

    /// The message, or ``None`` if the call has failed.
    #[getter]
    fn body(&self) -> Option<Message> {
        self.response.result.as_ref().ok().map(|body| Message::new(body.clone()))
    }

    /// The exception of a call that has failed, or ``None``.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<PyErr> {
        self.response.result.as_ref().err().map(|error| of_call(py, error))
    }

    /// The message of the response; raises if the call has failed.
    fn result(&self, py: Python<'_>) -> PyResult<Message> {
        self.response.result.clone().map(Message::new).or_raise(py)
    }

    fn __repr__(&self) -> String {
        match &self.response.result {
            Ok(body) => format!("<apus.Response {}: {} bytes>", self.response.cookie, body.len()),
            Err(error) => format!("<apus.Response {}: {error}>", self.response.cookie),
        }
    }
}
