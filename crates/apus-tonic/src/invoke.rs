//! Calls of clients of the crate `grpc`, Google's gRPC for Rust, over Apus.
//!
//! | file | contents |
//! |---|---|
//! | `frames.rs` | messages with gRPC's frames around them |
//! | `metadata.rs` | metadata and statuses of `grpc` and of `apus-rpc` |

mod frames;
mod metadata;

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use apus_rpc::{Code, Metadata, Status, StreamSender, Streaming};
use bytes::Bytes;
use grpc::client::{CallOptions, Invoke, RecvStream, ResponseStreamItem, SendOptions, SendStream};
use grpc::core::{RecvMessage, RequestHeaders, SendMessage};

use self::frames::{Frames, frame};
use self::metadata::{headers, success, to_metadata, trailers};
use crate::channel::Channel;

/// A call, of which each end has a part once it has begun.
struct Shared {
    call: Mutex<CallState>,
}

enum CallState {
    /// Not sent yet.
    New(NewCall),
    /// Sent; the parts that their ends have not taken.
    Begun { sender: Option<StreamSender>, responses: Option<Result<Streaming, Status>> },
    /// Given up before it was sent.
    Over,
}

struct NewCall {
    channel: apus_rpc::Channel,
    path: String,
    /// Metadata that an envelope does not take ends the call.
    metadata: Result<Metadata, Status>,
    deadline: Option<Instant>,
}

impl NewCall {
    /// Sends the call with the first bytes of its requests.
    fn begin(
        self,
        first: Bytes,
        is_last: bool,
    ) -> Result<(Option<StreamSender>, Streaming), Status> {
        let Self { channel, path, metadata, deadline } = self;
        let mut call = channel.stream(path).all_metadata(metadata?);
        if let Some(deadline) = deadline {
            call = call.deadline(deadline.saturating_duration_since(Instant::now()));
        }
        call.start_raw(first, is_last)
    }
}

impl Shared {
    fn call(&self) -> MutexGuard<'_, CallState> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the call, unless that was done. Returns whether it was sent here.
    fn begin(&self, first: Bytes, is_last: bool) -> bool {
        let mut state = self.call();
        let call = match mem::replace(&mut *state, CallState::Over) {
            CallState::New(call) => call,
            other => {
                *state = other;
                return false;
            }
        };
        let (sender, responses) = match call.begin(first, is_last) {
            Ok((sender, responses)) => (sender, Ok(responses)),
            Err(status) => (None, Err(status)),
        };
        *state = CallState::Begun { sender, responses: Some(responses) };
        true
    }

    fn take_sender(&self) -> Option<StreamSender> {
        match &mut *self.call() {
            CallState::Begun { sender, .. } => sender.take(),
            CallState::New(_) | CallState::Over => None,
        }
    }

    fn take_responses(&self) -> Result<Streaming, Status> {
        match &mut *self.call() {
            CallState::Begun { responses, .. } => responses.take().unwrap_or_else(|| Err(over())),
            CallState::New(_) | CallState::Over => Err(over()),
        }
    }
}

#[cold]
fn over() -> Status {
    Status::new(Code::Cancelled, "the call is over")
}

/// The requests of a call of the crate `grpc`, from [`Channel`] as an [`Invoke`]. Dropped, it ends the requests.
pub struct GrpcRequests {
    shared: Arc<Shared>,
    sender: Option<StreamSender>,
    is_closed: bool,
}

impl SendStream for GrpcRequests {
    /// Sends a message. The first one begins the call, and goes in one message with its head; if it is the last one as well, that is
    /// all of the request.
    async fn send(&mut self, message: &dyn SendMessage, options: SendOptions) -> Result<(), ()> {
        if self.is_closed {
            return Err(());
        }
        let frame = frame(message)?;
        self.is_closed = options.final_msg;
        if self.sender.is_none() {
            if self.shared.begin(frame.clone(), options.final_msg) {
                self.sender = self.shared.take_sender();
                return Ok(());
            }
            self.sender = self.shared.take_sender();
        }
        let sender = self.sender.as_mut().ok_or(())?;
        sender.send_raw(frame).await.map_err(drop)?;
        if options.final_msg {
            self.close();
        }
        Ok(())
    }
}

impl GrpcRequests {
    fn close(&mut self) {
        self.is_closed = true;
        self.sender.take().into_iter().for_each(StreamSender::close);
    }
}

impl Drop for GrpcRequests {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if self.sender.is_none() && !self.shared.begin(Bytes::new(), true) {
            self.sender = self.shared.take_sender();
        }
        self.close();
    }
}

/// The responses of a call of the crate `grpc`, from [`Channel`] as an [`Invoke`]. Dropped before its end, it gives the call up, and
/// the server is notified.
pub struct GrpcResponses {
    shared: Arc<Shared>,
    responses: Option<Streaming>,
    frames: Frames,
    has_headers: bool,
    is_over: bool,
}

impl RecvStream for GrpcResponses {
    async fn recv(&mut self, message: &mut dyn RecvMessage) -> ResponseStreamItem {
        if self.is_over {
            return ResponseStreamItem::StreamClosed;
        }
        match self.next(message).await {
            Ok(item) => item,
            Err(status) => {
                self.end();
                ResponseStreamItem::Trailers(trailers(&status))
            }
        }
    }
}

impl GrpcResponses {
    async fn next(&mut self, message: &mut dyn RecvMessage) -> Result<ResponseStreamItem, Status> {
        if self.responses.is_none() {
            // The server may speak first.
            self.shared.begin(Bytes::new(), false);
            self.responses = Some(self.shared.take_responses()?);
        }
        let responses = self.responses.as_mut().ok_or_else(over)?;
        if !mem::replace(&mut self.has_headers, true) {
            return Ok(ResponseStreamItem::Headers(headers(&responses.metadata().await?)?));
        }
        loop {
            if let Some(mut bytes) = self.frames.next()? {
                let decoded = message.decode(&mut bytes);
                decoded.map_err(|error| Status::new(Code::Internal, error))?;
                return Ok(ResponseStreamItem::Message);
            }
            match poll_fn(|task| responses.poll_chunk(task)).await {
                Some(chunk) => self.frames.push(chunk?),
                None if self.frames.is_empty() => break,
                None => {
                    let text = "the response ends within a message";
                    return Err(Status::new(Code::Internal, text));
                }
            }
        }
        let end = success(&responses.trailers().await?)?;
        self.end();
        Ok(ResponseStreamItem::Trailers(end))
    }

    fn end(&mut self) {
        (self.is_over, self.responses) = (true, None);
    }
}

impl Drop for GrpcResponses {
    fn drop(&mut self) {
        let unsent = match &mut *self.shared.call() {
            state @ CallState::New(_) => Some(mem::replace(state, CallState::Over)),
            CallState::Begun { responses, .. } => {
                drop(responses.take());
                None
            }
            CallState::Over => None,
        };
        drop(unsent);
    }
}

/// Carries the calls of clients of the crate `grpc`, in place of `grpc::client::Channel`: the builders of generated clients take
/// any `Invoke`.
///
/// The call begins with its first message. A status has the code and the message of the server's; its details are in the trailers,
/// as `grpc-status-details-bin`. The length of a response's message is at most 4 MiB. Messages are not compressed.
impl Invoke for Channel {
    type SendStream = GrpcRequests;
    type RecvStream = GrpcResponses;

    async fn invoke(
        &self,
        headers: RequestHeaders,
        options: CallOptions,
    ) -> (GrpcRequests, GrpcResponses) {
        let call = NewCall {
            channel: self.rpc().clone(),
            path: headers.method_name().to_owned(),
            metadata: to_metadata(headers.metadata()),
            deadline: options.deadline(),
        };
        let shared = Arc::new(Shared { call: Mutex::new(CallState::New(call)) });
        let requests = GrpcRequests { shared: Arc::clone(&shared), sender: None, is_closed: false };
        let frames = Frames::default();
        let responses =
            GrpcResponses { shared, responses: None, frames, has_headers: false, is_over: false };
        (requests, responses)
    }
}

impl fmt::Debug for GrpcRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcRequests").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

impl fmt::Debug for GrpcResponses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcResponses").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
