//! The leader's hold on the processes of all hosts.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apus::net::cpu;
use apus_bench::stop;

use crate::agent::{Assignment, Report};

/// How long a host may take for a step, beyond the time of the run.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often the leader looks whether it shall stop.
const TICK: Duration = Duration::from_millis(100);

/// One `apus lab-host` for each host. Dropping it ends them.
pub(crate) struct Agents {
    agents: Vec<Agent>,
}

struct Agent {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Agents {
    /// Starts a process on every host, with a command and on the processor that is the host's alone, gives each its
    /// assignment, and waits until all are connected. A request to stop ends all waiting.
    ///
    /// # Errors
    /// When one cannot start or connect; the error has what it said.
    pub(crate) fn start(
        assignments: &[Assignment],
        command: impl Fn(usize) -> (Command, Option<usize>),
    ) -> Result<Self> {
        let agents = (0..assignments.len()).map(|place| {
            let (command, processor) = command(place);
            Agent::start(command, processor)
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

    /// Has all hosts generate their load, calls `meanwhile` about ten times a second with the seconds passed, and
    /// returns what they measured after about `seconds`.
    ///
    /// # Errors
    /// When one fails or falls silent, or `meanwhile` does.
    pub(crate) fn go(
        &mut self,
        seconds: f64,
        mut meanwhile: impl FnMut(f64) -> Result<()>,
    ) -> Result<Vec<Report>> {
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
                    .with_context(|| format!("host {place}: what it measured"))
            })
            .collect()
    }

    fn order_all(&mut self, order: &str) -> Result<()> {
        (0..self.agents.len()).try_for_each(|place| self.order(place, order))
    }

    fn order(&mut self, place: usize, order: &str) -> Result<()> {
        let agent = &mut self.agents[place];
        if writeln!(agent.stdin, "{order}").and_then(|()| agent.stdin.flush()).is_err() {
            bail!("host {place}: {}", agent.last_words());
        }
        Ok(())
    }

    fn expect_all(&mut self, wanted: &str) -> Result<()> {
        for place in 0..self.agents.len() {
            let line = self.line(place)?;
            if line != wanted {
                bail!("host {place} said `{line}` instead of `{wanted}`");
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
            match self.agents[place].lines.recv_timeout(TICK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(_) => bail!("{}", self.first_words(place)),
            }
        }
    }

    /// What the hosts that ended too early wrote, or why `place` is taken for dead: one's end can be due to another's.
    fn first_words(&mut self, place: usize) -> String {
        let ended = |agent: &mut Agent| matches!(agent.child.try_wait(), Ok(Some(_)));
        let mut words: Vec<String> = Vec::new();
        for (place, agent) in self.agents.iter_mut().enumerate() {
            if ended(agent) {
                words.push(format!("host {place}: {}", agent.last_words()));
            }
        }
        if words.is_empty() {
            words.push(format!("host {place}: {}", self.agents[place].last_words()));
        }
        words.join("; ")
    }
}

impl Agent {
    fn start(mut command: Command, processor: Option<usize>) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the leader, which then ends the others.
        command.process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child =
            spawn(command, processor).with_context(|| format!("cannot run `{program}`"))?;
        let stdin = child.stdin.take().expect("the child's input is a pipe");
        let stdout = child.stdout.take().expect("the child's output is a pipe");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens any more when the run is over.
                let _ = sender.send(line);
            }
        });
        Ok(Self { child, stdin, lines })
    }

    /// What a process that ended too early wrote as its error.
    fn last_words(&mut self) -> String {
        let _ = self.child.kill();
        let mut words = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut words);
        }
        match words.trim() {
            "" => "it does not answer".to_owned(),
            words => words.trim_start_matches("apus: ").to_owned(),
        }
    }
}

/// Starts a process that may only use one processor, if one is named.
fn spawn(mut command: Command, processor: Option<usize>) -> io::Result<Child> {
    let Some(processor) = processor else { return command.spawn() };
    // A process may use what the thread that starts it may.
    let start =
        thread::spawn(move || cpu::pin_current_thread(processor).and_then(|()| command.spawn()));
    start.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Drop for Agent {
    /// Nothing of a run stays behind.
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
