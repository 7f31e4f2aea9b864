//! Results of requests as the bodies of responses.
//!
//! tarpc encodes the kind of an error as a signed number and decodes it as an unsigned one. That differs in the format of
//! postcard, so an error has a form of its own here: the number of its kind, then its text.

use std::io::{self, ErrorKind};

use serde_core::de::DeserializeOwned;
use serde_core::ser::Serialize;
use tarpc::ServerError;

use crate::body;

/// By tarpc's numbers. Other kinds travel as `Other`.
const KINDS: [ErrorKind; 18] = [
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::ConnectionRefused,
    ErrorKind::ConnectionReset,
    ErrorKind::ConnectionAborted,
    ErrorKind::NotConnected,
    ErrorKind::AddrInUse,
    ErrorKind::AddrNotAvailable,
    ErrorKind::BrokenPipe,
    ErrorKind::AlreadyExists,
    ErrorKind::WouldBlock,
    ErrorKind::InvalidInput,
    ErrorKind::InvalidData,
    ErrorKind::TimedOut,
    ErrorKind::WriteZero,
    ErrorKind::Interrupted,
    ErrorKind::Other,
    ErrorKind::UnexpectedEof,
];

/// The number of `Other`.
const OTHER: u32 = 16;

/// # Errors
///
/// `InvalidInput`: the type refuses to be encoded.
pub(crate) fn encode<T: Serialize>(outcome: &Result<T, ServerError>) -> io::Result<Vec<u8>> {
    let outcome = outcome.as_ref().map_err(|error| (number(error.kind), error.detail.as_str()));
    body::encode(&outcome)
}

/// # Errors
///
/// `InvalidData`: these are not the bytes of one outcome.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<Result<T, ServerError>> {
    let outcome: Result<T, (u32, String)> = body::decode(body)?;
    Ok(outcome.map_err(|(number, detail)| ServerError::new(kind(number), detail)))
}

fn number(kind: ErrorKind) -> u32 {
    (0..).zip(KINDS).find(|(_, it)| *it == kind).map_or(OTHER, |(number, _)| number)
}

fn kind(number: u32) -> ErrorKind {
    let place = usize::try_from(number).ok();
    place.and_then(|place| KINDS.get(place)).copied().unwrap_or(ErrorKind::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_and_the_text_of_an_error_arrive() {
        let pass = |kind| {
            let error = ServerError::new(kind, "no room".to_owned());
            decode::<()>(&encode::<()>(&Err(error)).unwrap()).unwrap().unwrap_err()
        };
        for kind in KINDS {
            assert_eq!(pass(kind), ServerError::new(kind, "no room".to_owned()));
        }
        assert_eq!(pass(ErrorKind::StorageFull).kind, ErrorKind::Other);
        let unknown = Err::<(), _>((u32::MAX, "new"));
        let unknown = decode::<()>(&body::encode(&unknown).unwrap()).unwrap().unwrap_err();
        assert_eq!(unknown.kind, ErrorKind::Other);
    }
}
