//! Failed calls as errors of input and output.

use std::io::{self, ErrorKind};

use apus::CallError;
use tarpc::ServerError;

/// A failed call as an [`io::Error`], with the [`CallError`] inside.
///
/// | kind | errors |
/// |---|---|
/// | `InvalidInput` | the request is empty or too long, or the address is none of a peer |
/// | `WouldBlock` | a limit or budget of the node or of the peer has no room |
/// | `ConnectionRefused` | no service at the port |
/// | `NotConnected` | the request could not be sent completely |
/// | `PermissionDenied` | identities or rules forbid the call |
/// | `TimedOut` | the deadline has passed, or the peer was silent |
/// | `ConnectionReset` | the server has given the request up, has forgotten it, or its handler panicked |
/// | `ConnectionAborted` | the call was given up on this side, or the path ended after the request was sent |
/// | `InvalidData` | the response is too long |
/// | `Other` | others |
///
/// A request whose error has one of the first five kinds was not executed. [`CallError::may_have_executed`] also knows this of
/// other errors.
#[must_use]
pub fn io_error(error: CallError) -> io::Error {
    io::Error::new(kind(&error), error)
}

fn kind(error: &CallError) -> ErrorKind {
    use CallError as E;
    match error {
        E::EmptyForLinux
        | E::MessageTooLarge { .. }
        | E::TooLargeForLinux { .. }
        | E::RequestTooLarge { .. }
        | E::UnspecifiedAddress(_) => ErrorKind::InvalidInput,
        E::TooManyCalls { .. }
        | E::OverBudget { .. }
        | E::TooManyPeers { .. }
        | E::Overloaded { .. } => ErrorKind::WouldBlock,
        E::NoSuchPort => ErrorKind::ConnectionRefused,
        E::NoEngine | E::NotSent | E::PeerUnreachable { sent: false, .. } => {
            ErrorKind::NotConnected
        }
        E::WrongPeer(_)
        | E::HandshakeFailed { sent: false, .. }
        | E::NoIdentity
        | E::NoPlainPeer
        | E::PlainOnly
        | E::Forbidden
        | E::SealedOnly => ErrorKind::PermissionDenied,
        E::Deadline { .. } | E::PeerTimeout { .. } => ErrorKind::TimedOut,
        E::HandlerPanicked | E::ResponseLost | E::MayHaveExecuted => ErrorKind::ConnectionReset,
        E::PeerUnreachable { sent: true, .. }
        | E::HandshakeFailed { sent: true, .. }
        | E::EngineEnded
        | E::Cancelled
        | E::Closed => ErrorKind::ConnectionAborted,
        E::ResponseTooLarge { .. } => ErrorKind::InvalidData,
        _ => ErrorKind::Other,
    }
}

/// The form in which tarpc gives the error of one call to its caller.
pub(crate) fn server_error(error: &io::Error) -> ServerError {
    ServerError::new(error.kind(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_has_the_failed_call_inside() {
        let error = io_error(CallError::NoSuchPort);
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        assert_eq!(inner, Some(&CallError::NoSuchPort));
    }

    #[test]
    fn requests_that_may_have_been_executed_have_other_kinds() {
        use ErrorKind::{
            ConnectionRefused, InvalidInput, NotConnected, PermissionDenied, WouldBlock,
        };
        let not_executed =
            [InvalidInput, WouldBlock, ConnectionRefused, NotConnected, PermissionDenied];
        let reason = String::new();
        for error in [
            CallError::Cancelled,
            CallError::Closed,
            CallError::EngineEnded,
            CallError::HandlerPanicked,
            CallError::HandshakeFailed { reason, sent: true },
            CallError::MayHaveExecuted,
            CallError::ResponseLost,
            CallError::ResponseTooLarge { length: 2, limit: 1 },
        ] {
            assert!(error.may_have_executed(), "{error}");
            assert!(!not_executed.contains(&kind(&error)), "{error}");
        }
    }
}
