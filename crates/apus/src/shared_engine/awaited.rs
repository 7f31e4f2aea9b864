//! Waiting for the engine of another process.

use apus_proto::SocketKey;

use crate::delivery::parker::{Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::Engine;
use crate::mail::Mail;
use crate::shared_engine::attached::Attached;

/// Waits until the function finds what it looks for.
pub(crate) struct AwaitEngine<F>(pub(crate) F);

impl<T, F: FnMut(&mut Attached) -> Option<T>> Awaited for AwaitEngine<F> {
    type Output = T;

    fn take(&mut self, engine: &mut Engine) -> Option<T> {
        (self.0)(engine.attached()?)
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        if let Some(attached) = engine.attached() {
            attached.waiters.push(waiter);
        }
    }

    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool {
        let Some(attached) = engine.attached() else { return true };
        let before = attached.waiters.len();
        attached.waiters.retain(|waiter| waiter.id() != id);
        attached.waiters.len() == before
    }

    fn socket(&self) -> Option<SocketKey> {
        None
    }

    fn spin<'m>(&self, _mail: &'m mut Mail) -> Option<&'m mut Spin> {
        None
    }
}
