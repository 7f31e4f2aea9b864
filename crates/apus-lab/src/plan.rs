//! Plans in TOML, and their settings.
//!
//! Keys at the top hold for all measurements. Each `[[run]]` is one measurement with keys of its own. Each key of `[sweep]` has a
//! list of values, and every measurement is made with each combination of the values.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use apus::{Delivery, DeliveryError};
use apus_load::Workload;
use apus_node::arguments;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::network::HOSTS_MAX;
use crate::rival::{TcpRival, TcpSetUp, check_connections, size};

/// Upper bound on the rate of emulated links, in Mb/s.
pub const LINK_MBPS_MAX: u32 = 10_000;

/// Upper bound on the rate of a real cluster's links, in Mb/s.
const CLUSTER_MBPS_MAX: u32 = 1_000_000;

/// Lower bound on a host's share of a processor: the kernel leaves a twentieth to processes that the lab holds up.
const HOST_CPU_MIN: f64 = 0.06;

/// The setting of one measurement. Absent keys have defaults.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Setting {
    /// Number of hosts. Default 10.
    pub hosts: usize,
    /// Rate of every link in Mb/s, in both directions. Default 50.
    pub link_mbps: f64,
    /// Whether Apus is configured with this rate, which is unknown to it otherwise. Default true.
    pub link_rate_known: bool,
    /// Share of a processor that each host has, on a processor of its own. If absent, all hosts share all processors.
    pub host_cpu: Option<f64>,
    /// Upper bound on an IP packet, in bytes. Default 1500.
    pub mtu: u32,
    /// The contenders, measured in turn: `apus`, `tcp`, or `apus+tcp` for both at the same time. Default apus and tcp.
    pub transports: Vec<Contender>,
    /// Share of the load that Apus carries in `apus+tcp`. Default 0.5.
    pub apus_share: f64,
    /// Lengths of requests: w1 to w5, a size, mix, or weight:size,… Default w4.
    pub workload: String,
    /// Upper bound to which longer requests are cut, as by the Linux module. Default 1 MB.
    pub longest: String,
    /// Length of replies; the request's length if absent.
    pub reply: Option<String>,
    /// The callers and the called hosts.
    pub pattern: Pattern,
    /// Share of each link that messages and their packets' headers fill, or "max", or "unloaded". Default 0.8.
    pub load: LoadLevel,
    /// Outstanding calls of each host: at `max` the exact number (default 8), otherwise an upper bound (default 5,000).
    pub outstanding: Option<u32>,
    /// The counted time, in seconds. Default 30.
    pub seconds: f64,
    /// Load before the counted time, in seconds. Default 3.
    pub warmup_s: f64,
    /// Load after the counted time, in which calls may end, in seconds. Default 5.
    pub drain_s: f64,
    /// Number of repetitions, each with other random numbers. Default 1.
    pub repetitions: u32,
    /// Seed of the first repetition.
    pub seed: u64,
    /// Number of Apus' priorities. Default 8.
    pub priorities: u8,
    /// Packet delivery of Apus. Default suspend.
    pub delivery: String,
    /// Settings of Apus by their keys, see `apus::Config`.
    pub apus: BTreeMap<String, Value>,
    /// Numbers of TCP connections for each pair of hosts; the best one is used. Default 1, 2, 4, 8.
    pub connections: Vec<usize>,
    /// TCP's congestion control; the system's if absent.
    pub congestion: Option<String>,
    /// Set-ups of TCP; the best one is used. Without any, TCP has `connections` and `congestion`.
    pub tcp: Vec<TcpSetUp>,
    /// Bytes in each class of a switch port. Default 128 kB.
    pub switch_queue: String,
    /// Bytes in the queue of a host's own link. Default 30 kB.
    pub host_queue: String,
    /// Keys and values from the sweep, for the result.
    #[serde(skip)]
    pub swept: Vec<(String, String)>,
    /// Whether the plan sets the links' rate.
    #[serde(skip)]
    pub names_link_mbps: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            hosts: 10,
            link_mbps: 50.0,
            link_rate_known: true,
            host_cpu: None,
            mtu: 1500,
            transports: vec![Contender::Apus, Contender::Tcp],
            apus_share: 0.5,
            workload: "w4".to_owned(),
            longest: "1MB".to_owned(),
            reply: None,
            pattern: Pattern::AllToAll,
            load: LoadLevel::Share(0.8),
            outstanding: None,
            seconds: 30.0,
            warmup_s: 3.0,
            drain_s: 5.0,
            repetitions: 1,
            seed: 1,
            priorities: 8,
            delivery: Delivery::default().to_string(),
            apus: BTreeMap::new(),
            connections: vec![1, 2, 4, 8],
            congestion: None,
            tcp: Vec::new(),
            switch_queue: "128kB".to_owned(),
            host_queue: "30kB".to_owned(),
            swept: Vec::new(),
            names_link_mbps: false,
        }
    }
}

/// A contender: one transport, or both together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Contender {
    /// Apus alone
    Apus,
    /// Kernel TCP alone
    Tcp,
    /// Both at the same time
    #[serde(rename = "apus+tcp")]
    #[value(name = "apus+tcp")]
    Both,
}

impl Contender {
    /// Its name in titles.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Apus => "apus",
            Self::Tcp => "tcp",
            Self::Both => "apus and tcp at the same time",
        }
    }
}

/// The callers and the called hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Every host calls all others equally
    AllToAll,
    /// The first host calls all others, so that their replies meet at its port
    Incast,
}

/// The offered load.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum LoadLevel {
    /// This share of each link.
    Share(f64),
    /// As much as possible.
    Max,
    /// One call at a time on the whole network.
    Unloaded,
}

impl fmt::Display for LoadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{:.0} %", share * 100.0),
            Self::Max => f.write_str("max"),
            Self::Unloaded => f.write_str("unloaded"),
        }
    }
}

impl std::str::FromStr for LoadLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("max", _) => Ok(Self::Max),
            ("unloaded", _) => Ok(Self::Unloaded),
            (_, Ok(share)) if (0.001..=1.0).contains(&share) => Ok(Self::Share(share)),
            _ => Err(format!("load `{text}`: it must be a share from 0.001 to 1, max or unloaded")),
        }
    }
}

impl TryFrom<Value> for LoadLevel {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => text.parse(),
            other => other.to_string().parse(),
        }
    }
}

impl From<LoadLevel> for Value {
    fn from(level: LoadLevel) -> Self {
        match level {
            LoadLevel::Share(share) => Self::Float(share),
            other => Self::String(other.to_string()),
        }
    }
}

impl Setting {
    /// The lengths of requests.
    pub fn workload(&self) -> Result<Workload> {
        arguments::workload(&self.workload)
            .map_err(|error| wrong("workload", &self.workload, &error))
    }

    /// Upper bound on a request, in bytes.
    pub fn longest(&self) -> Result<u32> {
        size("longest", &self.longest)
    }

    /// Length of replies, as in [`apus_node::transport::interface::Request::reply`].
    pub fn reply(&self) -> Result<u32> {
        self.reply.as_deref().map_or(Ok(0), |reply| size("reply", reply))
    }

    /// All ways to run TCP that the setting names.
    ///
    /// # Errors
    /// If a length cannot be read.
    pub(crate) fn tcp_rivals(&self) -> Result<Vec<TcpRival>> {
        let default = [TcpSetUp::default()];
        let set_ups = if self.tcp.is_empty() { &default[..] } else { &self.tcp };
        let mut all = Vec::new();
        for set_up in set_ups {
            all.extend(set_up.rivals(&self.connections, self.congestion.as_deref())?);
        }
        Ok(all)
    }

    /// Bytes in each class of a switch port.
    pub fn switch_queue(&self) -> Result<u32> {
        size("switch_queue", &self.switch_queue)
    }

    /// Bytes in the queue of a host's own link.
    pub fn host_queue(&self) -> Result<u32> {
        size("host_queue", &self.host_queue)
    }

    /// The settings of Apus nodes: the link's rate, then the plan's own settings.
    pub fn apus_settings(&self) -> BTreeMap<String, String> {
        let mut settings = BTreeMap::from([
            // A device of the lab always reports 10 Gb/s.
            ("link_mbps".to_owned(), "0".to_owned()),
            ("priorities".to_owned(), self.priorities.to_string()),
            // The switch must receive packets one by one.
            ("gso".to_owned(), "false".to_owned()),
        ]);
        if self.link_rate_known {
            settings.extend([
                ("link_mbps".to_owned(), format!("{:.0}", self.link_mbps.max(1.0))),
                // One full packet, less than the default, so that short messages wait less.
                ("pacing_backlog".to_owned(), "100 us".to_owned()),
            ]);
        }
        for (key, value) in &self.apus {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            settings.insert(key.clone(), text);
        }
        settings
    }

    /// Checks the setting before any measurement.
    ///
    /// # Errors
    /// If a value is not allowed: with the key, the value and the allowed values.
    pub fn check(&self) -> Result<()> {
        let within = |key: &str, value: f64, low: f64, high: f64| {
            ensure!(
                (low..=high).contains(&value),
                "{key} = {value}: it must be from {low} to {high}"
            );
            Ok(())
        };
        within("hosts", self.hosts as f64, 2.0, HOSTS_MAX as f64)?;
        within("link_mbps", self.link_mbps, 1.0, CLUSTER_MBPS_MAX.into())?;
        within("mtu", self.mtu.into(), 576.0, 9000.0)?;
        if let Some(share) = self.host_cpu {
            within("host_cpu", share, HOST_CPU_MIN, 1.0)?;
        }
        within("apus_share", self.apus_share, 0.01, 0.99)?;
        within("seconds", self.seconds, 0.1, 1e5)?;
        within("warmup_s", self.warmup_s, 0.0, 1e4)?;
        within("drain_s", self.drain_s, 0.0, 1e4)?;
        within("repetitions", self.repetitions.into(), 1.0, 1000.0)?;
        within("priorities", self.priorities.into(), 1.0, 8.0)?;
        ensure!(!self.transports.is_empty(), "transports = []: apus, tcp or apus+tcp");
        check_connections(&self.connections)?;
        self.tcp.iter().try_for_each(TcpSetUp::check)?;
        let delivery = &self.delivery;
        delivery.parse::<Delivery>().map_err(|error: DeliveryError| {
            wrong("delivery", delivery, &format!("expected {}", error.expected()))
        })?;
        let mut config = apus::Config::new();
        for (key, value) in self.apus_settings() {
            config.set(&key, &value)?;
        }
        self.workload()?;
        self.longest()?;
        self.reply()?;
        self.switch_queue()?;
        self.host_queue().map(drop)
    }

    /// Checks that the emulated network can run the setting on a machine with this number of processors.
    ///
    /// # Errors
    /// If a value is not allowed: with the key, the value and the allowed values.
    pub fn check_emulated(&self, processors: usize) -> Result<()> {
        let mbps = self.link_mbps;
        ensure!(
            self.host_cpu.is_none() || self.hosts <= processors,
            "host_cpu with hosts = {}: each host needs a processor, and there are {processors}",
            self.hosts
        );
        ensure!(
            mbps <= LINK_MBPS_MAX.into(),
            "link_mbps = {mbps}: it must be from 1 to {LINK_MBPS_MAX} in the lab"
        );
        Ok(())
    }

    /// The name of the setting during the measurement.
    pub fn name(&self) -> String {
        let mut name = format!("{} at {}", self.workload, self.load);
        for (key, value) in &self.swept {
            name += &format!(", {key} {value}");
        }
        name
    }
}

fn wrong(key: &str, value: &str, allowed: &str) -> anyhow::Error {
    anyhow::anyhow!("{key} = `{value}`: {allowed}")
}

/// All settings of a plan, in order.
///
/// # Errors
/// If the text is not TOML, a key is unknown, or a value is not allowed.
pub fn settings(text: &str) -> Result<Vec<Setting>> {
    let mut base: Table = text.parse().context("not TOML")?;
    let runs = match base.remove("run") {
        None => vec![Table::new()],
        Some(Value::Array(runs)) => runs
            .into_iter()
            .map(|run| run.try_into().context("`[[run]]`"))
            .collect::<Result<Vec<Table>>>()?,
        Some(_) => bail!("`run` must be written as `[[run]]` tables"),
    };
    let sweep = match base.remove("sweep") {
        None => Table::new(),
        Some(sweep) => sweep.try_into().context("`[sweep]`")?,
    };
    let mut settings = Vec::new();
    for run in runs {
        let mut table = base.clone();
        table.extend(run);
        for (table, swept) in combinations(table, &sweep)? {
            let names_link_mbps = table.contains_key("link_mbps");
            let setting: Setting = table.try_into()?;
            setting.check()?;
            settings.push(Setting { swept, names_link_mbps, ..setting });
        }
    }
    Ok(settings)
}

/// A setting with its keys and values from the sweep.
type Swept = (Table, Vec<(String, String)>);

/// A table with every combination of the values of `sweep`. A key `apus.x` is `x` of the table `apus`.
fn combinations(table: Table, sweep: &Table) -> Result<Vec<Swept>> {
    let mut all: Vec<Swept> = vec![(table, Vec::new())];
    for (key, values) in sweep {
        let values = values
            .as_array()
            .with_context(|| format!("`{key}` of `[sweep]` must be a list of values"))?;
        let with = |(table, swept): &Swept, value: &Value| {
            let (mut table, mut swept) = (table.clone(), swept.clone());
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            swept.push((key.clone(), shown));
            match key.strip_prefix("apus.") {
                Some(inner) => {
                    let apus = table.entry("apus").or_insert_with(|| Table::new().into());
                    let apus = apus.as_table_mut().context("`apus` must be a table")?;
                    apus.insert(inner.to_owned(), value.clone());
                }
                None => drop(table.insert(key.clone(), value.clone())),
            }
            Ok((table, swept))
        };
        all = all
            .iter()
            .flat_map(|before| values.iter().map(move |value| with(before, value)))
            .collect::<Result<_>>()?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_sweeps_make_settings() {
        let plan = "
            seconds = 10
            [[run]]
            workload = 'w3'
            [[run]]
            workload = 'w5'
            seconds = 60
            [sweep]
            priorities = [1, 8]
            'apus.incast_threshold' = [5]
        ";
        let settings = settings(plan).unwrap();
        let seen: Vec<_> =
            settings.iter().map(|s| (s.workload.as_str(), s.seconds, s.priorities)).collect();
        assert_eq!(seen, [("w3", 10.0, 1), ("w3", 10.0, 8), ("w5", 60.0, 1), ("w5", 60.0, 8)]);
        assert_eq!(settings[0].swept[1], ("priorities".to_owned(), "1".to_owned()));
        assert_eq!(settings[0].apus_settings()["incast_threshold"], "5");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        for (plan, words) in [
            ("hosts = 1", "hosts = 1"),
            ("load = 2.0", "load `2.0`: it must be"),
            ("load = 'much'", "load `much`"),
            ("workload = 'w9'", "workload = `w9`"),
            ("speed = 3", "unknown field `speed`"),
            ("[apus]\nspeed = 3", "unknown setting 'speed'"),
            ("delivery = 'x'", "delivery = `x`: expected "),
            ("[sweep]\nhosts = 3", "`hosts` of `[sweep]` must be a list"),
            ("run = 3", "`[[run]]`"),
        ] {
            let error = format!("{:#}", settings(plan).unwrap_err());
            assert!(error.contains(words), "{plan}: {error}");
        }
    }

    #[test]
    fn the_lab_emulates_no_link_that_a_machine_cannot_carry() {
        let fast = |mbps: u32| settings(&format!("link_mbps = {mbps}")).unwrap().remove(0);
        assert!(fast(10_000).check_emulated(2).is_ok() && fast(10_000).names_link_mbps);
        let error = fast(25_000).check_emulated(2).unwrap_err().to_string();
        assert_eq!(error, "link_mbps = 25000: it must be from 1 to 10000 in the lab");
        assert!(!settings("").unwrap()[0].names_link_mbps);
    }

    #[test]
    fn slow_hosts_have_a_processor_each() {
        let slow =
            |hosts: usize| settings(&format!("hosts = {hosts}\nhost_cpu = 0.3")).unwrap().remove(0);
        assert!(slow(2).check_emulated(2).is_ok());
        let error = slow(3).check_emulated(2).unwrap_err().to_string();
        assert_eq!(error, "host_cpu with hosts = 3: each host needs a processor, and there are 2");
        let error = settings("host_cpu = 0.01").unwrap_err().to_string();
        assert_eq!(error, "host_cpu = 0.01: it must be from 0.06 to 1");
    }

    #[test]
    fn nodes_need_not_know_the_rate_of_their_links() {
        let known = settings("link_mbps = 200").unwrap()[0].apus_settings();
        assert_eq!(
            (known["link_mbps"].as_str(), known["pacing_backlog"].as_str()),
            ("200", "100 us")
        );
        let unknown =
            settings("link_mbps = 200\nlink_rate_known = false").unwrap()[0].apus_settings();
        assert_eq!((unknown["link_mbps"].as_str(), unknown.get("pacing_backlog")), ("0", None));
    }

    #[test]
    fn the_plans_that_come_with_the_program_are_sound() {
        let plans = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plans");
        let mut seen = 0;
        for entry in std::fs::read_dir(plans).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_string_lossy().starts_with("lab-") {
                let found = settings(&std::fs::read_to_string(&path).unwrap());
                assert!(found.is_ok_and(|found| !found.is_empty()), "{}", path.display());
                seen += 1;
            }
        }
        assert!(seen >= 8, "{seen}");
    }

    #[test]
    fn the_default_is_sound() {
        Setting::default().check().unwrap();
        assert_eq!(settings("").unwrap(), [Setting::default()]);
        assert_eq!(settings("load = 'max'").unwrap()[0].load, LoadLevel::Max);
        assert_eq!(settings("transports = ['apus+tcp']").unwrap()[0].transports, [Contender::Both]);
    }
}
