//! Bodies of requests and responses.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use apus_rpc::{Code, Status, StreamSender, Streaming};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use tokio::task::AbortHandle;

use crate::headers::to_headers;
use crate::status::{from_tonic, is_of_handler, to_tonic, to_tonic_with_source};

/// Any error, as tower has it.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body that is taken to pieces.
pub(crate) type PinnedBody<B> = Pin<Box<B>>;

/// Gathering stops after this many bytes of a body, with the part that reaches it.
const TOGETHER_MAX: usize = 64 << 10;

/// The requests of a call, for a handler.
#[derive(Debug)]
pub(crate) struct RequestBody {
    requests: Streaming,
}

impl RequestBody {
    pub(crate) fn new(requests: Streaming) -> Self {
        Self { requests }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        self.requests
            .poll_chunk(task)
            .map(|chunk| Some(chunk?.map(Frame::data).map_err(to_tonic_with_source)))
    }
}

/// The responses of a call and the trailers after them, for a client.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    responses: Streaming,
    sending: Option<SentBody>,
    is_over: bool,
}

/// The task that sends the requests of a call. It ends with this.
#[derive(Debug)]
pub(crate) struct SentBody {
    task: AbortHandle,
}

impl SentBody {
    pub(crate) fn new(task: AbortHandle) -> Self {
        Self { task }
    }
}

impl Drop for SentBody {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ResponseBody {
    pub(crate) fn new(responses: Streaming, sending: Option<SentBody>) -> Self {
        Self { responses, sending, is_over: false }
    }

    /// The trailers of a call that has ended in order.
    fn success(&mut self, task: &mut Context<'_>) -> Poll<Result<Frame<Bytes>, tonic::Status>> {
        // All bytes were read, so the trailers are there.
        let trailers = std::pin::pin!(self.responses.trailers());
        let trailers = ready!(trailers.poll(task)).and_then(|trailers| to_headers(&trailers));
        let mut trailers = trailers.map_err(to_tonic_with_source)?;
        trailers.insert(tonic::Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Ok(Frame::trailers(trailers)))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        let end = match ready!(this.responses.poll_chunk(task)) {
            Some(Ok(chunk)) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
            Some(Err(status)) if is_of_handler(&status) => {
                let mut trailers = HeaderMap::new();
                to_tonic(&status).add_header(&mut trailers).map(|()| Frame::trailers(trailers))
            }
            Some(Err(status)) => Err(to_tonic_with_source(status)),
            None => ready!(this.success(task)),
        };
        (this.is_over, this.sending) = (true, None);
        Poll::Ready(Some(end))
    }
}

/// The part of a body that is there when its call begins.
pub(crate) struct Begun {
    pub(crate) bytes: Bytes,
    pub(crate) is_whole: bool,
}

/// Takes the bytes of a body that are there, up to some 64 KiB and one part. A body in one part is not copied.
pub(crate) async fn begin<B>(body: &mut PinnedBody<B>) -> Result<Begun, tonic::Status>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut first, mut all) = (Bytes::new(), BytesMut::new());
    let is_whole = loop {
        if body.is_end_stream() {
            break true;
        }
        let polled = poll_fn(|task| Poll::Ready(poll_next(body, task))).await;
        let frame = match polled {
            Poll::Pending => break false,
            Poll::Ready(None) => break true,
            Poll::Ready(Some(frame)) => frame?,
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
        if all.len() >= TOGETHER_MAX {
            break false;
        }
    };
    let bytes = if all.is_empty() { first } else { all.freeze() };
    Ok(Begun { bytes, is_whole })
}

/// Sends the rest of a body. An error of the body gives the call up.
pub(crate) async fn send<B>(mut body: PinnedBody<B>, mut sender: StreamSender)
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    while let Some(frame) = poll_fn(|task| poll_next(&mut body, task)).await {
        let Ok(frame) = frame else { return };
        if let Ok(data) = frame.into_data()
            && !data.is_empty()
            && sender.send_raw(data).await.is_err()
        {
            return;
        }
    }
    sender.close();
}

/// Sends the body of a response. Returns its trailers.
pub(crate) async fn respond<B>(
    mut body: PinnedBody<B>,
    responses: &mut StreamSender,
) -> Result<Option<HeaderMap>, Status>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut trailers = None;
    while let Some(frame) = poll_fn(|task| poll_next(&mut body, task)).await {
        match frame.map_err(|status| from_tonic(&status))?.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => responses.send_raw(data).await?,
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
    Ok(trailers)
}

/// The next part of a body.
fn poll_next<B>(
    body: &mut PinnedBody<B>,
    task: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let error = |error: B::Error| tonic::Status::from_error(error.into());
    body.as_mut().poll_frame(task).map(|frame| Some(frame?.map_err(error)))
}

/// The status of a call whose requests go on outside of a runtime.
#[cold]
pub(crate) fn no_runtime() -> Status {
    let text = "streams of requests are sent by a task of tokio, and the call is made outside of a runtime";
    Status::new(Code::FailedPrecondition, text)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::task::Waker;

    use futures_util::{StreamExt, stream};
    use http_body_util::{Full, StreamBody};

    use super::*;

    /// Polls a future that is ready at once.
    fn now<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the future waits"),
        }
    }

    #[test]
    fn one_part_is_not_copied_and_several_are_joined() {
        let data = Bytes::from(vec![7; 1_000_000]);
        let begun = now(begin(&mut Box::pin(Full::new(data.clone())))).expect("a body");
        assert_eq!((begun.bytes.as_ptr(), begun.is_whole), (data.as_ptr(), true));
        let frame = |it: &'static str| Ok::<_, Infallible>(Frame::data(Bytes::from(it)));
        let frames = ["one", "", "two", "three"].map(frame);
        let begun =
            now(begin(&mut Box::pin(StreamBody::new(stream::iter(frames))))).expect("a body");
        assert_eq!((&begun.bytes[..], begun.is_whole), (&b"onetwothree"[..], true));
    }

    #[test]
    fn a_body_that_goes_on_is_begun() {
        let part = Bytes::from(vec![0; 1000]);
        let parts =
            || stream::repeat(part.clone()).map(|part| Ok::<_, Infallible>(Frame::data(part)));
        let endless = StreamBody::new(parts());
        let begun = now(begin(&mut Box::pin(endless))).expect("a body");
        assert_eq!((begun.bytes.len(), begun.is_whole), (66_000, false));
        let waits = StreamBody::new(parts().take(2).chain(stream::pending()));
        let begun = now(begin(&mut Box::pin(waits))).expect("a body");
        assert_eq!((begun.bytes.len(), begun.is_whole), (2000, false));
    }
}
