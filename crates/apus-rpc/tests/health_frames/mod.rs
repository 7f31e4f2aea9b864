//! Messages of `grpc.health.v1` in gRPC's frames.

/// A request for a service with a short name.
pub(crate) fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.extend([0x0A, u8::try_from(service.len()).expect("a short name")]);
        message.extend(service.as_bytes());
    }
    let length = u8::try_from(message.len()).expect("a short name");
    [&[0, 0, 0, 0, length], &message[..]].concat()
}

/// The number of the status in a response.
pub(crate) fn response(frame: &[u8]) -> u8 {
    match frame {
        [0, 0, 0, 0, 0] => 0,
        [0, 0, 0, 0, 2, 0x08, number] => *number,
        other => panic!("no response: {other:?}"),
    }
}
