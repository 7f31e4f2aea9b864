//! The list of calls that wait for room.

use std::collections::VecDeque;

use apus_proto::{Body, CallOptions, SocketKey, Time};

use crate::address::Address;
use crate::delivery::parker::Waiter;
use crate::error::CallError;
use crate::mail::CallKey;

/// Calls of an engine that wait for room, in the order in which they were made.
#[derive(Default)]
pub(super) struct WaitingCalls {
    pub(super) calls: VecDeque<WaitingCall>,
    /// Tasks to wake when the last call has stopped waiting.
    pub(super) tasks: Vec<Waiter>,
    /// Number of ended calls, and charged bytes, at the last attempt.
    pub(super) tried: (u64, u64),
    /// The time of the last progress, and the progress by then.
    pub(super) progress: (Time, u64),
}

pub(super) struct WaitingCall {
    pub(super) call: CallKey,
    pub(super) socket: SocketKey,
    pub(super) to: Address,
    pub(super) body: Body,
    pub(super) options: CallOptions,
    /// Why it could not begin.
    pub(super) refusal: CallError,
}

impl WaitingCalls {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}
