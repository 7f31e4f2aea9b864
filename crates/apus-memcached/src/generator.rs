//! The load of one thread: requests that are due at times drawn beforehand (open loop), or as soon as a connection has room (closed
//! loop).
//!
//! Latency starts at the time at which a request was due. A request that finds all connections at their depth stays due until an
//! answer makes room, so no request is omitted and the wait is part of the latency. The generator's own lateness starts at the time
//! at which the request could be sent: when it was due, or when there was room again.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use apus_load::{Latency, Lateness, Pareto, Poisson, Random, RateError, seeded};
use apus_net::cpu;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Operation};
use super::connection::{Bytes, Query};
use super::connections::Connections;
use super::outcome::Outcome;
use apus_load::stop;
use apus_node::pace::{Next, Pace, nanos_since};

/// Upper bound on requests started in one turn before answers are taken, so that a backlog does not delay answers.
const STARTS_PER_TURN: usize = 32;

/// Time after the end in which answers may arrive.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

/// Upper bound on a sleep, so that a request to stop is noticed.
const TICK: Duration = Duration::from_millis(10);

/// Time without an answer, while the records are set, after which a server is given up.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The distribution of the gaps between requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalProcess {
    /// Exponential gaps
    #[default]
    Poisson,
    /// Generalized Pareto gaps, as in Facebook's pool ETC
    FbIa,
    /// Gaps of the same length
    Fixed,
}

impl ArrivalProcess {
    /// The name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::FbIa => "fb-ia",
            Self::Fixed => "fixed",
        }
    }

    /// Requests at `qps` per second on average, the last one before `end`.
    fn pace(self, qps: f64, seed: u64, end: Duration) -> Result<Pace, RateError> {
        let end_ns = end.as_nanos() as u64;
        let is_before = move |at_ns: &u64| *at_ns < end_ns;
        Ok(match self {
            Self::Poisson => Pace::open(Poisson::new(qps, seed)?.take_while(is_before)),
            Self::FbIa => Pace::open(Pareto::new(qps, seed)?.take_while(is_before)),
            Self::Fixed => {
                // A random phase, so that threads do not send at the same times.
                let phase = seeded(seed).random::<f64>();
                let at_ns = move |number: u64| ((number as f64 + phase) * 1e9 / qps) as u64;
                Pace::open((0..).map(at_ns).take_while(is_before))
            }
        })
    }
}

/// A thread's way of waiting while no request is due and no answer is available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleStrategy {
    /// Polls in a loop; exact, and takes a CPU for each thread
    #[default]
    Spin,
    /// Sleeps; a wake-up of the kernel is part of the latency
    Sleep,
}

/// The start times of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Starts {
    /// At drawn times, independent of earlier requests.
    Open { arrival: ArrivalProcess, qps: f64 },
    /// As soon as a connection has room.
    Closed,
}

/// The offered load.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferedLoad {
    pub(super) starts: Starts,
    /// Share of the requests that set a new value, 0 to 1.
    pub(super) update: f64,
    /// Time before the counted time.
    pub(super) warm_up: Duration,
    /// The counted time.
    pub(super) duration: Duration,
    /// Seed of times and records.
    pub(super) seed: u64,
    pub(super) wait: IdleStrategy,
    /// Whether to yield the CPU between polls. Otherwise each thread has a CPU.
    pub(super) yields: bool,
}

impl OfferedLoad {
    fn end(&self) -> Duration {
        self.warm_up + self.duration
    }

    /// Whether a time is in the counted time.
    fn counts(&self, at_ns: u64) -> bool {
        (self.warm_up.as_nanos()..self.end().as_nanos()).contains(&u128::from(at_ns))
    }
}

/// An end of the counted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The end of the warm-up.
    Begin,
    /// The time from which due requests do not count.
    End,
}

/// Offers a load that begins at `start`. `edge` is called at both ends of the counted time.
///
/// # Errors
/// If a connection breaks, an answer is malformed, a stop is requested, or `edge` fails.
pub(super) fn offer(
    connections: &mut Connections,
    offer: &OfferedLoad,
    start: Instant,
    edge: impl Fn(Edge) -> Result<()>,
) -> Result<Outcome> {
    let mut generator = Generator::new(connections, offer, start)?;
    cpu::sleep_precisely();
    generator.until(offer.warm_up)?;
    edge(Edge::Begin)?;
    let before = generator.used();
    generator.until(offer.end())?;
    let after = generator.used();
    edge(Edge::End)?;
    generator.drain()?;
    let mut outcome = generator.finish()?;
    outcome.seconds = offer.duration.as_secs_f64();
    outcome.cpu_s = (after.cpu - before.cpu).as_secs_f64();
    outcome.sent_bytes = after.bytes.sent - before.bytes.sent;
    outcome.received_bytes = after.bytes.received - before.bytes.received;
    Ok(outcome)
}

/// A thread's use of CPU time and of the network.
struct Used {
    cpu: Duration,
    bytes: Bytes,
}

struct Generator<'a> {
    offer: &'a OfferedLoad,
    connections: &'a mut Connections,
    start: Instant,
    pace: Pace,
    rng: Random,
    /// Time at which there was room again.
    room_since_ns: u64,
    lateness: Lateness,
    outcome: Outcome,
}

impl<'a> Generator<'a> {
    fn new(
        connections: &'a mut Connections,
        offer: &'a OfferedLoad,
        start: Instant,
    ) -> Result<Self, RateError> {
        let pace = match offer.starts {
            Starts::Open { arrival, qps } => arrival.pace(qps, offer.seed, offer.end())?,
            Starts::Closed => Pace::closed(),
        };
        Ok(Self {
            offer,
            connections,
            start,
            pace,
            rng: seeded(offer.seed ^ 0x5eed),
            room_since_ns: 0,
            lateness: Lateness::new(),
            outcome: Outcome::default(),
        })
    }

    fn used(&self) -> Used {
        Used { cpu: cpu::thread_time(), bytes: self.connections.bytes() }
    }

    /// Sends due requests and takes answers until this time after the start.
    fn until(&mut self, end: Duration) -> Result<()> {
        loop {
            let left = end.saturating_sub(self.start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            stop::check()?;
            let wait = match self.start_due()? {
                Next::Due(wait) => wait.min(left),
                Next::NoRoom => left,
            };
            self.take(wait)?;
        }
    }

    /// Sends requests that were due before the end, and takes answers, for a limited time.
    fn drain(&mut self) -> Result<()> {
        let end = self.offer.end() + DRAIN;
        loop {
            let left = end.saturating_sub(self.start.elapsed());
            let next = match self.offer.starts {
                Starts::Open { .. } => self.start_due()?,
                Starts::Closed => Next::Due(left),
            };
            let (is_done, wait) = match next {
                Next::Due(wait) => (!wait.is_zero() && self.connections.outstanding() == 0, wait),
                Next::NoRoom => (false, left),
            };
            if is_done || left.is_zero() {
                return Ok(());
            }
            stop::check()?;
            self.take(wait.min(left))?;
        }
    }

    /// Starts the due requests, as far as there is room.
    fn start_due(&mut self) -> Result<Next> {
        let (offer, connections, rng) = (self.offer, &mut *self.connections, &mut self.rng);
        let next = self.pace.start_due(STARTS_PER_TURN, self.start, |due| {
            if !connections.has_room() {
                return Ok(false);
            }
            connections.send(draw(rng, offer, connections.records.count(), due.at_ns));
            if due.is_open && offer.counts(due.at_ns) {
                self.lateness.record(due.at_ns.max(self.room_since_ns), due.now_ns);
            }
            Ok(true)
        })?;
        self.connections.flush()?;
        Ok(next)
    }

    /// Takes available answers. Waits for them for this time if the thread sleeps.
    fn take(&mut self, wait: Duration) -> Result<()> {
        let had_room = self.connections.has_room();
        let (start, offer) = (self.start, self.offer);
        let records = Arc::clone(&self.connections.records);
        let outcome = &mut self.outcome;
        let note = |query: Query, answer| {
            let now_ns = nanos_since(start);
            if offer.counts(now_ns) {
                outcome.answers += 1;
            }
            if offer.counts(query.due_ns) {
                outcome.note(query, answer, records.value_length(query.record), now_ns);
            }
        };
        let any = match offer.wait {
            IdleStrategy::Spin => self.connections.take(note)?,
            IdleStrategy::Sleep => self.connections.receive(wait.min(TICK), note)?,
        };
        for (query, between) in self.connections.stamped.drain(..) {
            if offer.counts(query.due_ns) && query.operation == Operation::Get {
                self.outcome.packets.record_ns(between.as_nanos() as u64);
            }
        }
        if !had_room && self.connections.has_room() {
            self.room_since_ns = nanos_since(start);
        }
        if !any && offer.yields && offer.wait == IdleStrategy::Spin {
            thread::yield_now();
        }
        Ok(())
    }

    /// The results. A request without an answer counts with its wait so far.
    fn finish(mut self) -> Result<Outcome> {
        let (offer, now_ns) = (self.offer, nanos_since(self.start));
        let mut note = |query: Query| {
            if offer.counts(query.due_ns) {
                self.outcome.unfinished += 1;
                self.outcome
                    .latency(query.operation)
                    .record_ns(now_ns.saturating_sub(query.due_ns));
            }
        };
        self.connections.queries().for_each(&mut note);
        if let Starts::Open { .. } = offer.starts {
            let records = self.connections.records.count();
            self.pace.start_due(usize::MAX, self.start, |due| {
                note(draw(&mut self.rng, offer, records, due.at_ns));
                Ok(true)
            })?;
        }
        self.outcome.lateness = self.lateness;
        Ok(self.outcome)
    }
}

/// Draws the operation and the record of a request.
fn draw(rng: &mut Random, offer: &OfferedLoad, records: u32, due_ns: u64) -> Query {
    let operation =
        if rng.random::<f64>() < offer.update { Operation::Set } else { Operation::Get };
    Query { operation, record: rng.random_range(0..records), due_ns }
}

/// Sets every record once.
///
/// # Errors
/// If a connection breaks, or the server refuses a value or stops answering.
pub(super) fn load(connections: &mut Connections) -> Result<()> {
    let mut records = 0..connections.records.count();
    let mut heard = Instant::now();
    while !records.is_empty() || connections.outstanding() > 0 {
        stop::check()?;
        while connections.has_room() {
            let Some(record) = records.next() else { break };
            connections.send(Query { operation: Operation::Set, record, due_ns: 0 });
        }
        connections.flush()?;
        let mut refused = None;
        let any = connections.receive(TICK, |_, answer| {
            if let Answer::Refused(why) = answer {
                refused.get_or_insert(why);
            }
        })?;
        if let Some(why) = refused {
            bail!("the server refused to set a value: {why}");
        }
        if any {
            heard = Instant::now();
        } else if heard.elapsed() > SILENCE_MAX {
            bail!("no answer for {SILENCE_MAX:?}: check '--protocol'");
        }
    }
    Ok(())
}

impl Outcome {
    /// Records an answer that arrived at `now_ns`. `length` is the right length of the record's value.
    fn note(&mut self, query: Query, answer: Answer, length: usize, now_ns: u64) {
        match answer {
            Answer::Value(found) if found != length => {
                self.fail(format!("a value has {found} bytes instead of {length}"));
                return;
            }
            Answer::Refused(why) => {
                self.fail(format!("the server answered '{why}'"));
                return;
            }
            Answer::Miss => self.misses += 1,
            Answer::Value(_) | Answer::Stored => {}
        }
        self.latency(query.operation).record_ns(now_ns.saturating_sub(query.due_ns));
    }

    fn fail(&mut self, why: String) {
        self.errors += 1;
        self.first_error.get_or_insert(why);
    }

    fn latency(&mut self, operation: Operation) -> &mut Latency {
        match operation {
            Operation::Get => &mut self.gets,
            Operation::Set => &mut self.updates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// All times of a schedule.
    fn times(arrival: ArrivalProcess, qps: f64) -> Vec<u64> {
        let long_ago = Instant::now() - 2 * SECOND;
        let mut times = Vec::new();
        let mut pace = arrival.pace(qps, 7, SECOND).unwrap();
        pace.start_due(usize::MAX, long_ago, |due| {
            times.push(due.at_ns);
            Ok(true)
        })
        .unwrap();
        times
    }

    #[test]
    fn arrivals_have_their_rate_and_end() {
        for arrival in [ArrivalProcess::Poisson, ArrivalProcess::FbIa, ArrivalProcess::Fixed] {
            let times = times(arrival, 50_000.0);
            assert!((times.len() as f64 / 50_000.0 - 1.0).abs() < 0.03, "{arrival:?}");
            assert!(times.is_sorted() && times.last().is_some_and(|last| *last < 1_000_000_000));
        }
        let gaps: Vec<u64> =
            times(ArrivalProcess::Fixed, 1000.0).windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (999_999..=1_000_001).contains(gap)));
    }

    #[test]
    fn answers_are_counted_as_what_they_are() {
        let mut outcome = Outcome::default();
        let get = Query { operation: Operation::Get, record: 0, due_ns: 1000 };
        outcome.note(get, Answer::Value(5), 5, 3000);
        outcome.note(get, Answer::Miss, 5, 3000);
        outcome.note(get, Answer::Value(4), 5, 3000);
        outcome.note(get, Answer::Refused("busy".to_owned()), 5, 3000);
        outcome.note(Query { operation: Operation::Set, ..get }, Answer::Stored, 5, 3000);
        assert_eq!((outcome.gets.count(), outcome.updates.count()), (2, 1));
        assert_eq!((outcome.misses, outcome.errors), (1, 2));
        assert_eq!(outcome.first_error.unwrap(), "a value has 4 bytes instead of 5");
        assert_eq!(outcome.gets.p_ns(50.0), 2000);
    }
}
