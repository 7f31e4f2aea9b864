//! The list of calls that wait for room.

use std::collections::VecDeque;

use apus_proto::{CallOptions, SocketKey, Time};
use bytes::Bytes;

use crate::address::Address;
use crate::delivery::parker::Waiter;
use crate::error::CallError;
use crate::mail::CallKey;

/// Calls of an engine that wait for room, in the order in which they were made.
#[derive(Default)]
pub(super) struct WaitingCalls {
    pub(super) calls: VecDeque<WaitingCall>,
    /// Tasks that are to be woken when no call waits any more.
    pub(super) tasks: Vec<Waiter>,
    /// Calls that had ended, and bytes that were charged, when they were last tried.
    pub(super) tried: (u64, u64),
    /// When something last went on, and what had gone on by then.
    pub(super) progress: (Time, u64),
}

pub(super) struct WaitingCall {
    pub(super) call: CallKey,
    pub(super) socket: SocketKey,
    pub(super) to: Address,
    pub(super) body: Bytes,
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
