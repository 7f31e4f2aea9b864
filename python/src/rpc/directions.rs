//! The two directions of a call: messages that are read and sent, by threads and in event loops.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use apus_rpc::Status;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::blocking::block_on;
use crate::bodies::body;
use crate::message::Message;
use crate::reactor::{Outcome, Reactor};
use crate::rpc::frames::frame;

/// A call of one side.
pub(crate) trait Directions: Send + Sync + 'static {
    /// The next message; `None` at the end, and when the call is over.
    fn poll_read(&self, task: &Context<'_>) -> Poll<Option<Bytes>>;

    /// Sends a message. `false` if the call is over.
    fn poll_send(&self, frame: &Bytes, task: &mut Context<'_>) -> Poll<bool>;

    /// Ends the call with a status, because one of its messages cannot be sent.
    fn refuse(&self, status: Status);
}

/// Waits for the next message.
pub(crate) fn read(py: Python<'_>, call: &impl Directions) -> PyResult<Option<Message>> {
    let message = block_on(py, poll_fn(|task| call.poll_read(task)))?;
    Ok(message.map(Message::new))
}

/// As [`read`].
pub(crate) fn read_in<C: Directions>(
    py: Python<'_>,
    call: &Arc<C>,
    reactor: &Reactor,
    future: Py<PyAny>,
) -> PyResult<u64> {
    let call = Arc::clone(call);
    let operation = Box::pin(async move {
        let message = poll_fn(|task| call.poll_read(task)).await;
        Box::new(move |py: Python<'_>| Message::or_none(py, message)) as Outcome
    });
    reactor.run(py, operation, future)
}

/// Sends a message. `false` if the call is over.
pub(crate) fn send(call: &impl Directions, message: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(frame) = framed(call, message)? else { return Ok(false) };
    block_on(message.py(), poll_fn(|task| call.poll_send(&frame, task)))
}

/// As [`send`].
pub(crate) fn send_in<C: Directions>(
    call: &Arc<C>,
    message: &Bound<'_, PyAny>,
    reactor: &Reactor,
    future: Py<PyAny>,
) -> PyResult<u64> {
    let frame = framed(&**call, message)?;
    let call = Arc::clone(call);
    let operation = Box::pin(async move {
        let sent = match frame {
            Some(frame) => poll_fn(|task| call.poll_send(&frame, task)).await,
            None => false,
        };
        Box::new(move |py: Python<'_>| Ok(PyBool::new(py, sent).to_owned().into_any().unbind()))
            as Outcome
    });
    reactor.run(message.py(), operation, future)
}

/// A message in its frame. One that is too long for a frame ends the call.
fn framed(call: &impl Directions, message: &Bound<'_, PyAny>) -> PyResult<Option<Bytes>> {
    let frame = frame(&body(message)?);
    Ok(frame.map_err(|status| call.refuse(status)).ok())
}
