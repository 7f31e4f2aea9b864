//! The messages of the protocol, in protocol buffers and gRPC's frames.

use bytes::{Buf, Bytes, BytesMut};

use crate::code::Code;
use crate::envelope::put_varint;
use crate::health::board::ServingStatus;
use crate::status::Status;

/// The method that answers once.
pub(crate) const CHECK: &str = "/grpc.health.v1.Health/Check";

/// The method with a response for each change.
pub(crate) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Longest message. The name of a service is the only long part of one.
const MESSAGE_MAX: usize = 4 << 10;

/// A request for a service. The empty name is the whole server.
pub(crate) fn encode_request(service: &str) -> Bytes {
    let mut message = Vec::with_capacity(service.len() + 3);
    if !service.is_empty() {
        // Field 1, bytes with their length.
        message.push(0x0A);
        put_varint(service.len() as u64, &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    framed(&message)
}

/// The name of the service in a request.
pub(super) fn request_service(message: &[u8]) -> Result<String, Status> {
    let mut service = String::new();
    read_fields(message, |field| {
        if let Field::Bytes(1, bytes) = field {
            let text = str::from_utf8(bytes).map_err(|_| malformed("a name that is not UTF-8"))?;
            text.clone_into(&mut service);
        }
        Ok(())
    })?;
    Ok(service)
}

/// A response.
pub(super) fn encode_response(status: ServingStatus) -> Bytes {
    match status as u8 {
        0 => framed(&[]),
        number => framed(&[0x08, number]),
    }
}

/// The status in a response. One that is not known is [`ServingStatus::Unknown`].
pub(crate) fn response_status(message: &[u8]) -> Result<ServingStatus, Status> {
    let mut status = ServingStatus::Unknown;
    read_fields(message, |field| {
        if let Field::Number(1, number) = field {
            status = ServingStatus::from_number(number);
        }
        Ok(())
    })?;
    Ok(status)
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.push(0);
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(message);
    frame.into()
}

#[cold]
fn malformed(what: &str) -> Status {
    Status::new(Code::InvalidArgument, format!("a message of grpc.health.v1 with {what}"))
}

/// Messages out of chunks.
#[derive(Default)]
pub(crate) struct Frames {
    bytes: BytesMut,
}

impl Frames {
    pub(crate) fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
    }

    /// The next message, if its bytes have arrived.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(prefix) = self.bytes.first_chunk::<PREFIX>() else { return Ok(None) };
        let [compressed, length @ ..] = *prefix;
        if compressed != 0 {
            // UNIMPLEMENTED would say that the server does not have the method.
            return Err(Status::new(Code::Internal, "a compressed message of grpc.health.v1"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_MAX {
            return Err(malformed("more than 4 KiB"));
        }
        if self.bytes.len() < PREFIX + length {
            return Ok(None);
        }
        self.bytes.advance(PREFIX);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }
}

/// A field of a message.
enum Field<'m> {
    Number(u64, u64),
    Bytes(u64, &'m [u8]),
    Other,
}

fn read_fields<'m>(
    mut message: &'m [u8],
    mut take: impl FnMut(Field<'m>) -> Result<(), Status>,
) -> Result<(), Status> {
    while !message.is_empty() {
        take(read_field(&mut message).ok_or_else(|| malformed("a field that is cut"))?)?;
    }
    Ok(())
}

fn read_field<'m>(message: &mut &'m [u8]) -> Option<Field<'m>> {
    let tag = take_varint(message)?;
    let (number, length) = match tag & 7 {
        0 => return Some(Field::Number(tag >> 3, take_varint(message)?)),
        1 => (None, 8),
        2 => (Some(tag >> 3), usize::try_from(take_varint(message)?).ok()?),
        5 => (None, 4),
        _ => return None,
    };
    let (bytes, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(number.map_or(Field::Other, |number| Field::Bytes(number, bytes)))
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for place in 0..10 {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7F) << (7 * place);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The request as prost has it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct HealthCheckRequest {
        #[prost(string, tag = "1")]
        service: String,
    }

    /// The response as prost has it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct HealthCheckResponse {
        #[prost(int32, tag = "1")]
        status: i32,
    }

    fn only(frame: &Bytes) -> Bytes {
        let mut frames = Frames::default();
        frames.push(frame);
        let message = frames.next().expect("a frame").expect("a whole one");
        assert_eq!(frames.next(), Ok(None));
        message
    }

    proptest! {
        #[test]
        fn messages_are_those_of_protocol_buffers(service in ".{0,300}", number in 0_u8..4) {
            use prost::Message;
            let request = only(&encode_request(&service));
            let theirs = HealthCheckRequest { service: service.clone() };
            prop_assert_eq!(&request[..], &theirs.encode_to_vec()[..]);
            prop_assert_eq!(request_service(&request), Ok(service));
            let status = ServingStatus::from_number(u64::from(number));
            let response = only(&encode_response(status));
            let theirs = HealthCheckResponse { status: i32::from(number) };
            prop_assert_eq!(&response[..], &theirs.encode_to_vec()[..]);
            prop_assert_eq!(response_status(&response), Ok(status));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut frames = Frames::default();
            for part in bytes.chunks(7) {
                frames.push(part);
                let _ = frames.next();
            }
            let _ = (request_service(&bytes), response_status(&bytes));
        }
    }

    #[test]
    fn other_fields_are_skipped_and_long_messages_refused() {
        let others = b"\x11\0\0\0\0\0\0\0\0\x1D\0\0\0\0\x22\x02xy\x28\x07\x08\x02";
        assert_eq!(response_status(others), Ok(ServingStatus::NotServing));
        let mut frames = Frames::default();
        frames.push(b"\0\0\0\x20\0");
        assert_eq!(frames.next().map_err(|it| it.code()), Err(Code::InvalidArgument));
        let mut frames = Frames::default();
        frames.push(b"\x01\0\0\0\0");
        assert_eq!(frames.next().map_err(|it| it.code()), Err(Code::Internal));
    }
}
