//! Metadata between tonic, which has HTTP headers, and the envelope of a message.

use apus_rpc::{Code, Metadata, MetadataError, MetadataValue, Status};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::{BinaryMetadataValue, GRPC_CONTENT_TYPE, KeyAndValueRef, MetadataMap};

/// Name of the header with the time that a call has.
pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Headers that are not sent: those of HTTP/2 and of its connections, and those that an envelope has a place of its own for.
const NOT_SENT: [&str; 9] = [
    "connection",
    "content-length",
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    GRPC_TIMEOUT,
    "host",
    "te",
    "transfer-encoding",
];

/// Names that a peer's metadata must not have, because tonic reads the status of a call from them.
const OF_A_STATUS: [&str; 3] = ["grpc-message", "grpc-status", "grpc-status-details-bin"];

/// Pairs that room is made for at once.
const PAIRS_FEW: usize = 128;

/// Most pairs of a message. A map of headers panics at some 24,576 names, and a content type, a status and a time are added.
const PAIRS_MAX: usize = 24_000;

/// Headers as metadata. Values of names that end in `-bin` lose their base64. A content type that says no more than that this is
/// gRPC is implied.
pub(crate) fn to_metadata(headers: &MetadataMap) -> Result<Metadata, MetadataError> {
    let mut metadata = Metadata::new();
    for pair in headers.iter() {
        match pair {
            KeyAndValueRef::Ascii(name, value) => {
                let is_implied = name.as_str() == CONTENT_TYPE.as_str()
                    && value.as_encoded_bytes() == GRPC_CONTENT_TYPE.as_bytes();
                if is_implied || NOT_SENT.contains(&name.as_str()) {
                    continue;
                }
                let text = value.to_str().map_err(|_| MetadataError::Text(name.to_string()))?;
                metadata.append(name.as_str(), text)?;
            }
            KeyAndValueRef::Binary(name, value) => {
                if NOT_SENT.contains(&name.as_str()) {
                    continue;
                }
                let bytes = value.to_bytes();
                let bytes = bytes.map_err(|_| MetadataError::Binary(name.to_string()))?;
                metadata.append_bin(name.as_str(), bytes)?;
            }
        }
    }
    Ok(metadata)
}

/// Metadata of a peer as headers, without those that would change the status of the call.
pub(crate) fn to_headers(metadata: &Metadata) -> Result<HeaderMap, Status> {
    if metadata.len() > PAIRS_MAX {
        let text = format!("{} pairs of metadata are more than headers can be", metadata.len());
        return Err(Status::new(Code::ResourceExhausted, text));
    }
    let mut headers = HeaderMap::with_capacity(metadata.len().min(PAIRS_FEW) + 2);
    for (name, value) in metadata.iter().filter(|(name, _)| !OF_A_STATUS.contains(name)) {
        let value = match value {
            MetadataValue::Text(text) => HeaderValue::from_str(text),
            MetadataValue::Binary(bytes) => {
                HeaderValue::from_bytes(BinaryMetadataValue::from_bytes(bytes).as_encoded_bytes())
            }
        };
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), value) else {
            return Err(Status::new(
                Code::Internal,
                format!("metadata '{name}' is no HTTP header"),
            ));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// Headers of a request or response, with the content type of gRPC unless another one was sent.
pub(crate) fn to_message_headers(metadata: &Metadata) -> Result<HeaderMap, Status> {
    let mut headers = to_headers(metadata)?;
    headers.entry(CONTENT_TYPE).or_insert(GRPC_CONTENT_TYPE);
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> MetadataMap {
        let pair =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        MetadataMap::from_headers(pairs.iter().map(pair).collect())
    }

    #[test]
    fn metadata_comes_back_as_it_was() {
        let sent = headers(&[
            ("x-tenant-id", "7"),
            ("picture-bin", "AP8"),
            ("padded-bin", "AP8="),
            ("grpc-encoding", "gzip"),
            ("x-empty", ""),
        ]);
        let metadata = to_metadata(&sent).expect("valid headers");
        assert_eq!(metadata.get_bin("picture-bin").map(|it| &it[..]), Some(&b"\x00\xFF"[..]));
        assert_eq!(metadata.get_bin("padded-bin"), metadata.get_bin("picture-bin"));
        let back = to_headers(&metadata).expect("valid metadata");
        assert_eq!((back.len(), back["x-tenant-id"].as_bytes()), (5, &b"7"[..]));
        let values = ["picture-bin", "x-empty"].map(|name| back[name].as_bytes());
        assert_eq!(values, [&b"AP8"[..], b""]);
    }

    #[test]
    fn headers_of_http_and_of_the_status_stay_behind() {
        let sent = headers(&[
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "1S"),
            ("grpc-status", "0"),
            ("grpc-status-details-bin", "AP8"),
        ]);
        assert_eq!(to_metadata(&sent), Ok(Metadata::new()));
        let json = headers(&[("content-type", "application/grpc+json")]);
        let metadata = to_metadata(&json).expect("valid headers");
        let back = to_message_headers(&metadata).expect("valid metadata");
        assert_eq!(back["content-type"], "application/grpc+json");
        let implied = to_message_headers(&Metadata::new()).expect("valid metadata");
        assert_eq!(implied["content-type"], "application/grpc");
    }

    #[test]
    fn a_peer_cannot_forge_a_status() {
        let mut metadata = Metadata::new();
        metadata.append("grpc-status", "0").expect("a pair");
        metadata.append("grpc-message", "%ZZ").expect("a pair");
        // Tonic takes its value for base64, whatever it is.
        metadata.append_bin("grpc-status-details-bin", "\u{1}").expect("a pair");
        assert_eq!(to_headers(&metadata).map(|headers| headers.len()), Ok(0));
    }

    #[test]
    fn headers_that_an_envelope_does_not_take_are_named() {
        for (name, value) in [("x-latin", "\u{e9}"), ("broken-bin", "*"), ("x!y", "1")] {
            let mut sent = HeaderMap::new();
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header");
            sent.insert(HeaderName::from_static(name), value);
            let error = to_metadata(&MetadataMap::from_headers(sent)).expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn more_pairs_than_headers_can_be_are_no_panic() {
        let mut metadata = Metadata::new();
        for number in 0..40_000 {
            metadata.append(&format!("x-{number}"), "").expect("a pair");
        }
        let status = to_headers(&metadata).expect_err("too many");
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
