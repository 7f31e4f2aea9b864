//! Empty types in place of those of `recorded.rs`.

use apus::{Address, TraceContext};

use crate::code::Code;
use crate::envelope::MethodPath;
use crate::transport::Incoming;

/// A call of a channel.
#[derive(Debug)]
pub(crate) struct ClientCall;

impl ClientCall {
    #[inline]
    pub(crate) const fn none() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn begin(_: &MethodPath, _: bool) -> Self {
        Self
    }

    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn passing(&self) -> PassingCall {
        PassingCall
    }

    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn of_passing(_: PassingCall) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        Scope
    }

    #[inline]
    pub(crate) fn trace(&self, inherited: Option<TraceContext>) -> Option<TraceContext> {
        inherited
    }

    #[inline]
    pub(crate) fn note_server(&self, _: Address) {}

    #[inline]
    pub(crate) fn end(&self, _: Code) {}
}

/// A call of a channel on its way through layers.
#[cfg(feature = "tower")]
#[derive(Clone, Debug)]
pub(crate) struct PassingCall;

/// The span of a call, to be entered.
pub(crate) struct Scope;

impl Scope {
    #[inline]
    pub(crate) fn enter<T>(self, run: impl FnOnce() -> T) -> T {
        run()
    }
}

/// A request of a server with its handler.
#[derive(Debug)]
pub(crate) struct ServerCall;

impl ServerCall {
    #[inline]
    pub(crate) fn begin(_: &MethodPath, _: &Incoming) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn set_named(&self, _: bool) {}

    #[inline]
    pub(crate) fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        run()
    }

    #[inline]
    pub(crate) fn end(&self, _: Code) {}
}

#[inline]
pub(crate) fn refused(_: Option<&MethodPath>, _: Code) {}

#[inline]
pub(crate) fn describe() {}
