//! Errors of streams, as the standard library has them for TCP.

use std::io::{Error, ErrorKind};

use apus_wire::PathError;

use crate::error::{CallError, OpenError, Unusable};
use crate::stream::halves::Broken;
use crate::stream::message::Reason;

/// The error of operations on a broken stream.
#[cold]
pub(crate) fn broken(broken: &Broken) -> Error {
    let (kind, text) = match broken {
        Broken::ByPeer(Reason::Refused) => {
            (ErrorKind::ConnectionRefused, "the listener accepts no more streams at the moment")
        }
        Broken::ByPeer(Reason::Unknown) => {
            (ErrorKind::ConnectionReset, "the peer does not know this stream any more")
        }
        Broken::ByPeer(Reason::Dropped) => (
            ErrorKind::ConnectionReset,
            "the peer dropped the stream before it had read everything",
        ),
        Broken::ByPeer(Reason::Violation) => {
            (ErrorKind::ConnectionReset, "the peer found a violation of the rules of streams")
        }
        Broken::ByPeer(Reason::Lost) => {
            (ErrorKind::ConnectionReset, "the peer took this end for lost")
        }
        Broken::ByUs(Reason::Violation) => {
            (ErrorKind::ConnectionAborted, "the peer broke the rules of streams")
        }
        Broken::ByUs(Reason::Lost) => (ErrorKind::TimedOut, "the peer was silent for too long"),
        Broken::ByUs(_) => (ErrorKind::ConnectionAborted, "the stream was reset on this side"),
        Broken::NotOpened(error) => return call_failed(error.clone()),
        Broken::Failed(error) => {
            let refused = call_failed(error.clone());
            return match refused.kind() {
                ErrorKind::ConnectionRefused => {
                    Error::new(ErrorKind::ConnectionReset, error.clone())
                }
                _ => refused,
            };
        }
        Broken::Closed => (ErrorKind::NotConnected, "the node was closed"),
    };
    Error::new(kind, text)
}

/// The reason for the end of a stream whose call failed.
#[cold]
pub(crate) fn call_failed(error: CallError) -> Error {
    let kind = match error {
        CallError::NoSuchPort => ErrorKind::ConnectionRefused,
        CallError::PeerUnreachable { error, .. } => match error {
            PathError::PortUnreachable => ErrorKind::ConnectionRefused,
            PathError::HostUnreachable => ErrorKind::HostUnreachable,
            PathError::PermissionDenied => ErrorKind::PermissionDenied,
            _ => ErrorKind::Other,
        },
        CallError::NoIdentity
        | CallError::NoPlainPeer
        | CallError::Forbidden
        | CallError::SealedOnly
        | CallError::PlainOnly
        | CallError::HandshakeFailed { .. }
        | CallError::WrongPeer(_) => ErrorKind::PermissionDenied,
        CallError::PeerTimeout { .. } => ErrorKind::TimedOut,
        CallError::UnspecifiedAddress(_) => ErrorKind::InvalidInput,
        CallError::MayHaveExecuted | CallError::ResponseLost => ErrorKind::ConnectionReset,
        CallError::Closed => ErrorKind::NotConnected,
        _ => ErrorKind::Other,
    };
    Error::new(kind, error)
}

#[cold]
pub(crate) fn not_opened(error: OpenError) -> Error {
    let kind = match error {
        OpenError::PortOutOfRange(_) => ErrorKind::InvalidInput,
        OpenError::PortInUse(_) | OpenError::NoPortLeft => ErrorKind::AddrInUse,
        OpenError::PortForbidden(_) => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    Error::new(kind, error)
}

#[cold]
pub(crate) fn unusable(reason: Unusable) -> Error {
    Error::other(CallError::from(reason))
}

#[cold]
pub(crate) fn timed_out() -> Error {
    Error::new(ErrorKind::TimedOut, "the timeout of the stream has passed")
}

#[cold]
pub(crate) fn finished() -> Error {
    Error::new(ErrorKind::BrokenPipe, "this half of the stream was shut down")
}
