//! What the calls of a channel share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_task::FallibleTask;

use crate::client::endpoint_set::EndpointSet;
use crate::client::hedge::Hedge;
use crate::client::hedge_window::HedgeWindow;
#[cfg(feature = "tower")]
use crate::client::outgoing_request::OutgoingRequest;
use crate::client::retry::Retry;
use crate::client::throttle::Throttle;
use crate::envelope::{EnvelopeLimits, MethodPath, Refusals};
#[cfg(feature = "tower")]
use crate::layering::{LayerOnce, Layered};
use crate::metadata::Metadata;
use crate::status::Status;
use crate::transport::Caller;

/// The port and the endpoints of a channel, and what its calls share.
pub(crate) struct ChannelParts {
    pub(crate) caller: Caller,
    pub(crate) endpoints: Arc<EndpointSet>,
    pub(crate) limits: EnvelopeLimits,
    pub(crate) refusals: Refusals,
    pub(crate) waits_for_ready: bool,
    pub(crate) retry: Retry,
    pub(crate) throttle: Throttle,
    /// Of idempotent calls.
    pub(crate) hedge: Option<Hedge>,
    window: Option<Mutex<HedgeWindow>>,
    interceptors: Arc<[Interceptor]>,
    #[cfg(feature = "tower")]
    pub(crate) layers: Option<Layered<OutgoingRequest>>,
    next_id: AtomicU64,
    /// Ends when it is dropped.
    _upkeep: Option<FallibleTask<()>>,
}

/// The options of a channel that its calls need.
pub(crate) struct CallDefaults {
    pub(crate) limits: EnvelopeLimits,
    pub(crate) interceptors: Arc<[Interceptor]>,
    pub(crate) waits_for_ready: bool,
    pub(crate) retry: Retry,
    pub(crate) hedge: Option<Hedge>,
    #[cfg(feature = "tower")]
    pub(crate) layers: Vec<LayerOnce<OutgoingRequest>>,
}

impl CallDefaults {
    pub(crate) fn new() -> Self {
        Self {
            limits: EnvelopeLimits::new(),
            interceptors: Arc::new([]),
            waits_for_ready: false,
            retry: Retry::new(),
            hedge: None,
            #[cfg(feature = "tower")]
            layers: Vec::new(),
        }
    }
}

/// A request of a channel before it is sent, for an interceptor.
pub struct OutgoingCall<'a> {
    path: &'a MethodPath,
    metadata: &'a mut Metadata,
}

/// Sees a request before it is sent, and may refuse it.
pub(crate) type Interceptor =
    Box<dyn Fn(&mut OutgoingCall<'_>) -> Result<(), Status> + Send + Sync>;

impl ChannelParts {
    pub(crate) fn new(
        caller: Caller,
        endpoints: Arc<EndpointSet>,
        first_id: u64,
        defaults: CallDefaults,
        upkeep: Option<FallibleTask<()>>,
    ) -> Self {
        let CallDefaults { limits, interceptors, waits_for_ready, retry, hedge, .. } = defaults;
        let hedges = hedge.is_some() || retry.hedges();
        Self {
            caller,
            endpoints,
            limits,
            refusals: Refusals::default(),
            waits_for_ready,
            throttle: Throttle::new(retry.tokens),
            retry,
            hedge,
            window: hedges.then(|| Mutex::new(HedgeWindow::new(Instant::now()))),
            interceptors,
            #[cfg(feature = "tower")]
            layers: None,
            next_id: AtomicU64::new(first_id),
            _upkeep: upkeep,
        }
    }

    /// The id of the next call.
    //= docs/rpc-wire.md#E7
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// The calls and copies of the last seconds, if calls may have second copies.
    pub(crate) fn window(&self) -> Option<MutexGuard<'_, HedgeWindow>> {
        Some(self.window.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
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
