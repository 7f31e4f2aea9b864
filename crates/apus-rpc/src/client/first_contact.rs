//! First contact with one of several addresses.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use apus::{Address, CallError, Client, ConnectFuture};

use crate::client::endpoint_set::EndpointSet;
use crate::timer::{Sleep, sleep};

/// Time after which the next address is contacted as well, as clients with several addresses do (RFC 8305).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Contacts the endpoints in order, 250 ms apart or when one fails, until one is reached. Those before it are passed over.
pub(crate) async fn reach(client: &Client, set: &EndpointSet) -> Result<(), CallError> {
    let addresses = set.addresses();
    let mut contact = Contact {
        client,
        addresses: &addresses,
        next: 0,
        begun: Vec::new(),
        time: None,
        failure: None,
    };
    let reached = poll_fn(|task| contact.poll(task)).await?;
    addresses.iter().take_while(|address| **address != reached).for_each(|it| set.pass_over(*it));
    Ok(())
}

struct Contact<'a> {
    client: &'a Client,
    addresses: &'a [Address],
    /// The first address that was not contacted yet.
    next: usize,
    begun: Vec<(Address, ConnectFuture<'a>)>,
    time: Option<Sleep>,
    failure: Option<CallError>,
}

impl Contact<'_> {
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Result<Address, CallError>> {
        loop {
            let mut index = 0;
            while let Some((address, contact)) = self.begun.get_mut(index) {
                match Pin::new(contact).poll(task) {
                    Poll::Ready(Ok(())) => return Poll::Ready(Ok(*address)),
                    Poll::Ready(Err(error)) => {
                        self.failure = Some(error);
                        drop(self.begun.swap_remove(index));
                        self.time = None;
                    }
                    Poll::Pending => index += 1,
                }
            }
            let waits = match &mut self.time {
                Some(time) => Pin::new(time).poll(task).is_pending(),
                None => false,
            };
            if waits {
                return Poll::Pending;
            }
            let Some(&address) = self.addresses.get(self.next) else {
                return match self.failure.take() {
                    Some(failure) if self.begun.is_empty() => Poll::Ready(Err(failure)),
                    failure => {
                        self.failure = failure;
                        Poll::Pending
                    }
                };
            };
            self.next += 1;
            self.begun.push((address, self.client.connect(address).into_future()));
            self.time = (self.next < self.addresses.len()).then(|| sleep(NEXT_AFTER));
        }
    }
}
