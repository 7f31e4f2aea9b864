//! The task of a channel that follows its resolver, and asks ejected endpoints whether they are back.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use apus::{Address, Client};

use crate::client::channel_counters::count;
use crate::client::endpoint_set::EndpointSet;
use crate::client::health_watch::HealthWatch;
use crate::client::resolve::EndpointStream;
use crate::code::Code;
use crate::envelope::{self, EnvelopeLimits, MethodPath, ResponseHead};
use crate::health::{CHECK, encode_request};
use crate::metadata::Metadata;
use crate::status::Execution;
use crate::timer::{Sleep, sleep};

/// Time for which an answer is awaited.
const ANSWER_MAX: Duration = Duration::from_secs(1);

type Watching<'c> = Pin<Box<dyn Future<Output = ()> + Send + 'c>>;

type Asking<'c> = Pin<Box<dyn Future<Output = bool> + Send + 'c>>;

/// Runs until it is dropped.
pub(crate) async fn keep(
    set: Arc<EndpointSet>,
    client: Client,
    lists: EndpointStream,
    health: Option<HealthWatch>,
    id: u64,
) {
    let mut upkeep = Upkeep {
        set: &set,
        client: &client,
        lists: Some(lists),
        health: health.as_ref(),
        id,
        watching: BTreeMap::new(),
        asking: Vec::new(),
        time: None,
    };
    upkeep.watch_endpoints();
    poll_fn(|task| upkeep.poll(task)).await
}

struct Upkeep<'a> {
    set: &'a EndpointSet,
    client: &'a Client,
    lists: Option<EndpointStream>,
    /// Watches the health of a service.
    health: Option<&'a HealthWatch>,
    /// Of the next question.
    id: u64,
    /// The watches of endpoints.
    watching: BTreeMap<Address, Watching<'a>>,
    asking: Vec<(Address, Asking<'a>)>,
    time: Option<(Instant, Sleep)>,
}

impl Upkeep<'_> {
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<()> {
        self.set.wake_when_ejected(task.waker());
        self.follow(task);
        for watching in self.watching.values_mut() {
            let _ = watching.as_mut().poll(task);
        }
        loop {
            while let Some(address) = self.set.due(Instant::now()) {
                let asking = Box::pin(ask(self.client, address, self.id));
                self.id = self.id.wrapping_add(1);
                self.asking.push((address, asking));
            }
            let set = self.set;
            self.asking.retain_mut(|(address, asking)| match asking.as_mut().poll(task) {
                Poll::Ready(serves) => {
                    set.asked(*address, serves, Instant::now());
                    false
                }
                Poll::Pending => true,
            });
            if self.waits(task) {
                return Poll::Pending;
            }
        }
    }

    /// Takes the lists that are there.
    fn follow(&mut self, task: &mut Context<'_>) {
        while let Some(lists) = &mut self.lists {
            match lists.as_mut().poll_next(task) {
                Poll::Ready(Some(Ok(list))) => {
                    count(&self.set.counters.lists);
                    self.set.update(list);
                    self.watch_endpoints();
                }
                Poll::Ready(Some(Err(_))) => count(&self.set.counters.list_errors),
                Poll::Ready(None) => self.lists = None,
                Poll::Pending => return,
            }
        }
    }

    /// Begins to watch endpoints that are new in the list, and ends the watches of those that have left it.
    fn watch_endpoints(&mut self) {
        let Some(health) = self.health else { return };
        let addresses = self.set.addresses();
        self.watching.retain(|address, _| addresses.contains(address));
        for address in addresses {
            // Ids of the watches are far from those of other calls.
            self.id = self.id.wrapping_add(1 << 32);
            let (set, id) = (self.set, self.id);
            let watch = || Box::pin(health.watch(set, self.client.clone(), address, id)) as _;
            self.watching.entry(address).or_insert_with(watch);
        }
    }

    /// Whether no endpoint is to be asked now. The task is woken when one is.
    fn waits(&mut self, task: &mut Context<'_>) -> bool {
        let Some(next) = self.set.next_due() else {
            self.time = None;
            return true;
        };
        if self.time.as_ref().is_none_or(|(time, _)| *time != next) {
            self.time = Some((next, sleep(next.saturating_duration_since(Instant::now()))));
        }
        let (_, time) = self.time.as_mut().expect("it is set above");
        let is_over = Pin::new(time).poll(task).is_ready();
        if is_over {
            self.time = None;
        }
        !is_over
    }
}

/// Whether an endpoint serves. Any answer but UNAVAILABLE shows that: it need not have the method.
async fn ask(client: &Client, address: Address, id: u64) -> bool {
    let path = MethodPath::new(CHECK).expect("a path");
    // The health of the whole server.
    let question = encode_request("");
    let mut message = envelope::encode_open(id, true, &path, &Metadata::new(), question.len());
    message.extend_from_slice(&question);
    let Ok(answer) = client.call(address, message).deadline(ANSWER_MAX).await else { return false };
    let Ok((head, _)) = ResponseHead::decode(&answer, &EnvelopeLimits::new()) else { return true };
    head.end.is_none_or(|end| {
        end.code() != Code::Unavailable && end.execution() != Execution::NoneByDraining
    })
}
