//! The task of a channel that follows its resolver, and asks ejected endpoints whether they are back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use apus::{Address, Client};

use crate::client::channel_counters::count;
use crate::client::endpoint_set::EndpointSet;
use crate::client::resolve::EndpointStream;
use crate::code::Code;
use crate::envelope::{self, EnvelopeLimits, MethodPath, ResponseHead};
use crate::metadata::Metadata;
use crate::status::Execution;
use crate::timer::{Sleep, sleep};

/// The method by which an ejected endpoint is asked. Any answer but UNAVAILABLE shows that it serves: it need not have the
/// method.
const QUESTION: &str = "/grpc.health.v1.Health/Check";

/// An empty message as gRPC frames it: the health of the whole server.
const ALL_SERVICES: [u8; 5] = [0; 5];

/// Time for which an answer is awaited.
const ANSWER_MAX: Duration = Duration::from_secs(1);

type Asking<'c> = Pin<Box<dyn Future<Output = bool> + Send + 'c>>;

/// Runs until it is dropped.
pub(crate) async fn keep(set: Arc<EndpointSet>, client: Client, lists: EndpointStream, id: u64) {
    let mut upkeep = Upkeep {
        set: &set,
        client: &client,
        lists: Some(lists),
        id,
        asking: Vec::new(),
        time: None,
    };
    poll_fn(|task| upkeep.poll(task)).await
}

struct Upkeep<'a> {
    set: &'a EndpointSet,
    client: &'a Client,
    lists: Option<EndpointStream>,
    /// Of the next question.
    id: u64,
    asking: Vec<(Address, Asking<'a>)>,
    time: Option<(Instant, Sleep)>,
}

impl Upkeep<'_> {
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<()> {
        self.set.wake_when_ejected(task.waker());
        self.follow(task);
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
                }
                Poll::Ready(Some(Err(_))) => count(&self.set.counters.list_errors),
                Poll::Ready(None) => self.lists = None,
                Poll::Pending => return,
            }
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

/// Whether an endpoint serves.
async fn ask(client: &Client, address: Address, id: u64) -> bool {
    let path = MethodPath::new(QUESTION).expect("a path");
    let mut message = envelope::encode_open(id, true, &path, &Metadata::new(), ALL_SERVICES.len());
    message.extend_from_slice(&ALL_SERVICES);
    let Ok(answer) = client.call(address, message).deadline(ANSWER_MAX).await else { return false };
    let Ok((head, _)) = ResponseHead::decode(&answer, &EnvelopeLimits::new()) else { return true };
    head.end.is_none_or(|end| {
        end.code() != Code::Unavailable && end.execution() != Execution::NoneByDraining
    })
}
