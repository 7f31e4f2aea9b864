//! A request between the task of its handler and the handler in Python.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use apus_rpc::{Code, Status, StreamSender, Streaming};
use bytes::Bytes;

use crate::rpc::directions::Directions;
use crate::rpc::frames::FrameReader;
use crate::rpc::readers::Readers;

/// A request, between the task of its handler and the handler in Python.
pub(crate) struct ServerCall {
    pub(crate) context: apus_rpc::Context,
    requests: Mutex<RequestReader>,
    responses: Mutex<Option<StreamSender>>,
    answer: Mutex<Answer>,
    /// The task has ended: nobody needs the response, or it was sent.
    is_over: AtomicBool,
}

struct RequestReader {
    requests: Streaming,
    frames: FrameReader,
    fault: Option<Status>,
    /// The tasks that read, which the end of the call wakes.
    readers: Arc<Readers>,
}

/// The result of the handler.
#[derive(Default)]
struct Answer {
    result: Option<(Option<Bytes>, Status)>,
    /// The task of the handler. A thread that gives the result polls it itself; only a refused message wakes it.
    task: Option<Waker>,
    /// Tasks that wait for the end.
    ended: Vec<Waker>,
}

thread_local! {
    /// The call that has begun in the task that the calling thread polls.
    static BEGUN: RefCell<Begun> = const { RefCell::new(Begun::NotExpected) };
}

enum Begun {
    NotExpected,
    Expected,
    Call(Arc<ServerCall>),
}

/// Runs a function that polls a task for a handler in Python. Returns the call of the task if it has begun in this poll.
pub(crate) fn beginning(poll: impl FnOnce()) -> Option<Arc<ServerCall>> {
    BEGUN.replace(Begun::Expected);
    poll();
    match BEGUN.replace(Begun::NotExpected) {
        Begun::Call(call) => Some(call),
        Begun::NotExpected | Begun::Expected => None,
    }
}

/// Marks the call as over when its task ends or is dropped.
struct Over(Arc<ServerCall>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        let readers = Arc::clone(&self.0.requests().readers);
        readers.wake();
        let ended = std::mem::take(&mut self.0.answer().ended);
        ended.into_iter().for_each(Waker::wake);
    }
}

/// The handler of all methods: it waits for the answer of the handler in Python.
pub(crate) async fn handle(
    context: apus_rpc::Context,
    requests: Streaming,
    responses: StreamSender,
    longest_received: usize,
) -> Result<(), Status> {
    let frames = FrameReader::new(longest_received);
    let requests = RequestReader { requests, frames, fault: None, readers: Arc::default() };
    let call = Arc::new(ServerCall {
        context,
        requests: Mutex::new(requests),
        responses: Mutex::new(Some(responses)),
        answer: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let _over = Over(Arc::clone(&call));
    let mut is_begun = false;
    let (message, status) = poll_fn(|task| {
        if !is_begun {
            // The thread that has received the request polls first. The task that follows is polled where the handler runs.
            is_begun = BEGUN.with_borrow_mut(|it| {
                let is_expected = matches!(it, Begun::Expected);
                if is_expected {
                    *it = Begun::Call(Arc::clone(&call));
                }
                is_expected
            });
        }
        call.poll_answer(task)
    })
    .await;
    let responses = call.responses.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Some(message), Some(mut responses)) = (message, responses) {
        responses.send_raw(message).await?;
    }
    if status.code() == Code::Ok { Ok(()) } else { Err(status) }
}

impl ServerCall {
    fn requests(&self) -> MutexGuard<'_, RequestReader> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_answer(&self, task: &Context<'_>) -> Poll<(Option<Bytes>, Status)> {
        let mut answer = self.answer();
        if let Some(result) = answer.result.take() {
            return Poll::Ready(result);
        }
        answer.task = Some(task.waker().clone());
        Poll::Pending
    }

    /// Ends the call, unless it has an answer. The task must be polled then.
    pub(crate) fn finish(&self, message: Option<Bytes>, status: Status) {
        let mut answer = self.answer();
        answer.result.get_or_insert((message, status));
    }

    /// Ready when the call is over.
    pub(crate) fn poll_end(&self, task: &Context<'_>) -> Poll<()> {
        let mut answer = self.answer();
        if self.is_over.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        answer.ended.push(task.waker().clone());
        Poll::Pending
    }

    /// Whether the call is over, for any reason.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// The fault of the requests that has ended them.
    pub(crate) fn fault(&self) -> Option<Status> {
        self.requests().fault.clone()
    }

    /// Sends the metadata before a response is there.
    pub(crate) fn send_head(&self) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(responses) = &mut *responses {
            responses.send_head();
        }
    }
}

impl Directions for ServerCall {
    fn poll_read(&self, task: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut reader = self.requests();
        let readers = Arc::clone(&reader.readers);
        let polled = readers.poll(task, |all| {
            if self.is_over.load(Ordering::SeqCst) {
                return Poll::Ready(None);
            }
            reader.poll_request(all)
        });
        drop(reader);
        if matches!(polled, Poll::Ready(None)) {
            readers.wake();
        }
        polled
    }

    fn poll_send(&self, frame: &Bytes, task: &mut Context<'_>) -> Poll<bool> {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(responses) = &mut *responses else { return Poll::Ready(false) };
        let sent = pin!(responses.send_raw(frame.clone())).poll(task);
        sent.map(|sent| sent.is_ok())
    }

    fn refuse(&self, status: Status) {
        self.finish(None, status);
        let task = self.answer().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl RequestReader {
    fn poll_request(&mut self, task: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if self.fault.is_some() {
                return Poll::Ready(None);
            }
            match self.frames.next() {
                Ok(Some(message)) => return Poll::Ready(Some(message)),
                Ok(None) => {}
                Err(status) => {
                    self.fault = Some(status);
                    continue;
                }
            }
            match self.requests.poll_chunk(task) {
                Poll::Ready(Some(Ok(chunk))) => self.frames.push(chunk),
                Poll::Ready(Some(Err(status))) => self.fault = Some(status),
                Poll::Ready(None) => {
                    if !self.frames.is_empty() {
                        let text = "the stream ends within a message";
                        self.fault = Some(Status::new(Code::Internal, text));
                    }
                    return Poll::Ready(None);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
