//! Configuration of the generator.

use std::fmt;
use std::str::FromStr;

use apus_net::cpu;
use serde::{Deserialize, Serialize};

use super::generator::{ArrivalProcess, IdleStrategy};
use super::protocol::Protocol;
use super::records::{self, Length};
use apus_load::misuse::Misuse;
use apus_node::arguments;

/// Upper bound on the rates of a scan.
const SCAN_MAX: usize = 1000;

/// Upper bound on a rate, per second.
const QPS_MAX: f64 = 1e7;

/// Configuration of the load generator: the load and its server.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub struct GeneratorConfig {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Protocol
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub protocol: Protocol,
    /// Queries per second; 0 is a closed loop, as many as --depth allows
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0.0, value_parser = qps)]
    pub qps: f64,
    /// Several rates, from A to B in steps: 10000:100000:10000
    #[arg(long, value_name = "A:B:STEP", conflicts_with = "qps")]
    #[serde(skip)]
    pub scan: Option<Scan>,
    /// Distribution of the gaps between queries
    #[arg(long, value_name = "LAW", default_value = "poisson")]
    pub arrival: ArrivalProcess,
    /// Connections, over all threads
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Threads that generate load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: u32,
    /// Outstanding queries on each connection at most; further due queries wait, and the wait is part of their latency
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub depth: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 5.0, value_parser = arguments::seconds)]
    pub seconds: f64,
    /// Seconds of load before each run that are not counted
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = warm_up)]
    pub warmup: f64,
    /// Runs of each rate, interleaved
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub keys: u32,
    /// Length of keys: fb (Facebook's pool ETC) or a number of bytes
    #[arg(long, value_name = "LENGTH", default_value = "fb", value_parser = records::key_length)]
    #[serde(with = "apus_node::as_text")]
    pub key_size: Length,
    /// Length of values: fb (Facebook's pool ETC) or a number of bytes
    #[arg(long, value_name = "LENGTH", default_value = "fb", value_parser = records::value_length)]
    #[serde(with = "apus_node::as_text")]
    pub value_size: Length,
    /// Share of queries that set a value, 0 to 1; the others read
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, default_value_t = 0.03, value_parser = share)]
    pub update: f64,
    /// Do not set the values first, because an earlier run with the same keys and lengths did
    #[arg(long)]
    pub no_load: bool,
    /// Way in which threads wait while no query is due
    #[arg(long, value_name = "HOW", default_value = "spin")]
    pub wait: IdleStrategy,
    /// CPUs of the threads, in order; further threads start again at the first CPU
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    pub pin: Vec<usize>,
    /// Also report the time from the packet of each read to the packet of its answer, by the kernel's stamps, which exclude this
    /// program's time; only for queries that are alone on their connection
    #[arg(long)]
    #[serde(default)]
    pub stamps: bool,
    /// Other hosts that generate load, with `apus bench memcached-agent`. The rate is divided among all hosts, this one included;
    /// each has this number of connections and threads
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    #[serde(skip)]
    pub agents: Vec<String>,
    /// Draws times and keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl GeneratorConfig {
    /// Refuses contradictory options, and CPUs that this process may not use.
    ///
    /// # Errors
    /// If options contradict each other: with the options and the reason.
    pub(super) fn check(&self) -> Result<(), Misuse> {
        let (connections, threads) = (self.connections, self.threads);
        if connections < threads {
            return Err(Misuse(format!(
                "'--connections {connections}' with '--threads {threads}': each thread needs a connection"
            )));
        }
        let digits = records::digits(self.keys);
        if let Length::Fixed(bytes) = self.key_size
            && (bytes as usize) < digits
        {
            let keys = self.keys;
            return Err(Misuse(format!(
                "'--key-size {bytes}' with '--keys {keys}': this number of keys needs {digits} bytes"
            )));
        }
        if self.stamps && self.server.starts_with(super::server::UNIX) {
            return Err(Misuse(format!(
                "'--stamps' with '{}': only packets of TCP connections have stamps",
                self.server
            )));
        }
        let is_malformed = |agent: &&String| {
            agent.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err())
        };
        if let Some(agent) = self.agents.iter().find(is_malformed) {
            return Err(Misuse(format!("'--agents {agent}': expected HOST:PORT")));
        }
        let allowed = cpu::allowed();
        match self.pin.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(cpu) => {
                let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
                let allowed = allowed.join(", ");
                Err(Misuse(format!("'--pin {cpu}': this process may use the CPUs {allowed}")))
            }
            None => Ok(()),
        }
    }

    /// The rates to measure; 0 is a closed loop.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.scan.as_ref().map_or_else(|| vec![self.qps], |scan| scan.0.clone())
    }
}

/// The rates of a scan, in queries per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan(Vec<f64>);

impl FromStr for Scan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "it must be A:B:STEP, three numbers of queries per second above 0".to_owned();
        let numbers: Vec<f64> = text
            .split(':')
            .map(|word| qps(word).ok().filter(|qps| *qps > 0.0).ok_or_else(form))
            .collect::<Result<_, _>>()?;
        let [from, to, step] = numbers[..] else { return Err(form()) };
        if from > to {
            return Err(format!("it must begin with the lowest rate, but {from} is above {to}"));
        }
        let steps = ((to - from) / step + 1e-9) as usize;
        if steps >= SCAN_MAX {
            return Err(format!("it must have at most {SCAN_MAX} rates"));
        }
        Ok(Self((0..=steps).map(|number| from + number as f64 * step).collect()))
    }
}

impl fmt::Display for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&rates.join(","))
    }
}

fn qps(text: &str) -> Result<f64, String> {
    arguments::within(text, 0.1..=QPS_MAX)
        .or_else(|| arguments::within(text, 0.0..=0.0))
        .ok_or_else(|| format!("it must be 0 or a number between 0.1 and {QPS_MAX}"))
}

fn share(text: &str) -> Result<f64, String> {
    arguments::within(text, 0.0..=1.0).ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}

fn warm_up(text: &str) -> Result<f64, String> {
    arguments::within(text, 0.0..=3600.0)
        .ok_or_else(|| "it must be a number of seconds from 0 to 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: GeneratorConfig,
    }

    fn options(arguments: &str) -> Result<GeneratorConfig, clap::Error> {
        let words = ["command"].into_iter().chain(arguments.split_whitespace());
        Command::try_parse_from(words).map(|command| command.options)
    }

    #[test]
    fn a_scan_has_both_ends() {
        let rates = |text| options(&format!("x:1 --scan {text}")).unwrap().rates();
        assert_eq!(rates("10:30:10"), [10.0, 20.0, 30.0]);
        assert_eq!(rates("10:35:10"), [10.0, 20.0, 30.0]);
        assert_eq!(rates("0.1:0.3:0.1").len(), 3);
        assert_eq!(options("x:1").unwrap().rates(), [0.0]);
        for wrong in ["10", "10:20", "0:10:1", "10:20:0", "20:10:1", "a:b:c", "1:100000:1"] {
            assert!(options(&format!("x:1 --scan {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let misuse = |text: &str| options(text).unwrap().check().unwrap_err().0;
        assert!(misuse("x:1 --connections 2 --threads 3").contains("'--threads 3'"));
        assert!(misuse("x:1 --key-size 3 --keys 1001").contains("'--key-size 3'"));
        assert!(misuse("x:1 --agents a:1,b").contains("'--agents b'"));
        assert!(misuse("x:1 --pin 99999").contains("'--pin 99999'"));
        assert!(options("x:1 --key-size 3 --keys 1000").unwrap().check().is_ok());
        for wrong in ["--qps -1", "--update 1.1", "--qps 5 --scan 1:2:1", "--value-size 2MB"] {
            assert!(options(&format!("x:1 {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_go_to_other_hosts_as_text() {
        let options = options("x:1 --key-size 30 --arrival fb-ia --protocol resp").unwrap();
        let text = serde_json::to_string(&options).unwrap();
        let back: GeneratorConfig = serde_json::from_str(&text).unwrap();
        assert_eq!((back.key_size, back.value_size), (Length::Fixed(30), Length::Fb));
        assert_eq!((back.arrival, back.protocol), (ArrivalProcess::FbIa, Protocol::Resp));
    }
}
