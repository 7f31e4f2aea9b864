//! Parts of a load on several hosts: `apus bench memcached-agent` serves a leader, which is an `apus bench memcached` with
//! `--agents`. They exchange lines of JSON over TCP. An agent opens its connections, reports that it is ready, begins on the
//! leader's request, and replies with its results, including histograms.
//!
//! An agent sends any leader's load to any server, so it belongs on a network of trusted hosts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::config::GeneratorConfig;
use super::generator::DRAIN;
use super::outcome::Outcome;
use super::records::Records;
use super::run::Ready;
use super::server::ServerAddress;

/// Upper bound on the length of a line: two histograms take up to a megabyte.
const LINE_MAX: u64 = 16 << 20;

/// Time beyond the expected one after which a silent agent or leader is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Options of an agent.
#[derive(Clone, Debug, clap::Args)]
pub struct AgentOptions {
    /// Address to listen on; it should be reached from trusted hosts only
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddr,
}

/// A message of a leader.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Open the connections of a load.
    Prepare { options: Box<GeneratorConfig>, qps: f64, seed: u64 },
    /// Begin.
    Start,
}

/// A message of an agent.
#[derive(Debug, Serialize, Deserialize)]
enum AgentMessage {
    Ready,
    Done(Box<Outcome>),
    Failed(String),
}

/// A connection that carries lines of JSON.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        stream.set_write_timeout(Some(SILENCE_MAX)).context("a time limit")?;
        Ok(Self(BufReader::new(stream)))
    }

    fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message).context("cannot write as JSON")?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line).context("cannot write")
    }

    /// The next message; `None` if the other side has closed the connection.
    fn receive<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<Option<T>> {
        self.0.get_ref().set_read_timeout(Some(timeout)).context("a time limit")?;
        let mut line = Vec::new();
        (&mut self.0).take(LINE_MAX).read_until(b'\n', &mut line).context("cannot read")?;
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).context("not a message of `apus bench memcached`")
    }
}

/// Serves leaders in turn, without end. `say` gets a line with the address, and one for every leader that fails.
///
/// # Errors
/// If it cannot listen, or `say` fails.
pub fn serve_agent(options: &AgentOptions, say: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let cannot = || format!("cannot listen on {}", options.listen);
    let listener = TcpListener::bind(options.listen).with_context(cannot)?;
    say(&format!("serving {}", listener.local_addr().with_context(cannot)?))?;
    loop {
        let (stream, leader) = listener.accept().context("accept")?;
        if let Err(error) = Lines::new(stream).and_then(|mut lines| follow(&mut lines)) {
            say(&format!("{leader}: {error:#}"))?;
        }
    }
}

/// Follows a leader's orders until the leader disconnects.
fn follow(leader: &mut Lines) -> Result<()> {
    while let Some(order) = leader.receive(SILENCE_MAX)? {
        let Order::Prepare { options, qps, seed } = order else {
            bail!("a start without a load");
        };
        match prepare(&options, qps, seed) {
            Ok(ready) => {
                leader.send(&AgentMessage::Ready)?;
                let Some(Order::Start) = leader.receive(SILENCE_MAX)? else { return Ok(()) };
                let report = match ready.run() {
                    Ok(outcome) => AgentMessage::Done(Box::new(outcome)),
                    Err(error) => AgentMessage::Failed(format!("{error:#}")),
                };
                leader.send(&report)?;
            }
            Err(error) => leader.send(&AgentMessage::Failed(format!("{error:#}")))?,
        }
    }
    Ok(())
}

fn prepare(options: &GeneratorConfig, qps: f64, seed: u64) -> Result<Ready> {
    options.check()?;
    let server = ServerAddress::find(&options.server)?;
    let records = Arc::new(Records::new(options.keys, options.key_size, options.value_size));
    Ready::new(&server, options, &records, qps, seed)
}

/// The agents of a leader.
pub(super) struct Agents {
    list: Vec<(String, Lines)>,
    /// Upper bound on the time of a run.
    timeout: Duration,
}

impl Agents {
    /// Connects to all agents that the options name.
    ///
    /// # Errors
    /// If an agent does not answer.
    pub(super) fn connect(options: &GeneratorConfig) -> Result<Self> {
        let connect = |name: &String| {
            let context = || format!("agent '{name}'");
            let address = name.to_socket_addrs().with_context(context)?.next();
            let address = address.with_context(|| format!("agent '{name}': no such host"))?;
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10));
            let lines = stream.map_err(anyhow::Error::from).and_then(Lines::new);
            Ok((name.clone(), lines.with_context(context)?))
        };
        let list = options.agents.iter().map(connect).collect::<Result<_>>()?;
        let run = Duration::from_secs_f64(options.warmup + options.seconds);
        Ok(Self { list, timeout: run + DRAIN + SILENCE_MAX })
    }

    /// Number of hosts, including this one.
    pub(super) fn hosts(&self) -> u32 {
        1 + u32::try_from(self.list.len()).expect("a command line has far fewer")
    }

    /// Orders every agent to open the connections of a load of `qps` queries per second. Each agent has its own seed.
    ///
    /// # Errors
    /// If an agent fails.
    pub(super) fn prepare(&mut self, options: &GeneratorConfig, qps: f64, seed: u64) -> Result<()> {
        for (number, (name, agent)) in (1..).zip(&mut self.list) {
            let options = Box::new(options.clone());
            let order = Order::Prepare { options, qps, seed: seed_of(seed, number) };
            agent.send(&order).with_context(|| format!("agent '{name}'"))?;
        }
        for (name, agent) in &mut self.list {
            match agent.receive(SILENCE_MAX).with_context(|| format!("agent '{name}'"))? {
                Some(AgentMessage::Ready) => {}
                Some(AgentMessage::Failed(why)) => bail!("agent '{name}': {why}"),
                _ => bail!("agent '{name}' left"),
            }
        }
        Ok(())
    }

    /// Orders all agents to begin.
    ///
    /// # Errors
    /// If an agent is gone.
    pub(super) fn start(&mut self) -> Result<()> {
        self.list.iter_mut().try_for_each(|(name, agent)| {
            agent.send(&Order::Start).with_context(|| format!("agent '{name}'"))
        })
    }

    /// The results of all agents, by name.
    ///
    /// # Errors
    /// If an agent failed.
    pub(super) fn finish(&mut self) -> Result<Vec<(String, Outcome)>> {
        let timeout = self.timeout;
        let finish = |(name, agent): &mut (String, Lines)| match agent
            .receive(timeout)
            .with_context(|| format!("agent '{name}'"))?
        {
            Some(AgentMessage::Done(outcome)) => Ok((name.clone(), *outcome)),
            Some(AgentMessage::Failed(why)) => bail!("agent '{name}': {why}"),
            _ => bail!("agent '{name}' left"),
        };
        self.list.iter_mut().map(finish).collect()
    }
}

/// The seed of a host. The leader is host 0.
pub(super) fn seed_of(seed: u64, host: u64) -> u64 {
    seed.wrapping_mul(1000).wrapping_add(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Lines, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Lines::new(stream).unwrap(), listener.accept().unwrap().0)
    }

    #[test]
    fn messages_are_lines() {
        let (mut ours, theirs) = pair();
        let mut theirs = Lines::new(theirs).unwrap();
        ours.send(&AgentMessage::Failed("no\nway".to_owned())).unwrap();
        ours.send(&AgentMessage::Done(Box::default())).unwrap();
        drop(ours);
        let mut next = || theirs.receive::<AgentMessage>(SILENCE_MAX).unwrap();
        assert!(matches!(next(), Some(AgentMessage::Failed(why)) if why == "no\nway"));
        assert!(
            matches!(next(), Some(AgentMessage::Done(outcome)) if *outcome == Outcome::default())
        );
        assert!(next().is_none());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for wrong in [&b"GET / HTTP/1.1\r\n"[..], b"{\"Prepare\":{}}\n", b"\"Start\"\n"] {
            let (mut ours, mut theirs) = pair();
            theirs.write_all(wrong).unwrap();
            drop(theirs);
            assert!(follow(&mut ours).is_err());
        }
    }
}
