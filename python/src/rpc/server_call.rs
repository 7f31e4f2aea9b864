//! A request in the hands of a handler in Python.

use std::future::poll_fn;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::blocking::block_on;
use crate::bodies::body;
use crate::message::Message;
use crate::reactor::{Reactor, until};
use crate::rpc::convert;
use crate::rpc::directions;
use crate::rpc::frames::frame;
use crate::rpc::handled::ServerCall;
use crate::rpc::tasks::Task;

/// A request for a handler. Methods that end in ``_in`` complete a future of an event loop.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct RpcServerCall {
    call: Arc<ServerCall>,
    task: Task,
}

impl RpcServerCall {
    pub(crate) fn new(call: Arc<ServerCall>, task: Task) -> Self {
        Self { call, task }
    }
}

#[pymethods]
impl RpcServerCall {
    /// The path of the method.
    #[getter]
    fn path(&self) -> &str {
        self.call.context.path().as_str()
    }

    /// The metadata of the request.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        convert::pairs(py, self.call.context.metadata())
    }

    /// The address of the client.
    #[getter]
    fn peer(&self) -> String {
        self.call.context.peer().to_string()
    }

    /// The name of the client's certificate.
    #[getter]
    fn identity(&self) -> Option<String> {
        self.call.context.identity().map(|peer| peer.name().to_owned())
    }

    /// The seconds that the call has.
    #[getter]
    fn remaining(&self) -> Option<f64> {
        self.call.context.remaining().map(|left| left.as_secs_f64())
    }

    /// Whether the call is over, for any reason.
    #[getter]
    fn is_over(&self) -> bool {
        self.call.is_over()
    }

    /// The fault of the requests that ends them, as a status.
    #[getter]
    fn fault(&self) -> Option<(u8, String)> {
        self.call.fault().map(|it| (it.code().number(), it.message().to_owned()))
    }

    /// Waits for the next request; ``None`` at the end, for a fault, and when the call is over.
    fn read(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        directions::read(py, &*self.call)
    }

    /// As ``read``.
    #[pyo3(signature = (reactor, future, /))]
    fn read_in(&self, py: Python<'_>, reactor: &Reactor, future: Py<PyAny>) -> PyResult<u64> {
        directions::read_in(py, &self.call, reactor, future)
    }

    /// Sends a response, of several. ``False`` if the call is over.
    #[pyo3(signature = (response, /))]
    fn send(&self, response: &Bound<'_, PyAny>) -> PyResult<bool> {
        directions::send(&*self.call, response)
    }

    /// As ``send``.
    #[pyo3(signature = (response, reactor, future, /))]
    fn send_in(
        &self,
        response: &Bound<'_, PyAny>,
        reactor: &Reactor,
        future: Py<PyAny>,
    ) -> PyResult<u64> {
        directions::send_in(&self.call, response, reactor, future)
    }

    /// Waits until the call is over.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        block_on(py, poll_fn(|task| self.call.poll_end(task)))
    }

    /// As ``end``.
    #[pyo3(signature = (reactor, future, /))]
    fn end_in(&self, py: Python<'_>, reactor: &Reactor, future: Py<PyAny>) -> PyResult<u64> {
        let call = Arc::clone(&self.call);
        reactor.run(py, until(poll_fn(move |task| call.poll_end(task))), future)
    }

    /// Sets the metadata before the responses. With ``now`` it is sent before a response is there.
    #[pyo3(signature = (pairs, now, /))]
    fn set_metadata(&self, pairs: &Bound<'_, PyAny>, now: bool) -> PyResult<()> {
        let metadata = convert::metadata(Some(pairs))?;
        self.call.context.with_response_metadata(|all| all.extend(metadata));
        if now {
            self.call.send_head();
        }
        Ok(())
    }

    /// Ends the call: with a last response if there is one, a status and trailers.
    #[pyo3(signature = (response, code, message, details, trailers, /))]
    fn finish(
        &self,
        py: Python<'_>,
        response: Option<&Bound<'_, PyAny>>,
        code: u64,
        message: String,
        details: Option<Vec<u8>>,
        trailers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let trailers = convert::metadata(trailers)?;
        if !trailers.is_empty() {
            self.call.context.with_trailers(|all| all.extend(trailers));
        }
        let mut status = convert::to_status(code, message, details);
        let response = response.map(body).transpose()?;
        let response = match response.map(|response| frame(&response)).transpose() {
            Ok(response) => response,
            Err(error) => {
                status = error;
                None
            }
        };
        self.call.finish(response, status);
        self.task.run(py);
        Ok(())
    }
}
