//! Plans of the experiment, in TOML.

use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result};
use apus_irq::Mode;
use apus_net::cpu;
use clap::ValueEnum;
use serde::{Deserialize, Deserializer, de};

use crate::delivery::Load;
use apus_load::misuse::Misuse;
use apus_memcached::{ArrivalProcess, GeneratorConfig, IdleStrategy, Length, Protocol};

/// The cases of the letter, and suspension without deferral as the control.
const CASES: [&str; 12] = [
    "base",
    "defer10",
    "defer20",
    "defer50",
    "defer200",
    "fullbusy",
    "napibusy",
    "suspend0",
    "suspend10",
    "suspend20",
    "suspend50",
    "suspend200",
];

/// Name of the device that the command creates.
const VETH: &str = "veth";

/// Upper bound on receive queues of a veth pair.
const QUEUES_MAX: u32 = 64;

/// Upper bound on the duration of a run, in seconds.
const SECONDS_MAX: f64 = 3600.0;

/// A plan; every key but `server` has a default.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Plan {
    /// The server and its arguments. `{address}` and `{port}` in them stand for the address and port to listen on.
    pub(super) server: Vec<String>,
    /// The server's protocol: text, binary (memcached) or resp (Redis, Valkey). Default text.
    #[serde(deserialize_with = "named")]
    pub(super) protocol: Protocol,
    /// The device that packets reach it by: `veth`, a temporary pair, or the name of a NIC. Default veth.
    pub(super) device: String,
    /// Receive queues of the veth pair, 1 to 64. Default 1.
    pub(super) queues: u32,
    /// Whether NAPI instances of the veth pair have a thread on the server's CPUs, which stands for interrupts there. Default true.
    pub(super) threaded: bool,
    /// The server's address on a NIC.
    pub(super) address: Option<String>,
    /// The server's port. Default 11211.
    pub(super) port: u16,
    /// Hosts that generate the load for a server on a NIC, with `apus bench memcached-agent`: HOST:PORT.
    pub(super) agents: Vec<String>,
    /// Modes. Default: the eleven cases of the letter and suspend0.
    #[serde(deserialize_with = "modes")]
    pub(super) cases: Vec<Mode>,
    /// Percent of the rate of base in a closed loop, and MAX, a closed loop. Default 20, 40, 60, 80, 100, MAX.
    #[serde(deserialize_with = "loads_of")]
    pub(super) loads: Vec<Load>,
    /// Runs of each case at each load, 1 to 1000. Default 10, as in the letter.
    pub(super) runs: u32,
    /// Counted seconds of each run, 0.05 to 3600. Default 5.
    pub(super) seconds: f64,
    /// Seconds of load before the counted ones, 0 to 3600. Default 1.
    pub(super) warmup_s: f64,
    /// Connections of each load generator. Default 16.
    pub(super) connections: u32,
    /// Threads of each load generator. Default 1.
    pub(super) threads: u32,
    /// Upper bound on outstanding queries per connection. Default 1, as in the letter.
    pub(super) depth: u32,
    /// Gaps between queries: poisson, fb-ia or fixed. Default fb-ia, as in the letter.
    #[serde(deserialize_with = "named")]
    pub(super) arrival: ArrivalProcess,
    /// Number of keys. Default 10,000.
    pub(super) keys: u32,
    /// Length of keys: fb or bytes. Default fb.
    #[serde(deserialize_with = "length")]
    pub(super) key_size: Length,
    /// Length of values: fb or bytes. Default fb.
    #[serde(deserialize_with = "length")]
    pub(super) value_size: Length,
    /// Share of queries that set a value, 0 to 1. Default 0.03.
    pub(super) update: f64,
    /// CPUs of the server and of the load generator.
    pub(super) pin: Pins,
    /// Seed of the first run's random numbers. Default 1.
    pub(super) seed: u64,
}

/// CPUs by number.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Pins {
    /// CPUs of the server. Default: the last one that this process may use.
    pub(super) server: Vec<usize>,
    /// CPUs of the load generator on this host. Default: all others.
    pub(super) client: Vec<usize>,
}

impl Default for Plan {
    fn default() -> Self {
        let loads = [20, 40, 60, 80, 100].map(Load::Percent).into_iter().chain([Load::Max]);
        Self {
            server: Vec::new(),
            protocol: Protocol::Text,
            device: VETH.to_owned(),
            queues: 1,
            threaded: true,
            address: None,
            port: 11_211,
            agents: Vec::new(),
            cases: CASES.iter().map(|case| mode(case).expect("they are modes")).collect(),
            loads: loads.collect(),
            runs: 10,
            seconds: 5.0,
            warmup_s: 1.0,
            connections: 16,
            threads: 1,
            depth: 1,
            arrival: ArrivalProcess::FbIa,
            keys: 10_000,
            key_size: Length::Fb,
            value_size: Length::Fb,
            update: 0.03,
            pin: Pins::default(),
            seed: 1,
        }
    }
}

impl Plan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// If the file cannot be read; [`Misuse`] with the key, its value and the allowed values.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let what = || format!("plan `{}`", path.display());
        let text = fs::read_to_string(path).with_context(what)?;
        Self::parse(&text).with_context(what)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut plan: Self = toml::from_str(text)?;
        let allowed = cpu::allowed();
        if plan.pin.server.is_empty() {
            plan.pin.server.extend(allowed.last());
        }
        if plan.pin.client.is_empty() && plan.agents.is_empty() {
            let others = allowed.iter().filter(|cpu| !plan.pin.server.contains(cpu));
            plan.pin.client = others.copied().collect();
        }
        Ok(plan)
    }

    /// Checks the plan before any measurement, and after the command line has replaced values.
    ///
    /// # Errors
    /// [`Misuse`] with the key, its value and the allowed values.
    pub(super) fn check(&self) -> Result<(), Misuse> {
        within("seconds", self.seconds, 0.05, SECONDS_MAX)?;
        within("warmup_s", self.warmup_s, 0.0, SECONDS_MAX)?;
        within("runs", self.runs.into(), 1.0, 1000.0)?;
        within("connections", self.connections.into(), 1.0, 100_000.0)?;
        within("threads", self.threads.into(), 1.0, 256.0)?;
        within("depth", self.depth.into(), 1.0, 65_536.0)?;
        within("keys", self.keys.into(), 1.0, 1e7)?;
        within("update", self.update, 0.0, 1.0)?;
        within("queues", self.queues.into(), 1.0, QUEUES_MAX.into())?;
        let needs = |key: &str, why: &str| Err(Misuse(format!("{key} = []: {why}")));
        match () {
            () if self.server.is_empty() => needs("server", "it must name a program"),
            () if self.cases.is_empty() => needs("cases", "it must name a mode"),
            () if self.loads.is_empty() => needs("loads", "it must have a load"),
            () => self.check_device().and_then(|()| self.check_cpus()),
        }
    }

    fn check_device(&self) -> Result<(), Misuse> {
        let device = &self.device;
        match (self.is_veth(), &self.address, self.agents.is_empty()) {
            (true, Some(address), _) => Err(Misuse(format!(
                "address = \"{address}\" with device = \"{VETH}\": the command chooses the addresses of its pair"
            ))),
            (true, None, false) => Err(Misuse(format!(
                "agents = {:?} with device = \"{VETH}\": other hosts do not reach a pair of this host",
                self.agents
            ))),
            (false, None, _) => Err(Misuse(format!(
                "device = \"{device}\" needs an address: the server's on this device"
            ))),
            (false, Some(_), true) => Err(Misuse(format!(
                "device = \"{device}\" needs agents: hosts that run `apus bench memcached-agent`, because load from this host \
                 would not pass the device"
            ))),
            (true, None, true) | (false, Some(_), false) => Ok(()),
        }
    }

    fn check_cpus(&self) -> Result<(), Misuse> {
        let allowed = cpu::allowed();
        for (key, cpus) in [("pin.server", &self.pin.server), ("pin.client", &self.pin.client)] {
            if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
                return Err(Misuse(format!(
                    "{key} = {cpus:?}: this process may not use CPU {cpu}; allowed are {allowed:?}"
                )));
            }
        }
        let (server, client) = (&self.pin.server, &self.pin.client);
        if self.is_veth() && client.is_empty() {
            return Err(Misuse(format!(
                "pin.server = {server:?} leaves no CPU to the load generator, which never sleeps"
            )));
        }
        match client.iter().find(|cpu| server.contains(cpu)) {
            Some(cpu) => Err(Misuse(format!(
                "pin.client = {client:?} and pin.server = {server:?} share CPU {cpu}: the load generator never sleeps"
            ))),
            None => Ok(()),
        }
    }

    /// Whether the command creates the device.
    pub(super) fn is_veth(&self) -> bool {
        self.device == VETH
    }

    /// The options of the load generator, for a server at this address.
    pub(super) fn generator(&self, address: &str) -> GeneratorConfig {
        GeneratorConfig {
            server: format!("{address}:{}", self.port),
            protocol: self.protocol,
            qps: 0.0,
            scan: None,
            arrival: self.arrival,
            connections: self.connections,
            threads: self.threads,
            depth: self.depth,
            seconds: self.seconds,
            warmup: self.warmup_s,
            runs: 1,
            keys: self.keys,
            key_size: self.key_size,
            value_size: self.value_size,
            update: self.update,
            no_load: true,
            stamps: false,
            wait: IdleStrategy::Spin,
            pin: self.pin.client.clone(),
            agents: self.agents.clone(),
            seed: self.seed,
        }
    }

    /// The server's command line.
    pub(super) fn server_command(&self, address: &str) -> Vec<String> {
        let fill = |word: &String| {
            word.replace("{address}", address).replace("{port}", &self.port.to_string())
        };
        self.server.iter().map(fill).collect()
    }
}

fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), Misuse> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Misuse(format!("{key} = {value}: it must be from {low} to {high}")))
}

/// Reads modes by name.
pub(super) fn mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|error: apus_irq::UnknownMode| error.to_string())
}

/// A mode's name as in the published tables: `suspend20`, which is `suspend:20` in `apus irq`.
pub(super) fn testcase(mode: Mode) -> String {
    mode.to_string().replacen(':', "", 1)
}

fn modes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Mode>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| mode(text).map_err(de::Error::custom)).collect()
}

fn loads_of<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Load>, D::Error> {
    let of = |text: &str| {
        let load = text.parse().map_err(|why| format!("load `{text}`: {why}"));
        load.map_err(de::Error::custom)
    };
    let values = Vec::<toml::Value>::deserialize(from)?;
    let text =
        |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    values.iter().map(|value| of(&text(value))).collect()
}

fn length<'de, D: Deserializer<'de>>(from: D) -> Result<Length, D::Error> {
    let value = toml::Value::deserialize(from)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.parse().map_err(|why: String| de::Error::custom(format!("length `{text}`: {why}")))
}

/// Parses a value by its name on the command line.
fn named<'de, T: ValueEnum + fmt::Debug, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    T::from_str(&text, false).map_err(|_| {
        let names = T::value_variants().iter().filter_map(|it| it.to_possible_value());
        let names: Vec<String> = names.map(|it| it.get_name().to_owned()).collect();
        de::Error::custom(format!("`{text}`: allowed are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTEST: &str = "server = ['memcached', '-l', '{address}', '-p', '{port}']\n";

    fn plan(text: &str) -> Result<Plan> {
        Plan::parse(&format!("{SHORTEST}{text}"))
    }

    fn why(text: &str) -> String {
        match plan(text) {
            Err(error) => format!("{error:#}"),
            Ok(plan) => plan.check().unwrap_err().0,
        }
    }

    #[test]
    fn all_but_the_server_has_defaults() {
        let plan = plan("").unwrap();
        let cases: Vec<String> = plan.cases.iter().copied().map(testcase).collect();
        assert_eq!(cases, CASES);
        assert_eq!((plan.loads.len(), plan.runs, plan.depth), (6, 10, 1));
        assert_eq!(plan.server_command("10.0.0.1")[1..], ["-l", "10.0.0.1", "-p", "11211"]);
        assert_eq!(plan.generator("10.0.0.1").server, "10.0.0.1:11211");
    }

    #[test]
    fn what_is_written_counts() {
        let text = "protocol = 'resp'\ncases = ['base', 'suspend:20']\nloads = [50, 'MAX']\n\
                    value_size = 100\nkey_size = 'fb'\narrival = 'poisson'\n";
        let plan = plan(text).unwrap();
        assert_eq!(plan.cases.len(), 2);
        assert_eq!(plan.loads, [Load::Percent(50), Load::Max]);
        assert_eq!((plan.value_size, plan.key_size), (Length::Fixed(100), Length::Fb));
        assert_eq!((plan.protocol, plan.arrival), (Protocol::Resp, ArrivalProcess::Poisson));
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (text, words) in [
            ("colour = 1", &["colour"][..]),
            ("protocol = 'http'", &["`http`", "text, binary, resp"]),
            ("cases = ['suspend']", &["`suspend`", "1 to 100000"]),
            ("loads = [0]", &["load `0`", "MAX"]),
            ("loads = []", &["loads = []"]),
            ("runs = 0", &["runs = 0", "1 to 1000"]),
            ("seconds = 0.01", &["seconds = 0.01"]),
            ("value_size = 'long'", &["length `long`", "fb"]),
            ("address = '10.0.0.1'", &["address", "veth"]),
            ("agents = ['a:1']", &["agents", "veth"]),
            ("device = 'eth1'", &["eth1", "address"]),
            ("device = 'eth1'\naddress = '10.0.0.1'", &["eth1", "memcached-agent"]),
            ("[pin]\nserver = [99999]", &["pin.server", "99999", "allowed are"]),
        ] {
            let why = why(text);
            for word in words {
                assert!(why.contains(word), "{text}: no '{word}' in: {why}");
            }
        }
        let first = cpu::allowed()[0];
        assert!(why(&format!("[pin]\nserver = [{first}]\nclient = [{first}]")).contains("share"));
        let error = Plan::parse("").unwrap().check().unwrap_err().0;
        assert!(error.contains("server = []"), "a plan needs a server: {error}");
    }
}
