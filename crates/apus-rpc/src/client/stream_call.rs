//! A call with streams that has not begun.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use apus::{Bytes, TraceContext};

use crate::client::call_head::{CallHead, call_setters};
use crate::client::calls::ChannelParts;
use crate::client::client_stream::{ClientStream, Holding};
use crate::metadata::Metadata;
use crate::status::Status;
use crate::streaming::{StreamSender, Streaming};

/// A call with streams that has not begun. From [`Channel::stream`](crate::Channel::stream).
///
/// ```no_run
/// # async fn example(channel: apus_rpc::Channel) -> Result<(), apus_rpc::Status> {
/// // One request, many responses.
/// let mut prices = channel.stream("/market.Prices/Watch").request("ABC")?;
/// while let Some(price) = prices.next().await {
///     println!("{:?}", price?);
/// }
///
/// // Many requests, and many responses or one.
/// let (mut requests, mut responses) = channel.stream("/text.Measure/Lengths").start()?;
/// requests.send("hello").await?;
/// requests.close();
/// assert_eq!(responses.next().await.transpose()?, Some("5".into()));
/// # Ok(())
/// # }
/// ```
///
/// A stream begins at one endpoint of the channel. If that fails, the call fails: it is not repeated, and does not wait until an
/// endpoint is ready. The settings of [`ChannelBuilder::retry`](crate::ChannelBuilder::retry),
/// [`hedge`](crate::ChannelBuilder::hedge) and [`wait_for_ready`](crate::ChannelBuilder::wait_for_ready) are those of calls with
/// one request and one response; of a service config the deadline holds.
///
/// Messages go on their way while one of the two ends is awaited. A dropped [`Streaming`] gives the call up, and the server is notified.
#[must_use = "a call begins with `start` or `request`"]
pub struct StreamCall<'c> {
    head: CallHead<'c>,
}

impl<'c> StreamCall<'c> {
    pub(crate) fn new(calls: &'c Arc<ChannelParts>, path: impl Into<Bytes>) -> Self {
        Self { head: CallHead::new(calls, path) }
    }

    call_setters!();

    /// Keeps the call out of spans and histograms: it is the library's own.
    pub(crate) fn unobserved(mut self) -> Self {
        self.head.set_unobserved();
        self
    }

    /// Begins the call with a stream of requests. The first one is sent at once.
    ///
    /// # Errors
    ///
    /// Misuse, an interceptor that refuses the call, or a deadline that has passed. Nothing was sent.
    pub fn start(mut self) -> Result<(StreamSender, Streaming), Status> {
        let limits = self.head.calls.limits;
        let stream = Arc::new(ClientStream::new(&mut self.head, Holding::AtOnce)?);
        let sender = StreamSender::new(Arc::clone(&stream) as Arc<_>, limits);
        Ok((sender, Streaming::new(stream, limits.frame)))
    }

    /// Sends one request, and returns the stream of responses.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and a request that is longer than
    /// [`EnvelopeLimits::frame_max`](crate::envelope::EnvelopeLimits::frame_max) of this side.
    pub fn request(mut self, body: impl Into<Bytes>) -> Result<Streaming, Status> {
        let (limits, body) = (self.head.calls.limits, body.into());
        limits.check_frame(body.len()).map_err(|error| error.of_request())?;
        let stream = ClientStream::new(&mut self.head, Holding::AtOnce)?;
        stream.send_only(&body);
        Ok(Streaming::new(Arc::new(stream), limits.frame))
    }

    /// Begins a call whose messages have frames of another protocol, with the bytes that are there: those go in one message with the
    /// head of the call. `None` in place of the sender if they are the last ones. The response may be one message or many.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_raw(
        mut self,
        first: Bytes,
        is_last: bool,
    ) -> Result<(Option<StreamSender>, Streaming), Status> {
        let limits = self.head.calls.limits;
        let stream = Arc::new(ClientStream::new(&mut self.head, Holding::Late)?);
        stream.begin_raw(&first, is_last);
        let sender = (!is_last).then(|| StreamSender::new(Arc::clone(&stream) as Arc<_>, limits));
        Ok((sender, Streaming::new(stream, limits.frame)))
    }
}

impl fmt::Debug for StreamCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCall").field("path", self.head.path()).finish_non_exhaustive()
    }
}
