//! What the calls of a channel share.

use std::sync::atomic::{AtomicU64, Ordering};

use apus::Address;

use crate::envelope::{EnvelopeLimits, MethodPath, Refusals};
use crate::metadata::Metadata;
use crate::status::Status;
use crate::transport::Caller;

/// The port and the peer of a channel, and what its calls share.
pub(crate) struct Calls {
    pub(crate) caller: Caller,
    pub(crate) to: Address,
    pub(crate) limits: EnvelopeLimits,
    pub(crate) refusals: Refusals,
    interceptors: Vec<Interceptor>,
    next_id: AtomicU64,
}

/// A request of a channel before it is sent, for an interceptor.
pub struct OutgoingCall<'a> {
    path: &'a MethodPath,
    metadata: &'a mut Metadata,
}

/// Sees a request before it is sent, and may refuse it.
pub(crate) type Interceptor =
    Box<dyn Fn(&mut OutgoingCall<'_>) -> Result<(), Status> + Send + Sync>;

impl Calls {
    pub(crate) fn new(
        caller: Caller,
        to: Address,
        first_id: u64,
        limits: EnvelopeLimits,
        interceptors: Vec<Interceptor>,
    ) -> Self {
        let (refusals, next_id) = (Refusals::default(), AtomicU64::new(first_id));
        Self { caller, to, limits, refusals, interceptors, next_id }
    }

    /// The id of the next call.
    //= docs/rpc-wire.md#E7
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Shows a request to the interceptors.
    pub(crate) fn intercept(
        &self,
        path: &MethodPath,
        metadata: &mut Metadata,
    ) -> Result<(), Status> {
        let mut call = OutgoingCall { path, metadata };
        self.interceptors.iter().try_for_each(|interceptor| interceptor(&mut call))
    }
}

impl OutgoingCall<'_> {
    /// The path of the method.
    #[must_use]
    pub fn path(&self) -> &MethodPath {
        self.path
    }

    /// The metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// The metadata, to be changed before it is sent.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata
    }
}
