//! Answers to requests.

use apus::{Bytes, Request};

use crate::code::Code;
use crate::envelope::{EnvelopeLimits, ResponseHead};
use crate::metadata::Metadata;
use crate::status::Status;

/// Answers with the response of a handler. Returns the status that was sent in its place, if it could not be sent.
pub(crate) fn succeed(
    request: Request,
    metadata: Metadata,
    trailers: Metadata,
    body: Bytes,
    limits: &EnvelopeLimits,
) -> Option<Status> {
    let mut end = Status::new(Code::Ok, "");
    if !trailers.is_empty() {
        end = end.with_metadata(trailers);
    }
    let metadata = (!metadata.is_empty()).then_some(metadata);
    let head = ResponseHead { metadata, end: Some(end), more: false };
    let mut message = head.encode(body.len());
    if message.len() > limits.head {
        let status = head_too_long(message.len(), limits.head);
        fail(request, Metadata::new(), Metadata::new(), &status, limits);
        return Some(status);
    }
    message.extend_from_slice(&body);
    let failed = request.reply(message).err()?;
    let status = Status::new(Code::ResourceExhausted, failed.error().to_string());
    fail(failed.into_request(), Metadata::new(), Metadata::new(), &status, limits);
    Some(status)
}

/// Answers with a status.
pub(crate) fn fail(
    request: Request,
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
    let mut message = ResponseHead { metadata, end: Some(end), more: false }.encode(0);
    if message.len() > limits.head {
        let shorter = head_too_long(message.len(), limits.head);
        let text = format!("{}; its status was {}", shorter.message(), status.code());
        let shorter = Status::new(Code::ResourceExhausted, text);
        let shorter = shorter.with_execution(status.execution());
        message = ResponseHead { end: Some(shorter), ..ResponseHead::default() }.encode(0);
    }
    // The client may have gone.
    let _ = request.reply(message);
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
