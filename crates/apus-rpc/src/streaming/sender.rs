//! The end of a stream that takes messages.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use apus::Bytes;

use crate::envelope::EnvelopeLimits;
use crate::scratch::EncodeBuffer;
use crate::status::{Execution, Status};

/// The side of a call that chunks go to.
pub(crate) trait ChunkSink: Send + Sync {
    /// Ready if there is room for a message. An error ends the stream.
    fn poll_room(&self, task: &Context<'_>) -> Poll<Result<(), Status>>;

    /// Adds a message.
    fn push_message(&self, message: &[u8]);

    /// Adds bytes that have frames of their own.
    fn push_raw(&self, bytes: &Bytes);

    /// Sends the metadata before the messages, if no message is there to go with it.
    fn send_head(&self);

    /// Ends the body in order, or gives it up.
    fn end_sending(&self, in_order: bool);
}

/// Takes the messages of one direction of a call.
///
/// A client [closes](Self::close) it after the last message; one that drops it before gives the call up. On a server the messages end
/// when the handler returns.
pub struct StreamSender {
    sink: Arc<dyn ChunkSink>,
    limits: EnvelopeLimits,
    is_closed: bool,
}

impl StreamSender {
    pub(crate) fn new(sink: Arc<dyn ChunkSink>, limits: EnvelopeLimits) -> Self {
        Self { sink, limits, is_closed: false }
    }

    /// Sends a message as soon as the reader has room for it. Messages that wait for room share packets.
    ///
    /// # Errors
    ///
    /// The status of a call that has ended, or [`Code::ResourceExhausted`](crate::Code::ResourceExhausted) for a message that is longer
    /// than [`EnvelopeLimits::frame_max`] of this side.
    pub async fn send(&mut self, message: impl Into<Bytes>) -> Result<(), Status> {
        self.send_slice(&message.into()).await
    }

    /// Sends a message that a codec has written, see [`send`](Self::send). Its buffer goes back to a thread.
    pub(crate) async fn send_encoded(&mut self, message: EncodeBuffer) -> Result<(), Status> {
        self.send_slice(message.written()).await
    }

    async fn send_slice(&mut self, message: &[u8]) -> Result<(), Status> {
        let fits = self.limits.check_frame(message.len());
        // A handler may have seen the messages before this one.
        fits.map_err(|error| error.of_request().with_execution(Execution::Possible))?;
        poll_fn(|task| self.sink.poll_room(task)).await?;
        self.sink.push_message(message);
        Ok(())
    }

    /// Sends bytes as soon as the reader has room for them, for messages that have frames of another protocol. Not to be mixed with
    /// [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// The status of a call that has ended.
    pub async fn send_raw(&mut self, bytes: Bytes) -> Result<(), Status> {
        poll_fn(|task| self.sink.poll_room(task)).await?;
        self.sink.push_raw(&bytes);
        Ok(())
    }

    /// Sends the metadata of a response before its first message is there. On a client, which sends it when the call begins, this does
    /// nothing.
    pub fn send_head(&mut self) {
        self.sink.send_head();
    }

    /// Ends the messages of this direction. They are sent while the other direction is read.
    pub fn close(mut self) {
        self.is_closed = true;
        self.sink.end_sending(true);
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        if !self.is_closed {
            self.sink.end_sending(false);
        }
    }
}

impl fmt::Debug for StreamSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSender").finish_non_exhaustive()
    }
}
