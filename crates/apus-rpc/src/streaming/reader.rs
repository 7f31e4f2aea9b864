//! The end of a stream that gives messages.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use apus::Bytes;
use futures_core::Stream;

use crate::code::Code;
use crate::metadata::Metadata;
use crate::status::Status;
use crate::streaming::frames::FrameReader;

/// The side of a call that chunks come from.
pub(crate) trait ChunkSource: Send + Sync {
    /// The next chunk; `None` at the end of the body.
    fn poll_chunk(&self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;

    /// The metadata before the body.
    fn poll_metadata(&self, task: &Context<'_>) -> Poll<Result<Metadata, Status>>;

    /// The metadata after the body, once the body has ended.
    fn take_trailers(&self) -> Metadata;

    /// The reader has gone.
    fn end_reading(&self);
}

/// The messages of one direction of a call, in order: a [`Stream`] of results, and [`next`](Self::next) without that trait.
///
/// A slow reader holds at most 256 KiB and one message ([`EnvelopeLimits::frame_max`](crate::envelope::EnvelopeLimits::frame_max)) in memory, and its peer then waits. A client that drops the stream before its
/// end gives the call up.
pub struct Streaming {
    source: Arc<dyn ChunkSource>,
    frames: FrameReader,
    frame_max: usize,
    is_over: bool,
}

impl Streaming {
    pub(crate) fn new(source: Arc<dyn ChunkSource>, frame_max: usize) -> Self {
        Self { source, frames: FrameReader::default(), frame_max, is_over: false }
    }

    /// The next message; `None` at the end. Nothing comes after an error, which is the status of the call.
    ///
    /// Dropping the future loses no message.
    pub async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        poll_fn(|task| self.poll_message(task)).await
    }

    /// The metadata before the messages. Empty on a server, where [`Context::metadata`](crate::Context::metadata) has it, and when it was
    /// taken.
    ///
    /// # Errors
    ///
    /// The status of a call that ended without a message.
    pub async fn metadata(&mut self) -> Result<Metadata, Status> {
        poll_fn(|task| self.source.poll_metadata(task)).await
    }

    /// Skips all messages that are left, and returns the metadata after them.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn trailers(&mut self) -> Result<Metadata, Status> {
        while let Some(message) = self.next().await {
            message?;
        }
        Ok(self.source.take_trailers())
    }

    /// The next bytes, of a call whose messages have frames of another protocol. The borders of chunks mean nothing. Not to be mixed with
    /// [`next`](Self::next).
    pub fn poll_chunk(&mut self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let polled = self.source.poll_chunk(task);
        self.is_over = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn poll_message(&mut self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            match self.frames.next(self.frame_max) {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(error) => return self.fail(error.of_response()),
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
        self.is_over = true;
        Poll::Ready(Some(Err(status)))
    }
}

impl Stream for Streaming {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(task)
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.source.end_reading();
    }
}

impl fmt::Debug for Streaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
