//! The second copy of a call.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::client::attempts::Attempts;
use crate::client::calls::ChannelParts;
use crate::client::channel_counters::count;
use crate::client::endpoint_state::InFlight;
use crate::client::hedge::Hedge;
use crate::client::unary::{UnaryCall, finish};
use crate::response::Response;
use crate::status::Status;
use crate::timer::{Sleep, sleep};
use crate::transport::Outgoing;

/// The second copy of a call: before its time, under way, or none any more.
pub(crate) struct Hedging<'c> {
    hedge: Hedge,
    /// When the first copy was sent.
    begun: Instant,
    /// The endpoint of the first copy.
    first: u32,
    stage: CopyStage<'c>,
}

enum CopyStage<'c> {
    Waits(Sleep),
    Sent(Copied<'c>),
    Over,
}

/// A copy that is under way.
pub(crate) struct Copied<'c> {
    pub(crate) flight: InFlight,
    pub(crate) call: Outgoing<'c>,
}

impl<'c> Hedging<'c> {
    /// The first copy is sent.
    pub(crate) fn begin(
        calls: &'c ChannelParts,
        hedge: Hedge,
        flight: &InFlight,
    ) -> Option<Box<Self>> {
        let now = Instant::now();
        let delay = calls.window()?.begin(hedge, now);
        let stage = delay.map_or(CopyStage::Over, |delay| CopyStage::Waits(sleep(delay)));
        Some(Box::new(Self { hedge, begun: now, first: flight.state.number, stage }))
    }

    /// The first copy has ended. Returns the second one if it is under way.
    pub(crate) fn first_ended(self, calls: &ChannelParts) -> Option<Copied<'c>> {
        let now = Instant::now();
        if let Some(mut window) = calls.window() {
            window.ended(now.duration_since(self.begun), now);
        }
        match self.stage {
            CopyStage::Sent(copied) => Some(copied),
            _ => None,
        }
    }

    /// The second copy has answered, and the first one is given up.
    pub(crate) fn first_given_up(&self, calls: &ChannelParts) {
        let now = Instant::now();
        if let Some(mut window) = calls.window() {
            window.given_up(now.duration_since(self.begun), now);
        }
    }

    /// Ready with the result of the second copy. Sends it when its time has come.
    pub(crate) fn poll(
        &mut self,
        call: &mut UnaryCall<'c>,
        attempts: &Attempts,
        task: &mut Context<'_>,
    ) -> Poll<(InFlight, Result<Response, Status>)> {
        if let CopyStage::Waits(delay) = &mut self.stage {
            if Pin::new(delay).poll(task).is_pending() {
                return Poll::Pending;
            }
            self.stage = self.send(call, attempts).map_or(CopyStage::Over, CopyStage::Sent);
        }
        let CopyStage::Sent(copied) = &mut self.stage else { return Poll::Pending };
        let Poll::Ready(result) = Pin::new(&mut copied.call).poll(task) else {
            return Poll::Pending;
        };
        let CopyStage::Sent(copied) = std::mem::replace(&mut self.stage, CopyStage::Over) else {
            unreachable!("the stage is Sent")
        };
        Poll::Ready((copied.flight, finish(call.calls(), result)))
    }

    /// The second copy, unless there are too many or no other endpoint.
    fn send(&self, call: &mut UnaryCall<'c>, attempts: &Attempts) -> Option<Copied<'c>> {
        let calls = call.calls();
        let mut attempts = *attempts;
        attempts.tried.add(self.first);
        let may_copy = calls.endpoints.has_untried(&attempts.tried)
            && calls.throttle.allows()
            && calls.window()?.copy(self.hedge, Instant::now());
        if !may_copy {
            return None;
        }
        let (flight, call) = call.attempt(&attempts).ok()?;
        count(&calls.endpoints.counters.copies);
        Some(Copied { flight, call: call.into_future() })
    }
}
