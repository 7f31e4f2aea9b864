//! The load: queries of random records, due at times drawn beforehand (open loop) or as soon as few enough are outstanding (closed
//! loop). The generator is one thread that never sleeps, with its node in `fullbusy`.
//!
//! An open loop has at most [`OUTSTANDING_MAX`] outstanding queries, like the experiment's 4,480 connections with one query each.
//! Further due queries wait here. The wait is part of the latency, but neither it nor the wait of the queries behind counts as the
//! generator's lateness, until the generator has caught up or the server has answered half of the outstanding queries.
//!
//! Latency starts at the time at which a query was due, and covers reads only, as in the published tables. Queries also read the
//! server's counters, at both ends of the counted time.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus::{Address, Bytes, Client, Delivery, Flush, Node, RecvError};
use apus_load::{Latency, Lateness, Pareto, Poisson, etc, seeded};
use apus_load::{Random, RateError};
use rand::RngExt;
use strum::IntoStaticStr;

use super::server::{Snapshot, start_node};
use super::store::{self, Query, check_value, value_of};
use apus_load::stop;
use apus_node::message::filler;
use apus_node::pace::{Next, Pace, nanos_since};
use apus_node::transport::over_apus::PORT;

/// Upper bound on queries started in one turn before responses are taken, so that a backlog does not delay responses.
const STARTS_PER_TURN: usize = 32;

/// Upper bound on responses taken in one turn.
const TAKES_PER_TURN: usize = 256;

/// Upper bound on outstanding queries in an open loop.
pub(crate) const OUTSTANDING_MAX: u32 = 4_480;

/// Time after the end in which responses may arrive.
const DRAIN: Duration = Duration::from_secs(5);

/// The distribution of the gaps between queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum ArrivalProcess {
    /// Exponential gaps
    #[default]
    Poisson,
    /// Generalized Pareto gaps, as ETC's
    Etc,
}

impl ArrivalProcess {
    /// The name in arguments and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    fn pace(self, qps: f64, seed: u64) -> Result<Pace, RateError> {
        Ok(match self {
            Self::Poisson => Pace::open(Poisson::new(qps, seed)?),
            Self::Etc => Pace::open(Pareto::new(qps, seed)?),
        })
    }
}

/// The start times of queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Starts {
    /// At drawn times, independent of earlier queries.
    Open { arrival: ArrivalProcess, qps: f64 },
    /// As soon as fewer than this many are outstanding.
    Closed { outstanding: u32 },
}

/// The offered load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryLoad {
    pub(crate) starts: Starts,
    /// Time before the counted time.
    pub(crate) warm_up: Duration,
    /// The counted time.
    pub(crate) duration: Duration,
    /// Share of read queries, in percent; the others set a new value.
    pub(crate) get_share: f64,
    /// Seed of times, records and values.
    pub(crate) seed: u64,
}

impl QueryLoad {
    /// Whether a time is in the counted time.
    fn counts(&self, at_ns: u64) -> bool {
        let (begin, end) = (self.warm_up, self.warm_up + self.duration);
        (begin.as_nanos()..end.as_nanos()).contains(&u128::from(at_ns))
    }
}

/// The results, without the warm-up.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Latency of reads, from the time at which each was due.
    pub(crate) latency: Latency,
    /// Lateness against the schedule; empty in a closed loop.
    pub(crate) lateness: Lateness,
    /// Responses in the counted time, per second.
    pub(crate) qps: f64,
    /// Queries without a response after the drain.
    pub(crate) unfinished: u64,
    /// The server's counters over the counted time.
    pub(crate) server: Snapshot,
}

/// Encoded read queries, one for each record.
#[derive(Clone)]
pub(crate) struct Records {
    reads: Vec<Bytes>,
}

impl Records {
    /// Read queries for a store with this many records.
    pub(crate) fn ready(records: u32) -> Self {
        let read = |record| Query::Get { key: &store::key(record) }.encode();
        Self { reads: (0..records).map(read).collect() }
    }
}

/// Offers a load to the store at `server`, from a node of its own.
///
/// # Errors
/// If the node cannot start, a response is wrong, or the server does not report its counters.
pub(crate) fn offer(server: SocketAddr, records: &Records, offer: &QueryLoad) -> Result<Outcome> {
    let node = start_node((Ipv4Addr::LOCALHOST, 0).into(), Delivery::fullbusy())?;
    let mut generator = Generator::new(&node, server, records, offer)?;
    let (warm_up, end) = (offer.warm_up, offer.warm_up + offer.duration);
    generator.until(warm_up)?;
    generator.ask_for_stats(QueryType::StatsBefore)?;
    generator.until(end)?;
    generator.ask_for_stats(QueryType::StatsAfter)?;
    while generator.outstanding > 0 && generator.start.elapsed() < end + DRAIN {
        generator.take()?;
    }
    generator.finish()
}

/// The type of a query, in the low bits of its cookie, below the time at which the query was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueryType {
    Get,
    Set,
    StatsBefore,
    StatsAfter,
}

impl QueryType {
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
    offer: &'a QueryLoad,
    records: &'a Records,
    client: Client,
    server: Address,
    start: Instant,
    pace: Pace,
    /// Upper bound on outstanding queries.
    outstanding_max: u32,
    /// Whether due queries wait because too many are outstanding.
    held_back: bool,
    rng: Random,
    outstanding: u32,
    latency: Latency,
    lateness: Lateness,
    /// Responses in the counted time.
    responses: u64,
    before: Option<Snapshot>,
    after: Option<Snapshot>,
}

impl<'a> Generator<'a> {
    fn new(
        node: &Node,
        server: SocketAddr,
        records: &'a Records,
        offer: &'a QueryLoad,
    ) -> Result<Self> {
        let (pace, outstanding_max) = match offer.starts {
            Starts::Open { arrival, qps } => (arrival.pace(qps, offer.seed)?, OUTSTANDING_MAX),
            Starts::Closed { outstanding } => (Pace::closed(), outstanding),
        };
        Ok(Self {
            offer,
            records,
            client: node.client()?,
            server: Address::new(server, PORT),
            pace,
            outstanding_max,
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

    /// Sends due queries and takes responses until this time after the start.
    fn until(&mut self, end: Duration) -> Result<()> {
        while self.start.elapsed() < end {
            stop::check()?;
            self.start_due()?;
            self.take()?;
        }
        Ok(())
    }

    /// Starts the due queries, as far as outstanding queries allow.
    fn start_due(&mut self) -> Result<()> {
        let (offer, reads) = (self.offer, &self.records.reads);
        let next = self.pace.start_due(STARTS_PER_TURN, self.start, |due| {
            if self.outstanding >= self.outstanding_max {
                return Ok(false);
            }
            self.held_back &= self.outstanding > OUTSTANDING_MAX / 2;
            if due.is_open && offer.counts(due.at_ns) {
                let intended_ns = if self.held_back { due.now_ns } else { due.at_ns };
                self.lateness.record(intended_ns, due.now_ns);
            }
            let record = self.rng.random_range(0..reads.len());
            let (body, kind) = if self.rng.random::<f64>() * 100.0 < offer.get_share {
                (reads[record].clone(), QueryType::Get)
            } else {
                let length = etc::value_length(&mut self.rng) as usize;
                let record = u32::try_from(record).expect("records are counted in 32 bits");
                let query = Query::Set { key: &store::key(record), value: filler(0, length) };
                (query.encode(), QueryType::Set)
            };
            self.client.send(self.server, body, kind.cookie(due.at_ns), Flush::Later)?;
            self.outstanding += 1;
            Ok(true)
        })?;
        match next {
            Next::NoRoom => self.held_back = true,
            Next::Due(wait) => self.held_back &= wait.is_zero(),
        }
        Ok(())
    }

    fn ask_for_stats(&mut self, kind: QueryType) -> Result<()> {
        let cookie = kind.cookie(nanos_since(self.start));
        self.client.send(self.server, Query::Stats.encode(), cookie, Flush::Later)?;
        self.outstanding += 1;
        Ok(())
    }

    /// Takes the available responses. The call that finds none turns the engine, which sends queued packets.
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
        let now_ns = nanos_since(self.start);
        let (kind, due_ns) = QueryType::of(cookie);
        let value = value_of(response)?;
        match kind {
            QueryType::Get => check_value(value)?,
            QueryType::Set => ensure!(value.is_empty(), "a value that was not requested"),
            QueryType::StatsBefore => self.before = Some(serde_json::from_slice(value)?),
            QueryType::StatsAfter => self.after = Some(serde_json::from_slice(value)?),
        }
        if matches!(kind, QueryType::Get | QueryType::Set) && self.offer.counts(now_ns) {
            self.responses += 1;
        }
        if kind == QueryType::Get && self.offer.counts(due_ns) {
            self.latency.record_ns(now_ns.saturating_sub(due_ns));
        }
        Ok(())
    }

    fn finish(self) -> Result<Outcome> {
        let (before, after) =
            self.before.zip(self.after).context("the server did not report its counters")?;
        Ok(Outcome {
            latency: self.latency,
            lateness: self.lateness,
            qps: self.responses as f64 / self.offer.duration.as_secs_f64(),
            unfinished: u64::from(self.outstanding),
            server: after - before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_encodes_kind_and_time() {
        for kind in [QueryType::Get, QueryType::Set, QueryType::StatsBefore, QueryType::StatsAfter]
        {
            assert_eq!(QueryType::of(kind.cookie(3_600_000_000_000)), (kind, 3_600_000_000_000));
        }
    }
}
