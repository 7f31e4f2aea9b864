//! Answers to requests.

use crate::body::MessageBody;
use crate::code::Code;
use crate::envelope::{EnvelopeLimits, PLAIN_OK, ResponseHead};
use crate::metadata::Metadata;
use crate::status::Status;
use crate::transport::Incoming;

/// Answers with the response of a handler, or with a status if the response cannot be sent.
pub(crate) fn succeed(
    request: Incoming,
    metadata: Metadata,
    trailers: Metadata,
    mut body: MessageBody,
    limits: &EnvelopeLimits,
) {
    let head = if metadata.is_empty() && trailers.is_empty() {
        let mut head = Vec::with_capacity(PLAIN_OK.len() + body.room());
        head.extend_from_slice(&PLAIN_OK);
        head
    } else {
        let end = Status::new(Code::Ok, "").with_metadata(trailers);
        let metadata = (!metadata.is_empty()).then_some(metadata);
        ResponseHead { metadata, end: Some(end), more: false }.encode(body.room())
    };
    if head.len() > limits.head {
        let status = head_too_long(head.len(), limits.head);
        return fail(request, Metadata::new(), Metadata::new(), &status, limits);
    }
    let Err(failed) = request.reply(body.message(head)) else { return };
    let status = Status::new(Code::ResourceExhausted, failed.reason);
    fail(failed.incoming, Metadata::new(), Metadata::new(), &status, limits);
}

/// Answers with a status.
pub(crate) fn fail(
    request: Incoming,
    metadata: Metadata,
    trailers: Metadata,
    status: &Status,
    limits: &EnvelopeLimits,
) {
    let mut end = status.clone();
    if !trailers.is_empty() {
        end.metadata_mut().extend(trailers);
    }
    let metadata = (!metadata.is_empty()).then_some(metadata);
    let head = ResponseHead { metadata, end: Some(end), more: false };
    let (message, _) = bounded(&head, 0, limits);
    // The client may have gone.
    let _ = request.reply(message);
}

/// A head with room for a body, and whether the call ends with it. A head that is longer than a client takes is replaced by a status.
pub(crate) fn bounded(
    head: &ResponseHead,
    body: usize,
    limits: &EnvelopeLimits,
) -> (Vec<u8>, bool) {
    let message = head.encode(body);
    if message.len() <= limits.head {
        return (message, head.end.is_some());
    }
    let mut status = head_too_long(message.len(), limits.head);
    if let Some(end) = head.end.as_ref().filter(|end| end.code() != Code::Ok) {
        let text = format!("{}; its status was {}", status.message(), end.code());
        status = Status::new(status.code(), text).with_execution(end.execution());
    }
    (ResponseHead { end: Some(status), ..ResponseHead::default() }.encode(0), true)
}

/// The head of a response is longer than a client takes.
//= docs/rpc-wire.md#E5
#[cold]
fn head_too_long(length: usize, limit: usize) -> Status {
    let text = format!(
        "the response has metadata, trailers and status of {length} bytes: at most {limit} are allowed (head_max)"
    );
    Status::new(Code::ResourceExhausted, text)
}
