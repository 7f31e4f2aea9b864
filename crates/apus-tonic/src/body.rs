//! Bodies of requests and responses.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use apus_rpc::{Code, Status};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::status::from_tonic;

/// Any error, as tower has it.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Longest body that is sent, in bytes: that of a message of Apus by default.
const LONGEST: usize = 64 << 20;

/// A body that is there as a whole, and the trailers after it.
#[derive(Debug)]
pub(crate) struct WholeBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl WholeBody {
    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { data, trailers }
    }
}

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.len() as u64)
    }
}

/// Whether a body that is not there yet is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Until it ends.
    Yes,
    /// No: it belongs to a stream.
    No,
}

/// Takes a body to its end. A body in one part is not copied.
pub(crate) async fn gather<B>(body: B, wait: Wait) -> Result<(Bytes, Option<HeaderMap>), Status>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = pin!(body);
    let (mut first, mut all, mut trailers) = (Bytes::new(), BytesMut::new(), None);
    loop {
        let frame = poll_fn(|task| match body.as_mut().poll_frame(task) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending if wait == Wait::Yes => Poll::Pending,
            Poll::Pending => Poll::Ready(Err(streams())),
        });
        let Some(frame) = frame.await? else { break };
        let frame = frame.map_err(|error| from_tonic(&tonic::Status::from_error(error.into())))?;
        match frame.into_data() {
            Ok(data) if first.is_empty() => first = data,
            Ok(data) => {
                if all.is_empty() {
                    all.extend_from_slice(&first);
                }
                all.extend_from_slice(&data);
            }
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
        if all.len().max(first.len()) > LONGEST {
            return Err(too_long());
        }
    }
    let data = if all.is_empty() { first } else { all.freeze() };
    Ok((data, trailers))
}

#[cold]
fn streams() -> Status {
    let text = "the messages of a request must be there when the call begins: streams of requests are not carried yet";
    Status::new(Code::Unimplemented, text)
}

#[cold]
fn too_long() -> Status {
    Status::new(Code::ResourceExhausted, format!("a body is longer than {LONGEST} bytes"))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use futures_util::stream;
    use http_body_util::StreamBody;

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
        let data = Bytes::from(vec![7; 100]);
        let (whole, trailers) =
            now(gather(WholeBody::new(data.clone(), None), Wait::No)).expect("a body");
        assert_eq!((whole.as_ptr(), trailers), (data.as_ptr(), None));
        let frames =
            ["one", "", "two", "three"].map(|it| Ok::<_, Infallible>(Frame::data(Bytes::from(it))));
        let trailers = Ok(Frame::trailers(HeaderMap::new()));
        let body = StreamBody::new(stream::iter(frames.into_iter().chain([trailers])));
        let (joined, trailers) = now(gather(body, Wait::No)).expect("a body");
        assert_eq!((&joined[..], trailers), (&b"onetwothree"[..], Some(HeaderMap::new())));
    }

    #[test]
    fn a_body_that_does_not_end_is_refused() {
        let endless = || StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let status = now(gather(endless(), Wait::No)).expect_err("a stream");
        assert_eq!(status.code(), Code::Unimplemented);
        let part = Bytes::from(vec![0; 1 << 20]);
        let parts = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(part.clone())));
        let status = now(gather(StreamBody::new(parts), Wait::Yes)).expect_err("no end");
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
