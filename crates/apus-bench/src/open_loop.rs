//! The open loop: calls start at times drawn beforehand, independent of earlier calls, and latency counts from those times.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use apus_load::{BySize, Lateness, Workload};

use crate::calls::{Calls, OutstandingCall};
use crate::closed_loop::Tally;
use apus_load::stop;
use apus_node::pace::{Pace, nanos_since};
use apus_node::transport::interface::{Client, Ended};

/// Upper bound on calls started in one turn before replies are taken, so that a backlog does not delay replies.
const STARTS_PER_TURN: usize = 32;

/// Upper bound on outstanding calls. A transport that falls further behind only makes the generator late.
const OUTSTANDING_MAX: u32 = 1 << 20;

/// Time after the last start in which replies may arrive.
const DRAIN: Duration = Duration::from_secs(2);

/// The offered load.
#[derive(Clone, Debug)]
pub(crate) struct OfferedLoad {
    /// Lengths of requests.
    pub(crate) workload: Workload,
    /// Length of replies, as in [`Request::reply`](apus_node::transport::interface::Request::reply).
    pub(crate) reply: u32,
    /// Message bytes of requests per second, in gigabits.
    pub(crate) gbps: f64,
    /// The counted time.
    pub(crate) duration: Duration,
    /// Time of load before the counted time.
    pub(crate) warm_up: Duration,
    /// Seed of arrivals and lengths.
    pub(crate) seed: u64,
    /// Whether to yield the core while idle.
    pub(crate) yields: bool,
}

impl OfferedLoad {
    /// Whether a call due at `intended_ns` is after the warm-up.
    fn counts(&self, intended_ns: u64) -> bool {
        u128::from(intended_ns) >= self.warm_up.as_nanos()
    }
}

/// The results, without the warm-up.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenLoopResult {
    /// Latency from the intended start, by size of request.
    pub(crate) by_size: BySize,
    /// Lateness against the schedule.
    pub(crate) lateness: Lateness,
    /// Calls with a reply, and the time from the end of the warm-up to the last start.
    pub(crate) tally: Tally,
    /// Calls without a reply at the end.
    pub(crate) unfinished: u64,
}

impl OpenLoopResult {
    /// Records the calls that ended.
    fn note(
        &mut self,
        offer: &OfferedLoad,
        calls: &mut Calls,
        ended: &mut Vec<Ended>,
        start: Instant,
    ) -> Result<()> {
        if ended.is_empty() {
            return Ok(());
        }
        let now_ns = nanos_since(start);
        for reply in ended.drain(..) {
            let reply = reply?;
            let Some(OutstandingCall { request, started_ns }) = calls.finish(reply)? else {
                bail!("a reply with tag {:#x} belongs to no outstanding call", reply.tag);
            };
            if offer.counts(started_ns) {
                self.tally.calls += 1;
                self.tally.request_bytes += u64::from(request.length);
                self.by_size.record(request.length, now_ns - started_ns);
            }
        }
        Ok(())
    }
}

/// Offers a load to a transport.
///
/// # Errors
/// If the transport fails or a reply is wrong. Calls without a reply are counted and are not an error.
pub(crate) fn offer(client: &mut dyn Client, offer: &OfferedLoad) -> Result<OpenLoopResult> {
    let mut pace = Pace::for_throughput(offer.gbps, offer.workload.mean(None), offer.seed)?;
    let seed = offer.seed ^ 0x5eed;
    let mut calls = Calls::new(offer.workload.clone(), offer.reply, OUTSTANDING_MAX, seed);
    let mut outcome = OpenLoopResult::default();
    let mut ended = Vec::with_capacity(1024);
    let (start, end) = (Instant::now(), offer.warm_up + offer.duration);
    while start.elapsed() < end {
        stop::check()?;
        pace.start_due(STARTS_PER_TURN, start, |due| {
            let has_begun = calls.begin(client, due.at_ns)?;
            if has_begun && offer.counts(due.at_ns) {
                outcome.lateness.record(due.at_ns, due.now_ns);
            }
            Ok(has_begun)
        })?;
        client.receive(Duration::ZERO, &mut ended)?;
        if ended.is_empty() && offer.yields {
            std::thread::yield_now();
        }
        outcome.note(offer, &mut calls, &mut ended, start)?;
    }
    outcome.tally.elapsed = start.elapsed() - offer.warm_up;
    while calls.outstanding() > 0 && start.elapsed() < end + DRAIN {
        client.receive(Duration::ZERO, &mut ended)?;
        outcome.note(offer, &mut calls, &mut ended, start)?;
    }
    let left = calls.take_all();
    outcome.unfinished = left.iter().filter(|call| offer.counts(call.started_ns)).count() as u64;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_node::transport::interface::{Failed, Reply, Request};

    /// Answers at once, except calls longer than `limit`.
    struct Mirror {
        queue: Vec<Ended>,
        limit: u32,
    }

    impl Client for Mirror {
        fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
            if request.length <= self.limit {
                self.queue.push(Ok(Reply {
                    tag: request.tag,
                    length: 100,
                    request_length: request.length,
                }));
            }
            Ok(())
        }

        fn receive(&mut self, _: Duration, ended: &mut Vec<Ended>) -> Result<()> {
            ended.append(&mut self.queue);
            Ok(())
        }
    }

    fn small_offer() -> OfferedLoad {
        OfferedLoad {
            workload: "1:100,1:200".parse().unwrap(),
            reply: 100,
            gbps: 0.05,
            duration: Duration::from_millis(20),
            warm_up: Duration::from_millis(2),
            seed: 3,
            yields: false,
        }
    }

    #[test]
    fn every_call_is_counted_once() {
        let outcome = offer(&mut Mirror { queue: vec![], limit: 200 }, &small_offer()).unwrap();
        assert_eq!(outcome.unfinished, 0);
        assert_eq!(outcome.tally.calls, outcome.lateness.started());
        assert_eq!(outcome.tally.calls, outcome.by_size.total().count());
        assert_eq!(outcome.by_size.classes().count(), 2);
    }
}
