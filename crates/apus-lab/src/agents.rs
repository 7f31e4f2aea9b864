//! The leader's control of the processes of all hosts.

use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apus_bench::child::Child;
use apus_load::stop;

use crate::agent::{Assignment, HostResult};

/// Upper bound on the time of a host's step, in addition to the time of the run.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which the leader checks for a request to stop.
const TICK: Duration = Duration::from_millis(100);

/// One `apus lab-host` for each host. Dropping it kills them.
pub(crate) struct Agents {
    agents: Vec<Child>,
}

impl Agents {
    /// Starts a process on every host, with the host's command and on its own processor, gives each its assignment, and waits until
    /// all are connected. A request to stop ends all waiting.
    ///
    /// # Errors
    /// If one cannot start or connect. The error has its error text.
    pub(crate) fn start(
        assignments: &[Assignment],
        command: impl Fn(usize) -> (Command, Option<usize>),
    ) -> Result<Self> {
        let agents = (0..assignments.len()).map(|place| {
            let (command, processor) = command(place);
            Child::start(command, processor)
        });
        let mut agents = Self { agents: agents.collect::<Result<_>>()? };
        for (place, assignment) in assignments.iter().enumerate() {
            let order = serde_json::to_string(assignment).context("an assignment")?;
            agents.order(place, &order)?;
        }
        agents.expect_all("ready")?;
        agents.order_all("connect")?;
        agents.expect_all("connected")?;
        Ok(agents)
    }

    /// Starts the load of all hosts, calls `meanwhile` about ten times a second with the elapsed seconds, and returns the hosts'
    /// reports after about `seconds`.
    ///
    /// # Errors
    /// If a host fails or does not answer, or `meanwhile` fails.
    pub(crate) fn go(
        &mut self,
        seconds: f64,
        mut meanwhile: impl FnMut(f64) -> Result<()>,
    ) -> Result<Vec<HostResult>> {
        self.order_all("go")?;
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds && !stop::requested() {
            thread::sleep(TICK);
            meanwhile(start.elapsed().as_secs_f64())?;
        }
        (0..self.agents.len())
            .map(|place| {
                let line = self.line(place)?;
                serde_json::from_str(&line)
                    .with_context(|| format!("host {place}: its report cannot be read"))
            })
            .collect()
    }

    fn order_all(&mut self, order: &str) -> Result<()> {
        (0..self.agents.len()).try_for_each(|place| self.order(place, order))
    }

    fn order(&mut self, place: usize, order: &str) -> Result<()> {
        let agent = &mut self.agents[place];
        if agent.say(order).is_err() {
            bail!("host {place}: {}", last_words(agent));
        }
        Ok(())
    }

    fn expect_all(&mut self, wanted: &str) -> Result<()> {
        for place in 0..self.agents.len() {
            let line = self.line(place)?;
            if line != wanted {
                bail!("host {place} sent `{line}` instead of `{wanted}`");
            }
        }
        Ok(())
    }

    /// The next line of a host.
    fn line(&mut self, place: usize) -> Result<String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            if stop::requested() {
                bail!("stopped");
            }
            match self.agents[place].line(TICK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(_) => bail!("{}", self.first_words(place)),
            }
        }
    }

    /// The errors of hosts that exited too early; without any, the error of `place`. One host's exit can cause another's.
    fn first_words(&mut self, place: usize) -> String {
        let mut words: Vec<String> = Vec::new();
        for (place, agent) in self.agents.iter_mut().enumerate() {
            if agent.has_ended() {
                words.push(format!("host {place}: {}", last_words(agent)));
            }
        }
        if words.is_empty() {
            words.push(format!("host {place}: {}", last_words(&mut self.agents[place])));
        }
        words.join("; ")
    }
}

/// The error of a process that exited too early.
fn last_words(agent: &mut Child) -> String {
    match agent.last_words() {
        words if words.is_empty() => "it does not answer".to_owned(),
        words => words,
    }
}
