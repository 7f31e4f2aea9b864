//! Bodies of messages, in the format of postcard.

use std::io;

use serde_core::de::DeserializeOwned;
use serde_core::ser::Serialize;

/// # Errors
///
/// `InvalidInput`: the type refuses to be encoded.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(message)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// # Errors
///
/// `InvalidData`: these are not the bytes of one message of this type.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(invalid(format!("{} bytes behind the message", rest.len()))),
        Err(error) => Err(invalid(error.to_string())),
    }
}
