//! No spans. The types of `recorded.rs`, and what happens without spans.

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
    pub(crate) fn context(&self, given: Option<TraceContext>) -> Option<TraceContext> {
        given
    }

    #[inline]
    pub(crate) fn wants_id(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) fn note_id(&self, _: Option<u64>) {}

    #[inline]
    pub(crate) fn end(&self, _: &Result<Bytes, CallError>) {}

    #[inline]
    pub(crate) fn fail(&self, _: &CallError) {}

    #[inline]
    pub(crate) fn give_up(&self) {}
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
    pub(crate) fn put(&self, _: CallSpan, cookie: u64) -> u64 {
        cookie
    }

    #[inline]
    pub(crate) fn take(&self, cookie: u64) -> (CallSpan, u64) {
        (CallSpan, cookie)
    }

    #[inline]
    pub(crate) fn note_id(&self, _: u64, _: impl FnOnce() -> Option<u64>) {}

    #[inline]
    pub(crate) fn give_up_all(&self) {}
}

/// The span of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestSpan;

impl RequestSpan {
    #[inline]
    pub(crate) fn none() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn begin(_: Address, _: u16, _: usize, _: Option<TraceContext>) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn wants_id(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) fn set_id(&self, _: Option<u64>) {}

    #[inline]
    pub(crate) fn in_scope<T>(&self, action: impl FnOnce() -> T) -> T {
        action()
    }

    #[inline]
    pub(crate) fn replied(&self, _: usize) {}

    #[inline]
    pub(crate) fn reply_failed(&self, _: &ReplyError) {}

    #[inline]
    pub(crate) fn give_up(&self) {}
}
