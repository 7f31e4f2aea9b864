//! Statuses of tonic and of `apus-rpc`.

use std::error::Error;
use std::sync::Arc;

use apus_rpc::{CallError, Code, MetadataError, Status};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tonic::metadata::MetadataMap;

use crate::headers::{to_headers, to_metadata};

/// Whether a handler may have seen the request of a call that ended with this status. If not, the call may be repeated, whatever its
/// method does. True for a status that does not come from a [`Channel`](crate::Channel).
///
/// A status of the transport has the [`CallError`] as its source; one of a server that refused the request has an
/// [`apus_rpc::Status`].
///
/// ```
/// let status = tonic::Status::unavailable("from a handler");
/// assert!(apus_tonic::may_have_executed(&status));
/// ```
#[must_use]
pub fn may_have_executed(status: &tonic::Status) -> bool {
    let mut next = status.source();
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<CallError>() {
            return error.may_have_executed();
        }
        if let Some(status) = error.downcast_ref::<Status>() {
            return status.may_have_executed();
        }
        next = error.source();
    }
    true
}

/// Whether a handler, or what stands for it at its server, has ended the call with this status.
pub(crate) fn is_of_handler(status: &Status) -> bool {
    status.call_error().is_none() && status.may_have_executed()
}

/// A status as tonic has it, without a source.
pub(crate) fn to_tonic(status: &Status) -> tonic::Status {
    let code = tonic::Code::from_i32(status.code().number().into());
    // Only the number of pairs can be wrong, and then the code is of more use than they are.
    let headers = to_headers(status.metadata()).unwrap_or_default();
    let metadata = MetadataMap::from_headers(headers);
    let details = status.details().clone();
    tonic::Status::with_details_and_metadata(code, status.message(), details, metadata)
}

/// The status of a call that has no answer of a handler, with the reason as its source.
pub(crate) fn to_tonic_with_source(status: Status) -> tonic::Status {
    let mut converted = to_tonic(&status);
    converted.set_source(match status.call_error() {
        Some(error) => Arc::new(error.clone()),
        None => Arc::new(status),
    });
    converted
}

/// The status of a handler.
pub(crate) fn from_tonic(status: &tonic::Status) -> Status {
    let code = u64::try_from(i32::from(status.code())).map_or(Code::Unknown, Code::from_number);
    let mut converted = Status::new(code, status.message().to_owned());
    if !status.details().is_empty() {
        converted = converted.with_details(Bytes::copy_from_slice(status.details()));
    }
    match to_metadata(status.metadata()) {
        Ok(metadata) if metadata.is_empty() => converted,
        Ok(metadata) => converted.with_metadata(metadata),
        Err(error) => invalid_response(&error),
    }
}

/// The status that headers or trailers have, if they have one. A status of success is without message and details.
pub(crate) fn from_headers(headers: &HeaderMap) -> Option<Status> {
    let code = headers.get(tonic::Status::GRPC_STATUS)?;
    if tonic::Code::from_bytes(code.as_bytes()) == tonic::Code::Ok {
        if headers.len() == 1 {
            return Some(Status::new(Code::Ok, ""));
        }
        let trailers = to_metadata(&MetadataMap::from_headers(headers.clone()));
        return Some(match trailers {
            Ok(trailers) => Status::new(Code::Ok, "").with_metadata(trailers),
            Err(error) => invalid_response(&error),
        });
    }
    // Tonic panics about details that are not base64.
    let details = MetadataMap::from_headers(headers.clone());
    let details = details.get_bin(tonic::Status::GRPC_STATUS_DETAILS.as_str());
    if details.is_some_and(|details| details.to_bytes().is_err()) {
        let text = "the details of the handler's status are not base64";
        return Some(Status::new(Code::Internal, text));
    }
    tonic::Status::from_header_map(headers).as_ref().map(from_tonic)
}

/// A response of a handler that is no gRPC: HTTP's code decides, as gRPC says.
#[cold]
pub(crate) fn from_http(code: StatusCode) -> Status {
    let mapped = match code.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    let text = format!("the handler's response has no gRPC status, and HTTP code {code}");
    Status::new(mapped, text)
}

/// A handler's response has metadata that an envelope does not take.
#[cold]
pub(crate) fn invalid_response(error: &MetadataError) -> Status {
    Status::new(Code::Internal, format!("the response is not valid: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_status_come_back() {
        let mut metadata = MetadataMap::new();
        metadata.insert("cost", "3".parse().expect("a value"));
        let text = "\tünïcode %41 and\r\n\"quotes\" ☺";
        for code in 0..17 {
            let code = tonic::Code::from_i32(code);
            let details = Bytes::from_static(b"\x00\xFF");
            let sent =
                tonic::Status::with_details_and_metadata(code, text, details, metadata.clone());
            let back = to_tonic(&from_tonic(&sent));
            assert_eq!((back.code(), back.message()), (code, text));
            assert_eq!(back.details(), sent.details());
            assert_eq!(back.metadata().get("cost").map(|it| it.as_bytes()), Some(&b"3"[..]));
            // As headers of HTTP, as a handler gives it and a client reads it.
            let mut headers = HeaderMap::new();
            sent.add_header(&mut headers).expect("valid headers");
            let read = from_headers(&headers).expect("a status");
            if code == tonic::Code::Ok {
                assert_eq!((read.code(), read.metadata().get("cost")), (Code::Ok, Some("3")));
            } else {
                assert_eq!(read, from_tonic(&sent));
            }
        }
    }

    #[test]
    fn details_that_are_not_base64_are_no_panic() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", "5".parse().expect("a value"));
        headers.insert("grpc-status-details-bin", "*".parse().expect("a value"));
        assert_eq!(from_headers(&headers).map(|status| status.code()), Some(Code::Internal));
        assert_eq!(from_headers(&HeaderMap::new()), None);
    }

    #[test]
    fn the_source_says_whether_a_handler_may_have_seen_the_request() {
        for error in [CallError::NotSent, CallError::MayHaveExecuted, CallError::Cancelled] {
            let expected = error.may_have_executed();
            let status = to_tonic_with_source(error.clone().into());
            assert_eq!(may_have_executed(&status), expected, "{error:?}");
            let source = status.source().expect("a source");
            assert_eq!(
                source.downcast_ref::<CallError>().map(ToString::to_string),
                Some(error.to_string())
            );
        }
        let refused = to_tonic_with_source(Status::new(Code::Unavailable, "a server's word"));
        assert!(may_have_executed(&refused) && refused.source().is_some());
        let outer =
            tonic::Status::from_error(Box::new(to_tonic_with_source(CallError::NotSent.into())));
        assert!(!may_have_executed(&outer));
    }
}
