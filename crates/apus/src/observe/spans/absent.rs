//! Empty types in place of those of `recorded.rs`, and the behaviour without spans.

use apus_wire::TraceContext;
use bytes::Bytes;

use crate::address::Address;
use crate::error::{CallError, ReplyError};

/// The span of a call.
#[derive(Debug)]
pub(crate) struct CallSpan;

impl CallSpan {
    #[inline]
    pub(crate) fn begin(_: Address, _: usize) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn may_be_wanted() -> bool {
        false
    }

    #[inline]
    pub(crate) const fn none() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn context(&self, given: Option<TraceContext>) -> Option<TraceContext> {
        given
    }

    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) fn note_id(&self, _: impl FnOnce() -> Option<u64>) {}

    #[inline]
    pub(crate) fn end(&self, _: &Result<Bytes, CallError>) {}

    #[inline]
    pub(crate) fn fail(&self, _: &CallError) {}

    #[inline]
    pub(crate) fn give_up(&self) {}
}

/// Stands for the span of a call whose result goes to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpanNumber;

impl SpanNumber {
    pub(crate) const NONE: Self = Self;
}

/// Spans of calls whose results go to a queue.
#[derive(Clone, Debug)]
pub(crate) struct QueuedSpans;

impl QueuedSpans {
    #[inline]
    pub(crate) fn new() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn put(&self, _: CallSpan) -> SpanNumber {
        SpanNumber
    }

    #[inline]
    pub(crate) fn take(&self, _: SpanNumber) -> CallSpan {
        CallSpan
    }

    #[inline]
    pub(crate) fn give_up_all(&self) {}
}

/// The place of a request in a distributed trace.
#[derive(Debug)]
pub(crate) struct RequestTrace(Option<Box<TraceContext>>);

impl RequestTrace {
    #[inline]
    pub(crate) fn new(context: Option<Box<TraceContext>>) -> Self {
        Self(context)
    }

    #[inline]
    pub(crate) fn may_be_wanted() -> bool {
        false
    }

    /// The trace context of the client.
    #[inline]
    pub(crate) fn context(&self) -> Option<TraceContext> {
        self.0.as_deref().copied()
    }

    #[inline]
    pub(crate) fn begin_span(
        &mut self,
        _: Address,
        _: u16,
        _: usize,
        _: impl FnOnce() -> Option<u64>,
    ) {
    }

    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        Scope
    }

    #[inline]
    pub(crate) fn replied(&self, _: usize) {}

    #[inline]
    pub(crate) fn reply_failed(&self, _: &ReplyError) {}

    #[inline]
    pub(crate) fn give_up(&self, _: bool) {}
}

/// The span of a request, to be entered.
#[derive(Debug)]
pub(crate) struct Scope;

impl Scope {
    #[inline]
    pub(crate) fn enter<T>(&self, action: impl FnOnce() -> T) -> T {
        action()
    }
}
