//! The open loop: calls start at times drawn beforehand, whatever happens, and latency counts from those times.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use apus_load::{BySize, Lateness, Workload};
use apus_load::{Random, seeded};

use crate::closed_loop::check;
use crate::pace::{Pace, nanos_since};
use crate::slots::Slots;
use crate::stop;
use crate::transport::interface::{Client, Ended, Request};

/// Calls started in one turn before replies are looked at again, so that a backlog does not hide them.
const STARTS_PER_TURN: usize = 32;

/// Calls outstanding at most; a transport that falls this far behind only makes the generator late.
const OUTSTANDING_MAX: usize = 1 << 20;

/// How long after the last start replies may still come.
const DRAIN: Duration = Duration::from_secs(2);

/// Classes of sizes per factor of ten.
pub(crate) const CLASSES_PER_DECADE: u32 = 10;

/// What is offered.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// Lengths of requests.
    pub(crate) workload: Workload,
    /// As in [`Request::reply`].
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
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Latency from the intended start, by size of request.
    pub(crate) by_size: BySize,
    /// Whether the generator kept to its schedule.
    pub(crate) lateness: Lateness,
    /// Calls whose reply came.
    pub(crate) calls: u64,
    /// Bytes of their requests.
    pub(crate) request_bytes: u64,
    /// Calls without a reply at the end.
    pub(crate) unfinished: u64,
    /// From the end of the warm-up to the last start.
    pub(crate) elapsed: Duration,
}

impl Outcome {
    /// Request bytes of calls that were answered, in gigabits per second.
    pub(crate) fn goodput_gbps(&self) -> f64 {
        self.request_bytes as f64 * 8.0 / 1e9 / self.elapsed.as_secs_f64()
    }
}

/// Offers a load to a transport.
///
/// # Errors
/// When the transport fails or a reply is wrong. Calls without a reply are counted, not an error.
pub(crate) fn offer(client: &mut dyn Client, offer: &Offer) -> Result<Outcome> {
    let mut generator = Generator::new(offer)?;
    let mut ended = Vec::with_capacity(1024);
    let end = offer.warm_up + offer.duration;
    while generator.start.elapsed() < end {
        stop::check()?;
        generator.start_due(client)?;
        client.receive(Duration::ZERO, &mut ended)?;
        if ended.is_empty() && offer.yields {
            std::thread::yield_now();
        }
        generator.take(&mut ended)?;
    }
    generator.outcome.elapsed = generator.start.elapsed() - offer.warm_up;
    while generator.calls.outstanding() > 0 && generator.start.elapsed() < end + DRAIN {
        client.receive(Duration::ZERO, &mut ended)?;
        generator.take(&mut ended)?;
    }
    Ok(generator.finish())
}

/// One call under way.
#[derive(Clone, Copy)]
struct Call {
    request: Request,
    intended_ns: u64,
}

struct Generator<'a> {
    offer: &'a Offer,
    start: Instant,
    pace: Pace,
    lengths: Random,
    calls: Slots<Call>,
    outcome: Outcome,
}

impl<'a> Generator<'a> {
    fn new(offer: &'a Offer) -> Result<Self> {
        let pace = Pace::for_throughput(offer.gbps, offer.workload.mean(None), offer.seed)?;
        Ok(Self {
            offer,
            start: Instant::now(),
            pace,
            lengths: seeded(offer.seed ^ 0x5eed),
            calls: Slots::new(0),
            outcome: Outcome {
                by_size: BySize::new(CLASSES_PER_DECADE),
                lateness: Lateness::new(),
                calls: 0,
                request_bytes: 0,
                unfinished: 0,
                elapsed: Duration::ZERO,
            },
        })
    }

    /// Starts the calls whose time has come.
    fn start_due(&mut self, client: &mut dyn Client) -> Result<()> {
        let offer = self.offer;
        self.pace.start_due(STARTS_PER_TURN, self.start, |due| {
            if self.calls.outstanding() >= OUTSTANDING_MAX {
                return Ok(false);
            }
            if offer.counts(due.at_ns) {
                self.outcome.lateness.record(due.at_ns, due.now_ns);
            }
            if self.calls.free() == 0 {
                self.calls.grow();
            }
            let length = offer.workload.sample(&mut self.lengths, None);
            let mut request = Request { tag: 0, length, reply: offer.reply };
            self.calls.begin(|tag| {
                request.tag = tag;
                Call { request, intended_ns: due.at_ns }
            });
            client.send(0, request)?;
            Ok(true)
        })?;
        Ok(())
    }

    fn take(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        if ended.is_empty() {
            return Ok(());
        }
        let now_ns = nanos_since(self.start);
        for reply in ended.drain(..) {
            let reply = reply?;
            let Some(call) = self.calls.finish(reply.tag) else {
                bail!("a reply with tag {:#x} answers no outstanding call", reply.tag);
            };
            check(reply, call.request.tag, call.request)?;
            if self.offer.counts(call.intended_ns) {
                self.outcome.calls += 1;
                self.outcome.request_bytes += u64::from(call.request.length);
                self.outcome.by_size.record(call.request.length, now_ns - call.intended_ns);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Outcome {
        let left = self.calls.take_all();
        self.outcome.unfinished =
            left.iter().filter(|call| self.offer.counts(call.intended_ns)).count() as u64;
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::interface::{Failed, Reply};

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
        assert_eq!(outcome.calls, outcome.lateness.started());
        assert_eq!(outcome.calls, outcome.by_size.total().count());
        assert_eq!(outcome.by_size.classes().count(), 2);
    }
}
