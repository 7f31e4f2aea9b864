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
    intake.draining.store(true, Ordering::SeqCst);
    let before = intake.admission.in_service();
    let (mut idle, mut time) = (pin!(intake.admission.idle()), pin!(sleep(at_most)));
    future::poll_fn(|task| match idle.as_mut().poll(task) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => time.as_mut().poll(task),
    })
    .await;
    let cancelled = intake.in_service.cancel();
    Ended { finished: before.saturating_sub(cancelled), cancelled }
}
