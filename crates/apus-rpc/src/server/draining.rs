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
    let admission = &intake.in_service.admission;
    let before = admission.in_service();
    intake.at_end.iter().for_each(|call| call());
    intake.draining.store(true, Ordering::SeqCst);
    within(admission.idle(), at_most).await;
    within(admission.idle_built_in(), at_most.min(WATCHES_MAX)).await;
    let given_up = admission.given_up();
    intake.in_service.cancel();
    within(admission.idle(), CANCELLED_MAX).await;
    let cancelled = admission.given_up() - given_up + admission.in_service();
    Ended { finished: before.saturating_sub(cancelled), cancelled }
}

/// Waits for at most this time.
async fn within(idle: impl Future<Output = ()>, at_most: Duration) {
    let (mut idle, mut time) = (pin!(idle), pin!(sleep(at_most)));
    future::poll_fn(|task| match idle.as_mut().poll(task) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => time.as_mut().poll(task),
    })
    .await;
}

/// Bounds the wait for watchers of the health, which have got their last status. Their clients may read it late, or never.
const WATCHES_MAX: Duration = Duration::from_secs(1);

/// Bounds the wait for handlers that were given up. A handler ends at its next await, and one that blocks its thread is left.
const CANCELLED_MAX: Duration = Duration::from_secs(1);
