//! Errors of the library as exceptions of `apus.errors`.

use apus::{
    CallError, CloseError, ConfigError, EventLoopError, OpenError, RecvError, ReplyError,
    ResolveError, RuleError, StartError,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

/// An exception of `apus.errors` with its text, and whether the request of the call may have been executed.
fn exception(py: Python<'_>, class: &str, text: &str, facts: Facts<'_>) -> PyErr {
    match build(py, class, text, facts) {
        Ok(error) | Err(error) => error,
    }
}

/// Attributes of an exception.
#[derive(Clone, Copy, Default)]
struct Facts<'a> {
    may_have_executed: bool,
    kind: &'a str,
}

fn build(py: Python<'_>, class: &str, text: &str, facts: Facts<'_>) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("apus.errors").map(Bound::unbind))?;
    let value = module.bind(py).getattr(class)?.call1((text,))?;
    value.setattr(intern!(py, "may_have_executed"), facts.may_have_executed)?;
    value.setattr(intern!(py, "kind"), facts.kind)?;
    Ok(PyErr::from_value(value))
}

/// The name of a variant, which begins its debug text.
fn variant(error: &(impl std::fmt::Debug + ?Sized)) -> String {
    let text = format!("{error:?}");
    let end = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    text[..end].to_owned()
}

/// The exception of a call that has failed.
#[cold]
pub(crate) fn of_call(py: Python<'_>, error: &CallError) -> PyErr {
    let class = match error {
        CallError::Forked => "ForkedError",
        CallError::Closed => "ClosedError",
        CallError::Cancelled => "CallCancelledError",
        CallError::Deadline { .. } => "DeadlineError",
        CallError::PeerTimeout { .. } => "PeerTimeoutError",
        CallError::PeerUnreachable { .. } => "PeerUnreachableError",
        CallError::NoSuchPort => "NoSuchPortError",
        CallError::HandlerPanicked => "HandlerError",
        CallError::ResponseLost | CallError::MayHaveExecuted => "ResponseLostError",
        CallError::TooManyCalls { .. }
        | CallError::OverBudget { .. }
        | CallError::TooManyPeers { .. }
        | CallError::Overloaded { .. } => "OverloadedError",
        CallError::MessageTooLarge { .. }
        | CallError::ResponseTooLarge { .. }
        | CallError::RequestTooLarge { .. }
        | CallError::TooLargeForLinux { .. } => "TooLargeError",
        CallError::Forbidden
        | CallError::WrongPeer(_)
        | CallError::HandshakeFailed { .. }
        | CallError::NoIdentity
        | CallError::NoPlainPeer
        | CallError::PlainOnly
        | CallError::SealedOnly => "IdentityError",
        _ => "CallError",
    };
    let kind = variant(error);
    let facts = Facts { may_have_executed: error.may_have_executed(), kind: &kind };
    exception(py, class, &error.to_string(), facts)
}

/// An error of the library that is no call's.
pub(crate) trait IntoException: std::error::Error + std::fmt::Debug {
    /// The class in `apus.errors`.
    fn class(&self) -> &'static str;

    /// The exception.
    fn exception(&self, py: Python<'_>) -> PyErr {
        let mut text = self.to_string();
        if let Some(source) = self.source() {
            text = format!("{text}: {source}");
        }
        let kind = variant(self);
        exception(py, self.class(), &text, Facts { may_have_executed: false, kind: &kind })
    }
}

/// Implements the trait for an error with the variants `Forked` and others.
macro_rules! forkable {
    ($($error:ident => $class:literal $(, $variant:pat => $other:literal)*;)+) => {
        $(impl IntoException for $error {
            fn class(&self) -> &'static str {
                match self {
                    Self::Forked => "ForkedError",
                    $($variant => $other,)*
                    _ => $class,
                }
            }
        })+
    };
}

forkable! {
    OpenError => "OpenError", Self::Closed => "ClosedError";
    EventLoopError => "OpenError";
    RuleError => "RuleError", Self::Pattern(_) => "ConfigError";
    RecvError => "ApusError", Self::Timeout | Self::Empty => "ReceiveTimeoutError", Self::Closed => "ClosedError";
    ReplyError => "ReplyError", Self::Gone => "ClientGoneError";
    CloseError => "UnfinishedError";
}

impl IntoException for ConfigError {
    fn class(&self) -> &'static str {
        "ConfigError"
    }
}

impl IntoException for StartError {
    fn class(&self) -> &'static str {
        if matches!(self, Self::Config(_)) { "ConfigError" } else { "StartError" }
    }
}

impl IntoException for ResolveError {
    fn class(&self) -> &'static str {
        "ResolveError"
    }
}

/// The exception for a handle whose node was closed.
#[cold]
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    RecvError::Closed.exception(py)
}

/// Converts the errors of the library.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: IntoException> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.exception(py))
    }
}

impl<T> OrRaise<T> for Result<T, CallError> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| of_call(py, &error))
    }
}

/// A misuse that is no error of the library.
#[cold]
pub(crate) fn misuse(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}
