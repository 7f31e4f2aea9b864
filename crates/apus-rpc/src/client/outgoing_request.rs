//! A call with one request and one response on its way through layers.

use std::fmt;
use std::time::{Duration, Instant};

use apus::{Bytes, TraceContext};

use crate::client::retry::MethodConfig;
use crate::envelope::MethodPath;
use crate::layering::Passed;
use crate::metadata::Metadata;
use crate::observe::PassingCall;

/// A call on its way through the layers of a channel. A copy that passes the layers is a call of its own.
#[derive(Clone)]
pub struct OutgoingRequest {
    pub(crate) path: MethodPath,
    pub(crate) metadata: Metadata,
    pub(crate) message: Bytes,
    pub(crate) until: Option<Instant>,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) has_own_trace: bool,
    pub(crate) config: MethodConfig,
    pub(crate) waits_for_ready: Option<bool>,
    pub(crate) is_idempotent: bool,
    pub(crate) passed: Passed,
    pub(crate) observed: PassingCall,
}

impl OutgoingRequest {
    /// The path of the method.
    #[must_use]
    pub fn path(&self) -> &MethodPath {
        &self.path
    }

    /// The metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The metadata, to be changed before it is sent.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Bytes {
        &self.message
    }

    /// The message, to be changed before it is sent.
    pub fn message_mut(&mut self) -> &mut Bytes {
        &mut self.message
    }

    /// The time until the deadline of the call, if it has one; zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether the method may be executed more than once ([`UnaryCall::idempotent`](crate::UnaryCall::idempotent)).
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }
}

impl fmt::Debug for OutgoingRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingRequest")
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .field("length", &self.message.len())
            .finish_non_exhaustive()
    }
}
