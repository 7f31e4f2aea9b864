//! The open loop: calls start at times drawn beforehand, whatever happens, and latency counts from those times.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use apus_load::{BySize, Lateness, Workload};

use crate::calls::{Call, Calls};
use crate::closed_loop::Tally;
use apus_load::stop;
use apus_node::pace::{Pace, nanos_since};
use apus_node::transport::interface::{Client, Ended};

/// Calls started in one turn before replies are looked at again, so that a backlog does not hide them.
const STARTS_PER_TURN: usize = 32;

/// Calls outstanding at most; a transport that falls this far behind only makes the generator late.
const OUTSTANDING_MAX: u32 = 1 << 20;

/// How long after the last start replies may still come.
const DRAIN: Duration = Duration::from_secs(2);

/// What is offered.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// Lengths of requests.
    pub(crate) workload: Workload,
    /// As in [`Request::reply`](apus_node::transport::interface::Request::reply).
    pub(crate) reply: u32,
    /// Message bytes of requests per second, in gigabits.
    pub(crate) gbps: f64,
    /// How long calls are started and counted.
    pub(crate) duration: Duration,
    /// How long calls are started before that.
    pub(crate) warm_up: Duration,
    /// Draws arrivals and lengths.
    pub(crate) seed: u64,
    /// Let others have the core while there is nothing to do.
    pub(crate) yields: bool,
}

impl Offer {
    /// Whether a call that was due at `intended_ns` is after the warm-up.
    fn counts(&self, intended_ns: u64) -> bool {
        u128::from(intended_ns) >= self.warm_up.as_nanos()
    }
}

/// What came of it. Calls of the warm-up are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Latency from the intended start, by size of request.
    pub(crate) by_size: BySize,
    /// Whether the generator kept to its schedule.
    pub(crate) lateness: Lateness,
    /// Calls whose reply came, and the time from the end of the warm-up to the last start.
    pub(crate) tally: Tally,
    /// Calls without a reply at the end.
    pub(crate) unfinished: u64,
}

impl Outcome {
    /// Notes the calls that ended.
    fn note(
        &mut self,
        offer: &Offer,
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
            let Some(Call { request, started_ns }) = calls.finish(reply)? else {
                bail!("a reply with tag {:#x} answers no outstanding call", reply.tag);
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
/// When the transport fails or a reply is wrong. Calls without a reply are counted, not an error.
pub(crate) fn offer(client: &mut dyn Client, offer: &Offer) -> Result<Outcome> {
    let mut pace = Pace::for_throughput(offer.gbps, offer.workload.mean(None), offer.seed)?;
    let seed = offer.seed ^ 0x5eed;
    let mut calls = Calls::new(offer.workload.clone(), offer.reply, OUTSTANDING_MAX, seed);
    let mut outcome = Outcome::default();
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

    fn small_offer() -> Offer {
        Offer {
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
