//! A call of a channel.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use apus_rpc::{Code, Metadata, Status, StreamSender, Streaming};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::blocking::block_on;
use crate::message::Message;
use crate::reactor::{Reactor, until};
use crate::rpc::convert;
use crate::rpc::directions::{self, Directions};
use crate::rpc::frames::FrameReader;
use crate::rpc::readers::Readers;

/// The two directions of a call.
pub(crate) struct ClientCall {
    reader: Mutex<ResponseReader>,
    sender: Mutex<Option<StreamSender>>,
}

struct ResponseReader {
    /// `None` when the call is over.
    responses: Option<Streaming>,
    frames: FrameReader,
    /// The metadata before the responses, once it is there.
    metadata: Option<Metadata>,
    end: Option<Status>,
    /// The tasks that read, which an end wakes.
    readers: Arc<Readers>,
}

impl ClientCall {
    pub(crate) fn new(
        sender: Option<StreamSender>,
        responses: Streaming,
        longest_received: usize,
    ) -> Self {
        let reader = ResponseReader {
            responses: Some(responses),
            frames: FrameReader::new(longest_received),
            metadata: None,
            end: None,
            readers: Arc::default(),
        };
        Self { reader: Mutex::new(reader), sender: Mutex::new(sender) }
    }

    /// A call that has not begun.
    pub(crate) fn refused(status: Status) -> Self {
        let reader = ResponseReader {
            responses: None,
            frames: FrameReader::new(0),
            metadata: None,
            end: Some(status),
            readers: Arc::default(),
        };
        Self { reader: Mutex::new(reader), sender: Mutex::new(None) }
    }

    fn reader(&self) -> MutexGuard<'_, ResponseReader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when the metadata is there, or the call is over.
    fn poll_head(&self, task: &Context<'_>) -> Poll<()> {
        self.poll_reader(task, ResponseReader::poll_head)
    }

    /// Polls the responses for one of the tasks that read.
    fn poll_reader<T>(
        &self,
        task: &Context<'_>,
        poll: impl FnOnce(&mut ResponseReader, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let mut reader = self.reader();
        let was_over = reader.responses.is_none();
        let readers = Arc::clone(&reader.readers);
        let polled = readers.poll(task, |all| poll(&mut reader, all));
        let ends = !was_over && reader.responses.is_none();
        drop(reader);
        if ends {
            readers.wake();
        }
        polled
    }

    fn close_sender(&self) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            sender.close();
        }
    }

    /// Gives the call up, with this status. Returns whether it was not over.
    fn give_up(&self, status: Status) -> bool {
        let (responses, readers) = {
            let mut reader = self.reader();
            if reader.end.is_some() {
                return false;
            }
            reader.end = Some(status);
            (reader.responses.take(), Arc::clone(&reader.readers))
        };
        drop(responses);
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).take());
        readers.wake();
        true
    }
}

impl Directions for ClientCall {
    fn poll_read(&self, task: &Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_reader(task, ResponseReader::poll_response)
    }

    fn poll_send(&self, frame: &Bytes, task: &mut Context<'_>) -> Poll<bool> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sender) = &mut *sender else { return Poll::Ready(false) };
        // Nothing happens before there is room, so the future need not be kept.
        let sent = pin!(sender.send_raw(frame.clone())).poll(task);
        sent.map(|sent| sent.is_ok())
    }

    fn refuse(&self, status: Status) {
        self.give_up(status);
    }
}

impl ResponseReader {
    fn finish(&mut self, status: Status) {
        self.end.get_or_insert(status);
        self.responses = None;
        self.frames = FrameReader::new(0);
    }

    fn poll_head(&mut self, task: &mut Context<'_>) -> Poll<()> {
        if self.metadata.is_some() {
            return Poll::Ready(());
        }
        let Some(responses) = &mut self.responses else { return Poll::Ready(()) };
        let metadata = pin!(responses.metadata()).poll(task);
        match metadata {
            Poll::Ready(Ok(metadata)) => self.metadata = Some(metadata),
            Poll::Ready(Err(status)) => self.finish(status),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(())
    }

    fn poll_response(&mut self, task: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.poll_head(task).is_pending() {
            return Poll::Pending;
        }
        loop {
            let Some(responses) = &mut self.responses else { return Poll::Ready(None) };
            match self.frames.next() {
                Ok(Some(message)) => return Poll::Ready(Some(message)),
                Ok(None) => {}
                Err(status) => {
                    self.finish(status);
                    continue;
                }
            }
            match responses.poll_chunk(task) {
                Poll::Ready(Some(Ok(chunk))) => self.frames.push(chunk),
                Poll::Ready(Some(Err(status))) => self.finish(status),
                Poll::Ready(None) if self.frames.is_empty() => {
                    // All bytes were read, so the trailers are there.
                    let trailers = pin!(responses.trailers()).poll(task);
                    let Poll::Ready(trailers) = trailers else { return Poll::Pending };
                    let end = |trailers| Status::new(Code::Ok, "").with_metadata(trailers);
                    self.finish(trailers.map_or_else(|status| status, end));
                }
                Poll::Ready(None) => {
                    self.finish(Status::new(Code::Internal, "the stream ends within a message"));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// A call under way: its methods wait, and those that end in ``_in`` complete a future of an event loop.
#[pyclass(frozen, module = "apus._native", weakref)]
pub(crate) struct RpcCall {
    call: Arc<ClientCall>,
}

impl RpcCall {
    pub(crate) fn new(call: Arc<ClientCall>) -> Self {
        Self { call }
    }

    pub(crate) fn inner(&self) -> &Arc<ClientCall> {
        &self.call
    }
}

#[pymethods]
impl RpcCall {
    /// Waits for the metadata before the responses.
    fn head(&self, py: Python<'_>) -> PyResult<()> {
        block_on(py, poll_fn(|task| self.call.poll_head(task)))
    }

    /// As ``head``.
    #[pyo3(signature = (reactor, future, /))]
    fn head_in(&self, py: Python<'_>, reactor: &Reactor, future: Py<PyAny>) -> PyResult<u64> {
        let call = Arc::clone(&self.call);
        reactor.run(py, until(poll_fn(move |task| call.poll_head(task))), future)
    }

    /// Waits for the next response; ``None`` when the call is over.
    fn read(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        directions::read(py, &*self.call)
    }

    /// As ``read``.
    #[pyo3(signature = (reactor, future, /))]
    fn read_in(&self, py: Python<'_>, reactor: &Reactor, future: Py<PyAny>) -> PyResult<u64> {
        directions::read_in(py, &self.call, reactor, future)
    }

    /// Sends a request. ``False`` if the call is over.
    #[pyo3(signature = (request, /))]
    fn send(&self, request: &Bound<'_, PyAny>) -> PyResult<bool> {
        directions::send(&*self.call, request)
    }

    /// As ``send``.
    #[pyo3(signature = (request, reactor, future, /))]
    fn send_in(
        &self,
        request: &Bound<'_, PyAny>,
        reactor: &Reactor,
        future: Py<PyAny>,
    ) -> PyResult<u64> {
        directions::send_in(&self.call, request, reactor, future)
    }

    /// Ends the requests.
    fn close_sender(&self) {
        self.call.close_sender();
    }

    /// Gives the call up, with a status of this side. Returns whether it was not over.
    #[pyo3(signature = (code = 1, message = "Locally cancelled by application!"))]
    fn cancel(&self, code: u64, message: &str) -> bool {
        self.call.give_up(Status::new(Code::from_number(code), message.to_owned()))
    }

    /// The metadata before the responses; ``None`` before it is there.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let reader = self.call.reader();
        reader.metadata.as_ref().map(|metadata| convert::pairs(py, metadata)).transpose()
    }

    /// The status: code, message, details, trailers, and whether the request may have been executed. ``None`` before the end.
    #[getter]
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let end = self.call.reader().end.clone();
        end.map(|end| convert::status(py, &end)).transpose()
    }
}
