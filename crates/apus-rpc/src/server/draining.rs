//! The orderly end of a server.

use std::future::{self, Future};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use crate::server::intake::Intake;
use crate::timer::sleep;

/// Handlers that a server had when its end began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) finished: usize,
    pub(crate) cancelled: usize,
}

/// Waits for the sign to end, then for the handlers, for at most this time. New requests are refused meanwhile.
pub(crate) async fn drain(
    intake: Arc<Intake>,
    shutdown: impl Future<Output = ()>,
    at_most: Duration,
) -> Ended {
    shutdown.await;
    intake.at_end.iter().for_each(|call| call());
    intake.draining.store(true, Ordering::SeqCst);
    let before = intake.in_service.admission.in_service();
    idle_within(&intake, at_most).await;
    let counters = &intake.in_service.counters;
    let given_up = counters.given_up();
    intake.in_service.cancel();
    idle_within(&intake, CANCELLED_MAX).await;
    let given_up = usize::try_from(counters.given_up() - given_up).unwrap_or(usize::MAX);
    let cancelled = given_up + intake.in_service.admission.in_service();
    Ended { finished: before.saturating_sub(cancelled), cancelled }
}

/// Waits until no request is in service, for at most this time.
async fn idle_within(intake: &Intake, at_most: Duration) {
    let (mut idle, mut time) = (pin!(intake.in_service.admission.idle()), pin!(sleep(at_most)));
    future::poll_fn(|task| match idle.as_mut().poll(task) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => time.as_mut().poll(task),
    })
    .await;
}

/// Bounds the wait for handlers that were given up. A handler ends at its next await, and one that blocks its thread is left.
const CANCELLED_MAX: Duration = Duration::from_secs(1);
