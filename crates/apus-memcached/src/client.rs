//! The load on servers in turn, for benchmarks that measure the server as well.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::agents::{Agents, seed_of};
use super::config::GeneratorConfig;
use super::generator::Edge;
use super::outcome::Outcome;
use super::records::Records;
use super::run::{self, Ready};
use super::server::ServerAddress;
use apus_load::stop;

/// Upper bound on a sleep, so that a request to stop is noticed.
const TICK: Duration = Duration::from_millis(50);

/// Offers load: from the calling thread's network namespace without agents, otherwise only from the agents.
pub struct LoadGenerator {
    options: GeneratorConfig,
    server: ServerAddress,
    records: Arc<Records>,
    agents: Agents,
}

impl LoadGenerator {
    /// A client of the server that the options name.
    ///
    /// # Errors
    /// If options contradict each other, or an agent does not answer.
    pub fn new(options: GeneratorConfig) -> Result<Self> {
        options.check()?;
        let server = ServerAddress::find(&options.server)?;
        let records = Arc::new(Records::new(options.keys, options.key_size, options.value_size));
        let agents = Agents::connect(&options)?;
        Ok(Self { options, server, records, agents })
    }

    /// Sets every record once, from this host.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses a value.
    pub fn set_records(&self) -> Result<()> {
        run::load(&self.server, &self.options, &self.records).context("the values could not be set")
    }

    /// Offers `qps` queries per second (0 is a closed loop) for the duration of the options. `connected` is called when the
    /// connections are open, `edge` at both ends of the counted time.
    ///
    /// # Errors
    /// If the server cannot be reached or sends a malformed answer, or an agent, `connected` or `edge` fails.
    pub fn run(
        &mut self,
        qps: f64,
        seed: u64,
        connected: impl FnOnce() -> Result<()>,
        edge: &(dyn Fn(Edge) -> Result<()> + Sync),
    ) -> Result<Outcome> {
        let agents = self.agents.hosts() - 1;
        if agents == 0 {
            let seed = seed_of(seed, 0);
            let ready = Ready::new(&self.server, &self.options, &self.records, qps, seed)?;
            connected()?;
            return ready.run_with(edge);
        }
        self.agents.prepare(&self.options, qps / f64::from(agents), seed)?;
        connected()?;
        self.agents.start()?;
        let start = Instant::now();
        let begin = Duration::from_secs_f64(self.options.warmup);
        let end = begin + Duration::from_secs_f64(self.options.seconds);
        for (after, at) in [(begin, Edge::Begin), (end, Edge::End)] {
            sleep_until(start + after)?;
            edge(at)?;
        }
        let mut whole = Outcome::default();
        self.agents.finish()?.into_iter().for_each(|(_, part)| whole.merge(part));
        Ok(whole)
    }
}

impl Outcome {
    /// Whether a run measures the generator rather than the server.
    pub fn was_late(&self) -> bool {
        self.lateness.is_refused()
    }
}

fn sleep_until(end: Instant) -> Result<()> {
    loop {
        stop::check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(TICK));
    }
}
