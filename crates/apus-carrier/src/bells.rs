//! Sockets by which programs and the carrier wake each other. A program connects one for each connection that it introduces, in
//! addition to the socket of the introduction.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Sockets `B` that have arrived, and awaited ones, by the number that both sockets of a connection carry.
pub(crate) struct Bells<B> {
    state: Mutex<HashMap<u128, Rendezvous<B>>>,
}

enum Rendezvous<B> {
    Came(B),
    Awaited(Waker),
}

impl<B> Bells<B> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, HashMap<u128, Rendezvous<B>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket that has arrived, and wakes its waiter.
    pub(crate) fn bring(&self, number: u128, bell: B) {
        let before = self.state().insert(number, Rendezvous::Came(bell));
        if let Some(Rendezvous::Awaited(waker)) = before {
            waker.wake();
        }
    }

    /// Removes a socket that was not taken.
    pub(crate) fn forget(&self, number: u128) {
        let forgotten = self.state().remove(&number);
        drop(forgotten); // The socket is closed outside the lock.
    }

    /// The socket with this number, once it has arrived.
    pub(crate) fn bell(&self, number: u128) -> impl Future<Output = B> + Send + '_
    where
        B: Send,
    {
        poll_fn(move |context| {
            let mut state = self.state();
            match state.remove(&number) {
                Some(Rendezvous::Came(bell)) => Poll::Ready(bell),
                Some(Rendezvous::Awaited(_)) | None => {
                    state.insert(number, Rendezvous::Awaited(context.waker().clone()));
                    Poll::Pending
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn a_bell_may_come_before_it_is_waited_for_and_after() {
        let (bells, mut context) = (Bells::new(), Context::from_waker(Waker::noop()));
        bells.bring(1, "one");
        assert_eq!(pin!(bells.bell(1)).poll(&mut context), Poll::Ready("one"));
        let mut two = pin!(bells.bell(2));
        assert_eq!(two.as_mut().poll(&mut context), Poll::Pending);
        bells.bring(2, "two");
        assert_eq!(two.as_mut().poll(&mut context), Poll::Ready("two"));
        bells.bring(3, "three");
        bells.forget(3);
        assert_eq!(pin!(bells.bell(3)).poll(&mut context), Poll::Pending);
    }
}
