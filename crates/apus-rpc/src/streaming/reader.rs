//! The end of a stream that gives messages.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use apus::Bytes;
use futures_core::Stream;

use crate::code::Code;
use crate::envelope::EnvelopeError;
use crate::metadata::Metadata;
use crate::status::Status;
use crate::streaming::frames::FrameReader;

/// The side of a call that chunks come from.
pub(crate) trait ChunkSource: Send + Sync {
    /// The next chunk; `None` at the end of the body.
    fn poll_chunk(&self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;

    /// The metadata before the body.
    fn poll_metadata(&self, task: &Context<'_>) -> Poll<Result<Metadata, Status>>;

    /// Ready when metadata or a message is there, or the call has ended. An error is the status of a call without a message.
    fn poll_answered(&self, task: &Context<'_>) -> Poll<Result<(), Status>>;

    /// The metadata after the body, once the body has ended.
    fn take_trailers(&self) -> Metadata;

    /// Counts a message that is refused, and returns the status of its call.
    fn refuse(&self, error: EnvelopeError) -> Status;

    /// The reader refuses a message, or has read the status of the call. A call of a client that goes on ends with this status.
    fn fail(&self, status: &Status);

    /// The reader has gone.
    fn end_reading(&self);
}

/// The messages of one direction of a call, in order: a [`Stream`] of results, and [`next`](Self::next) without that trait. `T` is
/// [`Bytes`], or the type of a [typed service](macro@crate::service).
///
/// A slow reader holds at most 256 KiB and one message ([`EnvelopeLimits::frame_max`](crate::envelope::EnvelopeLimits::frame_max)) in
/// memory, and its peer then waits. A client that drops the stream before its end gives the call up.
pub struct Streaming<T = Bytes> {
    messages: MessageReader,
    read: Box<Read<T>>,
}

/// From the bytes of a message, or the status of the call, to an item of the stream.
pub(crate) type Read<T> = dyn Fn(Result<Bytes, Status>) -> Result<T, Status> + Send + Sync;

/// The messages as bytes.
struct MessageReader {
    source: Arc<dyn ChunkSource>,
    frames: FrameReader,
    frame_max: usize,
    is_over: bool,
    /// The status of a call that has failed.
    failed: Option<Status>,
}

impl Streaming {
    pub(crate) fn new(source: Arc<dyn ChunkSource>, frame_max: usize) -> Self {
        let frames = FrameReader::default();
        let messages = MessageReader { source, frames, frame_max, is_over: false, failed: None };
        Self { messages, read: Box::new(|message| message) }
    }

    /// The same stream with messages of a type. No message was read yet.
    pub(crate) fn typed<T>(
        self,
        read: impl Fn(Result<Bytes, Status>) -> Result<T, Status> + Send + Sync + 'static,
    ) -> Streaming<T> {
        Streaming { messages: self.messages, read: Box::new(read) }
    }

    /// The next bytes, of a call whose messages have frames of another protocol. The borders of chunks mean nothing. Not to be mixed with
    /// [`next`](Self::next).
    pub fn poll_chunk(&mut self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let messages = &mut self.messages;
        if messages.is_over {
            return Poll::Ready(None);
        }
        let polled = messages.source.poll_chunk(task);
        messages.is_over = matches!(polled, Poll::Ready(None | Some(Err(_))));
        if let Poll::Ready(Some(Err(status))) = &polled {
            messages.failed = Some(status.clone());
        }
        polled
    }
}

impl<T> Streaming<T> {
    /// The next message; `None` at the end. Nothing comes after an error, which is the status of the call.
    ///
    /// Dropping the future loses no message.
    pub async fn next(&mut self) -> Option<Result<T, Status>> {
        poll_fn(|task| self.poll_message(task)).await
    }

    /// The metadata before the messages. Empty on a server, where [`Context::metadata`](crate::Context::metadata) has it, and when it was
    /// taken.
    ///
    /// # Errors
    ///
    /// The status of a call that ended without a message.
    pub async fn metadata(&mut self) -> Result<Metadata, Status> {
        let metadata = poll_fn(|task| self.messages.source.poll_metadata(task)).await;
        metadata.map_err(|status| self.explained(status))
    }

    /// Skips all messages that are left, and returns the metadata after them.
    ///
    /// # Errors
    ///
    /// The status of the call, also if a message was it before.
    pub async fn trailers(&mut self) -> Result<Metadata, Status> {
        while let Some(message) = poll_fn(|task| self.messages.poll(task)).await {
            message.map_err(|status| self.explained(status))?;
        }
        match &self.messages.failed {
            Some(status) => Err(self.explained(status.clone())),
            None => Ok(self.take_trailers()),
        }
    }

    /// The metadata after the messages, once they have ended.
    pub(crate) fn take_trailers(&self) -> Metadata {
        self.messages.source.take_trailers()
    }

    /// Ready when the call is answered: metadata or a message is there, or the call has ended. The metadata is left.
    pub(crate) fn poll_answered(&mut self, task: &Context<'_>) -> Poll<Result<(), Status>> {
        let answered = self.messages.source.poll_answered(task);
        answered.map_err(|status| self.explained(status))
    }

    /// The status of the call as an item has it.
    fn explained(&self, status: Status) -> Status {
        (self.read)(Err(status.clone())).err().unwrap_or(status)
    }

    pub(crate) fn poll_message(&mut self, task: &Context<'_>) -> Poll<Option<Result<T, Status>>> {
        let Poll::Ready(message) = self.messages.poll(task) else { return Poll::Pending };
        let read = message.map(&self.read);
        if let Some(Err(status)) = &read {
            self.messages.end(status);
        }
        Poll::Ready(read)
    }

    /// Ends the call with a status of the reader.
    pub(crate) fn fail(&mut self, status: &Status) {
        self.messages.end(status);
    }
}

impl MessageReader {
    fn poll(&mut self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            match self.frames.next(self.frame_max) {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(error) => {
                    let status = self.source.refuse(error);
                    return self.fail(status);
                }
            }
            match self.source.poll_chunk(task) {
                Poll::Ready(Some(Ok(chunk))) => self.frames.push(chunk),
                Poll::Ready(Some(Err(status))) => return self.fail(status),
                Poll::Ready(None) if self.frames.is_empty() => self.is_over = true,
                Poll::Ready(None) => {
                    let text = "the stream ends within a message";
                    return self.fail(Status::new(Code::Internal, text));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn fail(&mut self, status: Status) -> Poll<Option<Result<Bytes, Status>>> {
        self.end(&status);
        Poll::Ready(Some(Err(status)))
    }

    /// Nothing is read after the status of the call. The first one stays.
    //= docs/rpc-wire.md#E16
    fn end(&mut self, status: &Status) {
        self.is_over = true;
        if self.failed.is_none() {
            self.failed = Some(status.clone());
            self.source.fail(status);
        }
    }
}

impl<T> Stream for Streaming<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(task)
    }
}

impl Drop for MessageReader {
    fn drop(&mut self) {
        self.source.end_reading();
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_over = self.messages.is_over;
        f.debug_struct("Streaming").field("is_over", &is_over).finish_non_exhaustive()
    }
}
