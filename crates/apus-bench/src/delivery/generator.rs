//! The load: queries of random records, due at times drawn beforehand (open loop) or as soon as few enough are
//! outstanding (closed loop). One thread that never sleeps, its node in `fullbusy`.
//!
//! An open loop has at most [`OUTSTANDING_MAX`] queries outstanding, as the experiment's 4,480 connections with one query
//! each: what is due beyond that waits here. That wait is in the latency, and is not the generator's lateness,
//! nor is that of the queries behind it, until it has caught up or the server has taken half of what is outstanding.
//!
//! Latency counts from the moment a query was due, and is that of reads, as in the published tables. The server's
//! counters are read by queries too, at the beginning and at the end of what is counted.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus::{Address, Bytes, Client, Delivery, Flush, Node, RecvError};
use apus_load::{Latency, Lateness, Pareto, Poisson, etc, seeded};
use apus_load::{Random, RateError};
use rand::RngExt;

use super::server::{Snapshot, start_node};
use super::store::{self, Query, check_value, value_of};
use crate::message::filler;
use crate::stop;
use crate::transport::apus_udp::PORT;

/// Queries started in one turn before responses are looked at again, so that a backlog does not hide them.
const STARTS_PER_TURN: usize = 32;

/// Responses taken in one turn.
const TAKES_PER_TURN: usize = 256;

/// Queries outstanding at most in an open loop.
pub(crate) const OUTSTANDING_MAX: u32 = 4_480;

/// How long after the end responses may still come.
const DRAIN: Duration = Duration::from_secs(5);

/// The distribution of the gaps between queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Arrival {
    /// Exponential gaps
    #[default]
    Poisson,
    /// Generalized Pareto gaps, as ETC's
    Etc,
}

impl Arrival {
    /// The name in arguments and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Etc => "etc",
        }
    }

    fn schedule(self, qps: f64, seed: u64) -> Result<Box<dyn Iterator<Item = u64>>, RateError> {
        Ok(match self {
            Self::Poisson => Box::new(Poisson::new(qps, seed)?),
            Self::Etc => Box::new(Pareto::new(qps, seed)?),
        })
    }
}

/// When the next query starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// When it is due, whatever became of those before.
    Open { arrival: Arrival, qps: f64 },
    /// As soon as fewer than this are outstanding.
    Closed { outstanding: u32 },
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) pace: Pace,
    /// How long before anything is counted.
    pub(crate) warm_up: Duration,
    /// How long queries are counted.
    pub(crate) duration: Duration,
    /// Share of the queries that read, in percent; the others set a new value.
    pub(crate) get_share: f64,
    /// Draws times, records and values.
    pub(crate) seed: u64,
}

/// What came of it; the warm-up is not in it.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Of reads, from the moment each was due.
    pub(crate) latency: Latency,
    /// Whether the generator kept to its schedule; nothing in a closed loop.
    pub(crate) lateness: Lateness,
    /// Responses that came in time, per second.
    pub(crate) qps: f64,
    /// Queries without a response long after the end.
    pub(crate) unfinished: u64,
    /// What the server did meanwhile.
    pub(crate) server: Snapshot,
}

/// The queries that read, ready to be sent: one of each record.
#[derive(Clone)]
pub(crate) struct Records {
    reads: Vec<Bytes>,
}

impl Records {
    /// Those of a store with as many records.
    pub(crate) fn ready(records: u32) -> Self {
        let read = |record| Query::Get { key: &store::key(record) }.encode();
        Self { reads: (0..records).map(read).collect() }
    }
}

/// Offers a load to the store at `server`, from a node of its own.
///
/// # Errors
/// When the node cannot start, a response is wrong, or the server does not tell its counters.
pub(crate) fn offer(server: SocketAddr, records: &Records, offer: &Offer) -> Result<Outcome> {
    let node = start_node((Ipv4Addr::LOCALHOST, 0).into(), Delivery::fullbusy())?;
    let mut generator = Generator::new(&node, server, records, offer)?;
    let (warm_up, end) = (offer.warm_up, offer.warm_up + offer.duration);
    generator.until(warm_up)?;
    generator.ask_for_stats(Kind::StatsBefore)?;
    generator.until(end)?;
    generator.ask_for_stats(Kind::StatsAfter)?;
    while generator.outstanding > 0 && generator.start.elapsed() < end + DRAIN {
        generator.take()?;
    }
    generator.finish()
}

/// What a response answers; in the low bits of its cookie, below the moment the query was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
    StatsBefore,
    StatsAfter,
}

impl Kind {
    const BITS: u32 = 2;

    fn cookie(self, due_ns: u64) -> u64 {
        due_ns << Self::BITS | self as u64
    }

    fn of(cookie: u64) -> (Self, u64) {
        let kind = match cookie & 3 {
            0 => Self::Get,
            1 => Self::Set,
            2 => Self::StatsBefore,
            _ => Self::StatsAfter,
        };
        (kind, cookie >> Self::BITS)
    }
}

struct Generator<'a> {
    offer: &'a Offer,
    records: &'a Records,
    client: Client,
    server: Address,
    start: Instant,
    /// When the next query of an open loop is due, and those after it.
    next_ns: u64,
    schedule: Box<dyn Iterator<Item = u64>>,
    /// As many were outstanding as may be, and what became due meanwhile is still waiting.
    held_back: bool,
    rng: Random,
    outstanding: u32,
    latency: Latency,
    lateness: Lateness,
    /// Responses that came while it counted.
    responses: u64,
    before: Option<Snapshot>,
    after: Option<Snapshot>,
}

impl<'a> Generator<'a> {
    fn new(
        node: &Node,
        server: SocketAddr,
        records: &'a Records,
        offer: &'a Offer,
    ) -> Result<Self> {
        let mut schedule: Box<dyn Iterator<Item = u64>> = match offer.pace {
            Pace::Open { arrival, qps } => arrival.schedule(qps, offer.seed)?,
            Pace::Closed { .. } => Box::new(std::iter::repeat(0)),
        };
        Ok(Self {
            offer,
            records,
            client: node.client()?,
            server: Address::new(server, PORT),
            next_ns: schedule.next().context("a schedule never ends")?,
            schedule,
            held_back: false,
            rng: seeded(offer.seed ^ 0x5eed),
            outstanding: 0,
            latency: Latency::new(),
            lateness: Lateness::new(),
            responses: 0,
            before: None,
            after: None,
            start: Instant::now(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Sends what is due and takes what comes, until so long after the start.
    fn until(&mut self, end: Duration) -> Result<()> {
        while self.start.elapsed() < end {
            stop::check()?;
            for _ in 0..STARTS_PER_TURN {
                let now_ns = self.now_ns();
                let Some(due_ns) = self.due(now_ns) else { break };
                self.send(due_ns)?;
            }
            self.take()?;
        }
        Ok(())
    }

    /// When the query was due that is to be sent now; `None` when none is.
    fn due(&mut self, now_ns: u64) -> Option<u64> {
        match self.offer.pace {
            Pace::Closed { outstanding } => (self.outstanding < outstanding).then_some(now_ns),
            Pace::Open { .. } if self.outstanding >= OUTSTANDING_MAX => {
                self.held_back = true;
                None
            }
            Pace::Open { .. } if self.next_ns > now_ns => {
                self.held_back = false;
                None
            }
            Pace::Open { .. } => {
                let due_ns = self.next_ns;
                self.next_ns = self.schedule.next().unwrap_or(u64::MAX);
                self.held_back &= self.outstanding > OUTSTANDING_MAX / 2;
                if self.counts(due_ns) {
                    self.lateness.record(if self.held_back { now_ns } else { due_ns }, now_ns);
                }
                Some(due_ns)
            }
        }
    }

    /// Whether a moment is one of those that count.
    fn counts(&self, at_ns: u64) -> bool {
        let (begin, end) = (self.offer.warm_up, self.offer.warm_up + self.offer.duration);
        (begin.as_nanos()..end.as_nanos()).contains(&u128::from(at_ns))
    }

    fn send(&mut self, due_ns: u64) -> Result<()> {
        let record = self.rng.random_range(0..self.records.reads.len());
        if self.rng.random::<f64>() * 100.0 < self.offer.get_share {
            return self.start_query(self.records.reads[record].clone(), Kind::Get, due_ns);
        }
        let length = etc::value_length(&mut self.rng) as usize;
        let record = u32::try_from(record).expect("records are counted in 32 bits");
        let query = Query::Set { key: &store::key(record), value: filler(0, length) };
        self.start_query(query.encode(), Kind::Set, due_ns)
    }

    fn ask_for_stats(&mut self, kind: Kind) -> Result<()> {
        let now_ns = self.now_ns();
        self.start_query(Query::Stats.encode(), kind, now_ns)
    }

    fn start_query(&mut self, body: Bytes, kind: Kind, due_ns: u64) -> Result<()> {
        self.client.send(self.server, body, kind.cookie(due_ns), Flush::Later)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes the responses that are there. The look that finds none turns the engine, and so sends what is queued.
    fn take(&mut self) -> Result<()> {
        for _ in 0..TAKES_PER_TURN {
            match self.client.try_recv() {
                Ok(response) => self.note(response.cookie, &response.result?)?,
                Err(RecvError::Empty) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn note(&mut self, cookie: u64, response: &[u8]) -> Result<()> {
        self.outstanding -= 1;
        let now_ns = self.now_ns();
        let (kind, due_ns) = Kind::of(cookie);
        let value = value_of(response)?;
        match kind {
            Kind::Get => check_value(value)?,
            Kind::Set => ensure!(value.is_empty(), "a value although none was asked for"),
            Kind::StatsBefore => self.before = Some(serde_json::from_slice(value)?),
            Kind::StatsAfter => self.after = Some(serde_json::from_slice(value)?),
        }
        if matches!(kind, Kind::Get | Kind::Set) && self.counts(now_ns) {
            self.responses += 1;
        }
        if kind == Kind::Get && self.counts(due_ns) {
            self.latency.record_ns(now_ns.saturating_sub(due_ns));
        }
        Ok(())
    }

    fn finish(self) -> Result<Outcome> {
        let (before, after) =
            self.before.zip(self.after).context("the server did not tell its counters")?;
        Ok(Outcome {
            latency: self.latency,
            lateness: self.lateness,
            qps: self.responses as f64 / self.offer.duration.as_secs_f64(),
            unfinished: u64::from(self.outstanding),
            server: after.since(before),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_tells_kind_and_time() {
        for kind in [Kind::Get, Kind::Set, Kind::StatsBefore, Kind::StatsAfter] {
            assert_eq!(Kind::of(kind.cookie(3_600_000_000_000)), (kind, 3_600_000_000_000));
        }
    }
}
