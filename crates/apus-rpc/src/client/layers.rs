//! Layers of tower around the calls of a channel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};

use tower::Service;
use tower::util::BoxCloneSyncService;

use crate::client::calls::ChannelParts;
use crate::client::outgoing_request::OutgoingRequest;
use crate::client::unary::UnaryCall;
use crate::client::unary_future::UnaryFuture;
use crate::code::Code;
use crate::layering::{LayerError, LayerOnce, Layered, around};
use crate::response::Response;
use crate::status::Status;

/// The attempts of a call, within all layers.
#[derive(Clone)]
struct Attempted {
    /// The channel has the layers.
    calls: Weak<ChannelParts>,
}

impl Service<OutgoingRequest> for Attempted {
    type Response = Response;
    type Error = LayerError;
    type Future = Pin<Box<dyn Future<Output = Result<Response, LayerError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: OutgoingRequest) -> Self::Future {
        let calls = self.calls.upgrade();
        Box::pin(async move {
            let gone = || Status::new(Code::Unavailable, "the channel was dropped").not_executed();
            let calls = calls.ok_or_else(gone)?;
            let passed = request.passed.clone();
            passed.note();
            let result = UnaryFuture::within_layers(UnaryCall::of_request(&calls, request)).await;
            passed.note_end(&result);
            Ok(result?)
        })
    }
}

/// The calls of a channel within its layers.
pub(crate) fn calls_within(
    layers: Vec<LayerOnce<OutgoingRequest>>,
    calls: Weak<ChannelParts>,
) -> Layered<OutgoingRequest> {
    around(BoxCloneSyncService::new(Attempted { calls }), layers)
}
