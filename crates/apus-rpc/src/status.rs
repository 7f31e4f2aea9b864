//! The status of a call: gRPC's code, a message, details, and the error below it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::mem;

use apus::CallError;
use bytes::Bytes;

use crate::code::Code;
use crate::metadata::Metadata;

/// How a call ended: a [`Code`], a message for people, details for programs, and metadata.
///
/// A handler returns it as its error, and a client gets it. It has 16 bytes; one without message, details, metadata and source
/// allocates nothing.
///
/// ```
/// use apus_rpc::{Code, Status};
///
/// fn find(name: &str) -> Result<u32, Status> {
///     if name.is_empty() {
///         return Err(Status::new(Code::InvalidArgument, "a name has one or more characters"));
///     }
///     Err(Status::new(Code::NotFound, format!("no user has the name {name}")))
/// }
///
/// let status = find("ada").unwrap_err();
/// assert_eq!(status.code(), Code::NotFound);
/// assert_eq!(status.to_string(), "NOT_FOUND: no user has the name ada");
/// ```
#[derive(Clone)]
pub struct Status {
    code: Code,
    executed: Execution,
    rest: Option<Box<Rest>>,
}

/// Whether a handler may have begun with the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Execution {
    /// It may have.
    Possible,
    /// It has not.
    None,
    /// It has not, as the server knows that sends the status.
    NoneHere,
    /// It has not, because the server drains: another server is a better choice.
    NoneByDraining,
}

#[derive(Clone, Default)]
struct Rest {
    message: Cow<'static, str>,
    details: Bytes,
    metadata: Metadata,
    source: Option<CallError>,
}

static NO_METADATA: Metadata = Metadata::new();
static NO_DETAILS: Bytes = Bytes::new();

impl Status {
    /// A status with a message. The message is for people; clients of other users may see it.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        let rest = (!message.is_empty()).then(|| Box::new(Rest { message, ..Rest::default() }));
        Self { code, executed: Execution::Possible, rest }
    }

    fn rest_mut(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    /// Adds bytes for programs, such as an encoded `google.rpc.Status`; gRPC's `grpc-status-details-bin`.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.rest_mut().details = details.into();
        self
    }

    /// Adds metadata, which travels as trailers.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.rest_mut().metadata = metadata;
        self
    }

    /// The status of a call for which the channel knows no endpoint.
    #[cold]
    pub(crate) fn no_endpoint() -> Self {
        Self::new(Code::Unavailable, "the channel has no endpoint").not_executed()
    }

    /// Marks the status of a request that no handler has seen.
    pub(crate) fn not_executed(mut self) -> Self {
        self.executed = Execution::None;
        self
    }

    pub(crate) fn with_execution(mut self, executed: Execution) -> Self {
        self.executed = executed;
        self
    }

    /// The status with which a handler ends: that of a call which the handler has made says nothing about its own request.
    pub(crate) fn of_handler(self) -> Self {
        let is_refused = self.executed == Execution::NoneHere;
        self.with_execution(if is_refused { Execution::None } else { Execution::Possible })
    }

    pub(crate) fn execution(&self) -> Execution {
        self.executed
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message, which may be empty.
    #[must_use]
    pub fn message(&self) -> &str {
        self.rest.as_ref().map_or("", |rest| &rest.message)
    }

    /// The details, which may be empty.
    #[must_use]
    pub fn details(&self) -> &Bytes {
        self.rest.as_ref().map_or(&NO_DETAILS, |rest| &rest.details)
    }

    /// The trailers that came with the status.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.rest.as_ref().map_or(&NO_METADATA, |rest| &rest.metadata)
    }

    pub(crate) fn take_metadata(&mut self) -> Metadata {
        self.rest.as_mut().map(|rest| mem::take(&mut rest.metadata)).unwrap_or_default()
    }

    pub(crate) fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.rest_mut().metadata
    }

    /// The error of the transport that ended the call; `None` for a status from the server's handler.
    #[must_use]
    pub fn call_error(&self) -> Option<&CallError> {
        self.rest.as_ref()?.source.as_ref()
    }

    /// Whether a handler may have seen the request. If not, it is safe to repeat the call, whatever the method does. True for a status
    /// that [`Status::new`] has made.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        self.executed == Execution::Possible
    }
}

impl From<CallError> for Status {
    /// The status of a call that the transport has ended. The error is its [source](Error::source) and decides
    /// [`may_have_executed`](Self::may_have_executed).
    fn from(error: CallError) -> Self {
        let may_have_executed = error.may_have_executed();
        let executed = if may_have_executed { Execution::Possible } else { Execution::None };
        let mut status = Self::new(code(&error), error.to_string()).with_execution(executed);
        status.rest_mut().source = Some(error);
        status
    }
}

/// The code for an error of the transport.
fn code(error: &CallError) -> Code {
    match error {
        CallError::Deadline { .. } => Code::DeadlineExceeded,
        CallError::Cancelled => Code::Cancelled,
        CallError::TooManyCalls { .. }
        | CallError::TooManyPeers { .. }
        | CallError::OverBudget { .. }
        | CallError::Overloaded { .. }
        | CallError::MessageTooLarge { .. }
        | CallError::ResponseTooLarge { .. }
        | CallError::RequestTooLarge { .. }
        | CallError::TooLargeForLinux { .. } => Code::ResourceExhausted,
        CallError::NoSuchPort
        | CallError::NotSent
        | CallError::NoEngine
        | CallError::PeerTimeout { .. }
        | CallError::PeerUnreachable { .. }
        | CallError::MayHaveExecuted
        | CallError::EngineEnded
        | CallError::HandshakeFailed { .. }
        | CallError::Closed => Code::Unavailable,
        CallError::OtherVersion { .. }
        | CallError::NoIdentity
        | CallError::NoPlainPeer
        | CallError::PlainOnly => Code::FailedPrecondition,
        CallError::WrongPeer(_) | CallError::SealedOnly => Code::Unauthenticated,
        CallError::Forbidden => Code::PermissionDenied,
        CallError::EmptyForLinux | CallError::UnspecifiedAddress(_) => Code::InvalidArgument,
        CallError::HandlerPanicked
        | CallError::OwnService { .. }
        | CallError::Forked
        | CallError::NodePanicked => Code::Internal,
        // `ResponseLost`, `Other`, and what a later library may add.
        _ => Code::Unknown,
    }
}

impl PartialEq for Status {
    /// Compares all that travels, not the source.
    fn eq(&self, other: &Self) -> bool {
        (self.code, self.executed, self.message(), self.details(), self.metadata())
            == (other.code, other.executed, other.message(), other.details(), other.metadata())
    }
}

impl Eq for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            "" => write!(f, "{}", self.code),
            message => write!(f, "{}: {message}", self.code),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("code", &self.code)
            .field("message", &self.message())
            .field("details", self.details())
            .field("metadata", self.metadata())
            .field("may_have_executed", &self.may_have_executed())
            .finish()
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.call_error().map(|error| error as &(dyn Error + 'static))
    }
}

/// A status is one register pair, so that a `Result` with it stays small.
const _: () = assert!(size_of::<Status>() == 16 && size_of::<Option<Status>>() == 16);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_error_of_the_transport_is_the_source_and_decides_about_execution() {
        let table = [
            (CallError::Cancelled, Code::Cancelled),
            (CallError::TooManyCalls { limit: 1 }, Code::ResourceExhausted),
            (CallError::OverBudget { length: 2, room: 1 }, Code::ResourceExhausted),
            (CallError::MessageTooLarge { length: 2, limit: 1 }, Code::ResourceExhausted),
            (CallError::ResponseTooLarge { length: 2, limit: 1 }, Code::ResourceExhausted),
            (CallError::RequestTooLarge { length: 2 }, Code::ResourceExhausted),
            (CallError::NoSuchPort, Code::Unavailable),
            (CallError::NotSent, Code::Unavailable),
            (CallError::NoEngine, Code::Unavailable),
            (CallError::MayHaveExecuted, Code::Unavailable),
            (CallError::EngineEnded, Code::Unavailable),
            (CallError::Closed, Code::Unavailable),
            (CallError::OtherVersion { ours: 1, theirs: 2 }, Code::FailedPrecondition),
            (CallError::HandlerPanicked, Code::Internal),
            (CallError::OwnService { after: Duration::from_secs(1) }, Code::Internal),
            (CallError::Forked, Code::Internal),
            (CallError::ResponseLost, Code::Unknown),
            (CallError::Other, Code::Unknown),
            (CallError::Forbidden, Code::PermissionDenied),
            (CallError::NoIdentity, Code::FailedPrecondition),
            (CallError::SealedOnly, Code::Unauthenticated),
        ];
        for (error, code) in table {
            let status = Status::from(error.clone());
            assert_eq!(status.code(), code, "{error:?}");
            assert_eq!(status.may_have_executed(), error.may_have_executed(), "{error:?}");
            assert_eq!(status.message(), error.to_string());
            assert_eq!(status.source().map(ToString::to_string), Some(error.to_string()));
        }
    }

    #[test]
    fn a_status_of_a_handler_has_no_source_and_may_have_executed() {
        let status = Status::new(Code::NotFound, "").with_details(&b"x"[..]);
        assert_eq!((status.to_string().as_str(), status.details().len()), ("NOT_FOUND", 1));
        assert!(status.call_error().is_none() && status.may_have_executed());
        assert!(!status.clone().not_executed().may_have_executed());
        assert_ne!(status.clone().not_executed(), status);
    }
}
