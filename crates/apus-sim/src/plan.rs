//! Plans of simulations.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use apus_proto::{Config, SettingError};
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};
use thiserror::Error;
use toml::{Table, Value};

use crate::fabric::Buffers;
use crate::framing::Framing;
use crate::sizes::Sizes;
use crate::topology::{Links, Topology};

/// One simulation, as read from TOML. All fields have defaults: Homa on the paper's network with W4 at 80 % for 100 ms.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// The network's shape.
    pub topology: Topology,
    /// The hosts' transport.
    pub transport: Protocol,
    /// The message lengths.
    pub workload: Sizes,
    /// The share of each host's link that messages and their packets' headers fill. Default 0.8.
    pub load: f64,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Simulated time in which the measured messages begin, in ms. Default 100.
    pub sim_ms: f64,
    /// Simulated time before it, in ms; a fifth of `sim_ms` if absent.
    pub warmup_ms: Option<f64>,
    /// Simulated time after it in which the load continues and messages may end, in ms; twice `sim_ms` if absent. A run ends early
    /// when all measured messages have ended.
    pub drain_ms: Option<f64>,
    /// The senders and receivers of messages.
    pub pattern: Pattern,
    /// The times at which messages begin.
    pub arrivals: Arrivals,
    /// A file of messages, one `time_ns,source,destination,bytes` per line, which replaces `workload`, `load`, `pattern` and
    /// `arrivals`. Relative to the program's working directory.
    pub trace: Option<PathBuf>,
    /// The messages of an exchange.
    pub exchange: Exchange,
    /// Whether every packet takes its own path through the network; otherwise every pair of hosts has one path. Default true, as in
    /// the paper. TCP and DCTCP always use one path.
    pub spray: bool,
    /// The buffer space of switches.
    pub buffers: Buffers,
    /// Upper bound on bytes at each port of a layer of switches, by the layer's name in the results (`tor_up`, `spine_down`,
    /// `tor_down`, …), in addition to `buffers`.
    pub layer_bytes: BTreeMap<String, u64>,
    /// Rates and delays.
    pub links: Links,
    /// The packetization of messages.
    pub framing: Framing,
    /// Settings of transport `apus`.
    pub homa: HomaPlan,
    /// Settings of the transports `tcp-newreno`, `tcp-cubic` and `dctcp`.
    pub tcp: TcpPlan,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            topology: Topology::PAPER,
            transport: Protocol::Apus,
            workload: "w4".parse().expect("w4 is known"),
            load: 0.8,
            seed: 1,
            sim_ms: 100.0,
            warmup_ms: None,
            drain_ms: None,
            pattern: Pattern::Uniform,
            arrivals: Arrivals::Poisson,
            trace: None,
            exchange: Exchange::OneWay,
            spray: true,
            buffers: Buffers::Unlimited,
            layer_bytes: BTreeMap::new(),
            links: Links::default(),
            framing: Framing::default(),
            homa: HomaPlan::default(),
            tcp: TcpPlan::default(),
        }
    }
}

/// The transport of the hosts.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Serialize,
    Deserialize,
    strum::Display,
    EnumString,
    IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = Protocol::unknown)]
pub enum Protocol {
    /// The production core.
    Apus,
    /// pFabric (SIGCOMM 2013).
    Pfabric,
    /// DCTCP (RFC 8257), one connection per message.
    Dctcp,
    /// TCP NewReno (RFC 6582), one connection per message.
    TcpNewreno,
    /// TCP CUBIC (RFC 9438), one connection per message.
    TcpCubic,
    /// Shortest remaining time first with full knowledge: a lower bound.
    SrptOracle,
}

impl Protocol {
    /// All transports.
    pub const ALL: [Self; 6] = [
        Self::Apus,
        Self::Pfabric,
        Self::Dctcp,
        Self::TcpNewreno,
        Self::TcpCubic,
        Self::SrptOracle,
    ];

    /// Its name in plans and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    fn unknown(text: &str) -> String {
        format!("`{text}` is not a transport; known are {}", Self::ALL.map(Self::name).join(", "))
    }
}

/// The senders and receivers of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Each host to all other hosts, equally.
    #[default]
    Uniform,
    /// All hosts to the first host. `load` is the load of the first host's link.
    Incast,
    /// Each host to the hosts of its rack.
    RackLocal,
    /// Each host to one other, the host half the network away.
    Permutation,
}

/// The times at which messages begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At random times, independent of earlier messages (open loop).
    #[default]
    Poisson,
    /// The first host keeps this many exchanges in progress, with each other host in turn.
    Closed(u32),
}

/// The messages of an exchange, and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// A message, which ends when it has arrived, as in the paper's simulations. Packets that only answer it bypass the network, in
    /// the least time of a packet without payload (2.4 µs between the racks of the paper's network), and take no bandwidth, because
    /// `load` does not count them: with transport `apus`, whose message is a request, the one-byte response and the
    /// acknowledgement; with pFabric and TCP, all acknowledgements.
    #[default]
    OneWay,
    /// A request and a response of the same length. Transport `apus` only.
    Echo,
    /// A request and a response of this many bytes. Transport `apus` only.
    Response(u32),
}

/// Settings of the production core. Absent settings come from the profile.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HomaPlan {
    /// The source of absent settings.
    pub profile: Profile,
    /// Number of priority levels. See `apus_proto::Config` for this and the other settings.
    pub priorities: Option<u8>,
    /// Number of messages granted at a time.
    pub overcommitment: Option<usize>,
    /// Bytes sent without a grant, before and after the path is measured.
    pub unscheduled: Option<u32>,
    /// Upper bound on bytes expected from all senders.
    pub max_incoming: Option<u64>,
    /// Thousandths of the grants for the oldest message.
    pub fifo_share: Option<u32>,
    /// Number of outstanding calls that make an incast; a large number turns incast control off.
    pub incast_threshold: Option<u32>,
    /// Least silence before a retransmission is requested, in µs.
    pub resend_min_us: Option<u64>,
    /// Upper bound on bytes granted to one message and not yet received.
    pub window_max: Option<u64>,
    /// Whether cutoffs follow the traffic.
    pub learn_cutoffs: Option<bool>,
    /// Whether priorities follow the rest of a message.
    pub priority_by_rest: Option<bool>,
}

/// Settings of TCP and DCTCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpPlan {
    /// Least silence before a retransmission, in µs, 1 to 10,000,000. Default 1000, as datacenters set it. A run takes at least the
    /// round trip with full queues, if the buffers of switches are finite.
    pub rto_min_us: u64,
}

impl Default for TcpPlan {
    fn default() -> Self {
        Self { rto_min_us: 1_000 }
    }
}

/// A set of settings of the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// As in the paper's simulations (`homaTransportConfig.ini` of the authors' HomaSimulation): 9,328 unscheduled bytes and a
    /// window of 10,000 on the wire, levels split and cutoffs fixed for the workload, priority by the rest of a message, one
    /// granted message per scheduled level, no share for the oldest message, and no probes for late packets, because the paper's
    /// network loses nothing.
    #[default]
    Paper,
    /// The core's defaults, which adapt to the traffic.
    Production,
}

/// All settings of the core, including those that the core would derive or measure, so that a run depends on the plan alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Homa {
    /// Values by the names that [`Config::set`] takes; times in nanoseconds.
    numbers: BTreeMap<&'static str, u64>,
    pub(crate) cutoffs: Option<[u32; 8]>,
    pub(crate) link_gbps: u64,
}

/// The settings that every plan sets, by default to the core's defaults.
const SETTINGS: [&str; 14] = [
    "priorities",
    "overcommitment",
    "unscheduled",
    "unscheduled_min",
    "unscheduled_max",
    "max_incoming",
    "fifo_share",
    "incast_threshold",
    "incast_unscheduled",
    "resend_min",
    "resend_initial",
    "window_max",
    "learn_cutoffs",
    "priority_by_rest",
];

/// The paper's unscheduled limit, in bytes.
const PAPER_UNSCHEDULED: u32 = 9_328;

/// The paper's window: packets are granted while less than 10,000 bytes on the wire are in flight, which makes seven packets.
const PAPER_WINDOW: u64 = 7 * 1_442;

/// The paper bounds the grants of each message, not their sum; this bound has no effect.
const PAPER_MAX_INCOMING: u64 = 1_000_000;

/// The paper's network loses nothing, and its hosts request no retransmissions; in nanoseconds.
const PAPER_RESEND: u64 = 10_000_000_000;

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    ///
    /// If the text is not TOML, has an unknown name, or has an impossible value.
    pub fn from_toml(text: &str) -> Result<Self, PlanError> {
        let plan: Self =
            toml::from_str(text).map_err(|source| PlanError::Toml(Box::new(source)))?;
        plan.validate()?;
        Ok(plan)
    }

    /// The plan as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("all of a plan's fields have a form in TOML")
    }

    /// The plan as JSON, with all values that have defaults.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("all of a plan's fields have a form in JSON")
    }

    /// The plan with some values set by name, such as `homa.priorities = 4`. A value is TOML, or a text without quotes.
    ///
    /// # Errors
    ///
    /// If a name is unknown or a value is impossible.
    pub fn with(&self, settings: &[(String, String)]) -> Result<Self, PlanError> {
        let toml = |source| PlanError::Toml(Box::new(source));
        let mut table = Table::try_from(self).expect("all of a plan's fields have a form in TOML");
        for (name, text) in settings {
            let read = toml::from_str::<Table>(&format!("value = {text}"));
            let value = read.ok().and_then(|mut table| table.remove("value"));
            let value = value.unwrap_or_else(|| Value::String(text.clone()));
            set(&mut table, name, value)?;
        }
        let plan: Self = Value::Table(table).try_into().map_err(toml)?;
        plan.validate()?;
        Ok(plan)
    }

    /// Checks that the plan can be run.
    ///
    /// # Errors
    ///
    /// If a value is out of range, or two values contradict each other.
    pub fn validate(&self) -> Result<(), PlanError> {
        let wrong = |what: &'static str, value: String, allowed: &'static str| {
            Err(PlanError::Value { what, value, allowed })
        };
        if !(self.load > 0.0 && self.load <= 2.0) {
            return wrong("load", self.load.to_string(), "above 0, up to 2");
        }
        if !(self.sim_ms > 0.0 && self.sim_ms <= 1e6) {
            return wrong("sim_ms", self.sim_ms.to_string(), "above 0, up to 1000000");
        }
        let times = [self.warmup_ms, self.drain_ms];
        if let Some(ms) = times.into_iter().flatten().find(|ms| !(0.0..=1e6).contains(ms)) {
            return wrong("warmup_ms or drain_ms", ms.to_string(), "0 to 1000000");
        }
        if self.framing.mtu <= self.framing.headers || self.framing.mtu > 65_535 {
            return wrong(
                "framing.mtu",
                self.framing.mtu.to_string(),
                "above headers, up to 65535",
            );
        }
        for gbps in [self.links.host_gbps, self.links.core_gbps] {
            if !(1..=800).contains(&gbps) || 8_000 % gbps != 0 {
                return wrong(
                    "a link's rate",
                    gbps.to_string(),
                    "a divisor of 8000, up to 800 Gb/s",
                );
            }
        }
        if let Topology::Layout(layout) = &self.topology {
            layout.validate().map_err(PlanError::Layout)?;
            let other = layout.switches.iter().filter_map(|switch| switch.gbps);
            let other = other.into_iter().find(|&gbps| gbps != self.links.host_gbps);
            if let (Protocol::SrptOracle, Some(gbps)) = (self.transport, other) {
                return wrong(
                    "a switch's gbps",
                    gbps.to_string(),
                    "links.host_gbps with srpt-oracle",
                );
            }
        }
        let layers = self.topology.layers();
        if let Some(name) = self.layer_bytes.keys().find(|name| !layers[1..].contains(&&***name)) {
            return wrong("a name in layer_bytes", name.clone(), "a switch layer of the topology");
        }
        if self.trace.is_some() && self.arrivals != Arrivals::Poisson {
            return wrong(
                "arrivals",
                format!("{:?}", self.arrivals),
                "absent, because a trace is given",
            );
        }
        if self.transport != Protocol::Apus && self.exchange != Exchange::OneWay {
            return wrong("exchange", format!("{:?}", self.exchange), "one-way for rivals");
        }
        let rto_min_us = self.tcp.rto_min_us;
        if !(1..=10_000_000).contains(&rto_min_us) {
            return wrong("tcp.rto_min_us", rto_min_us.to_string(), "1 to 10000000");
        }
        if self.workload.longest() > 1 << 30 {
            return wrong("workload", self.workload.to_string(), "messages up to 1 GiB");
        }
        if let Some(priorities) = self.homa.priorities {
            Config::setting("priorities").check(priorities.into())?;
        }
        self.homa().config()?;
        self.check_losses()
    }

    /// Refuses a network that loses packets together with a core that does not request them again.
    fn check_losses(&self) -> Result<(), PlanError> {
        let homa = self.homa();
        let is_patient = homa.number("resend_min") >= PAPER_RESEND;
        if self.transport != Protocol::Apus || self.homa.profile != Profile::Paper || !is_patient {
            return Ok(());
        }
        self.loses().map_or(Ok(()), |by| Err(PlanError::NeverResent { by }))
    }

    /// The setting by which the network loses packets, if it does.
    fn loses(&self) -> Option<&'static str> {
        if self.buffers != Buffers::Unlimited {
            return Some("buffers");
        }
        if self.links.loss_per_million > 0 {
            return Some("links.loss_per_million");
        }
        if !self.layer_bytes.is_empty() {
            return Some("layer_bytes");
        }
        let Topology::Layout(layout) = &self.topology else { return None };
        let switches = layout.switches.iter().map(|switch| switch.port_bytes);
        let mut limits = switches.chain(layout.links.iter().map(|link| link.port_bytes));
        limits.any(|limit| limit.is_some()).then_some("port_bytes in topology")
    }

    /// Upper bound on bytes at a port of each layer.
    pub(crate) fn layer_limits(&self) -> Vec<u64> {
        let limit = |name: &&str| self.layer_bytes.get(*name).copied().unwrap_or(u64::MAX);
        self.topology.layers().iter().map(limit).collect()
    }

    pub(crate) fn warmup(&self) -> u64 {
        picos(self.warmup_ms.unwrap_or(self.sim_ms / 5.0))
    }

    pub(crate) fn measured(&self) -> u64 {
        picos(self.sim_ms)
    }

    pub(crate) fn drain(&self) -> u64 {
        picos(self.drain_ms.unwrap_or(2.0 * self.sim_ms))
    }

    /// The core's settings for this plan.
    pub(crate) fn homa(&self) -> Homa {
        let mut gbps = self.links.host_gbps;
        if let Topology::Layout(layout) = &self.topology {
            gbps = layout.switches.iter().filter_map(|switch| switch.gbps).fold(gbps, u64::max);
        }
        let defaults = SETTINGS.map(|name| (name, Config::setting(name).default));
        let mut homa = Homa { numbers: defaults.into(), cutoffs: None, link_gbps: gbps };
        let asked = &self.homa;
        homa.set("priorities", asked.priorities);
        if asked.profile == Profile::Paper {
            self.as_in_the_paper(&mut homa);
        }
        for name in ["unscheduled", "unscheduled_min", "unscheduled_max"] {
            homa.set(name, asked.unscheduled);
        }
        if let Some(us) = asked.resend_min_us {
            let first = homa.number("resend_initial").min(us.saturating_mul(3_000));
            homa.set("resend_min", Some(us.saturating_mul(1_000)));
            homa.set("resend_initial", Some(first));
        }
        homa.set("overcommitment", asked.overcommitment.map(|messages| messages as u64));
        homa.set("max_incoming", asked.max_incoming);
        homa.set("fifo_share", asked.fifo_share);
        homa.set("incast_threshold", asked.incast_threshold);
        homa.set("window_max", asked.window_max);
        homa.set("learn_cutoffs", asked.learn_cutoffs);
        homa.set("priority_by_rest", asked.priority_by_rest);
        homa
    }

    fn as_in_the_paper(&self, homa: &mut Homa) {
        let priorities = homa.number("priorities") as u8;
        let of_eight = self.workload.paper().map_or(4, |workload| workload.scheduled_levels());
        // With fewer levels, the nearest split to the same one, and at least one level of each kind.
        let scheduled = (of_eight * priorities).div_ceil(8).min(priorities.max(2) - 1).max(1);
        let unscheduled_levels = usize::from(priorities.max(2) - scheduled);
        let cuts = self.workload.balanced(self.framing, PAPER_UNSCHEDULED, unscheduled_levels);
        let mut cutoffs = [u32::MAX; 8];
        for (level, cut) in (0..usize::from(priorities)).rev().zip(cuts) {
            cutoffs[level] = cut;
        }
        cutoffs[usize::from(priorities)..].fill(0);
        // The lowest unscheduled level takes all sizes. The levels below are for scheduled packets.
        let lowest = usize::from(priorities).saturating_sub(unscheduled_levels);
        cutoffs[..=lowest].fill(u32::MAX);
        homa.cutoffs = Some(cutoffs);
        homa.link_gbps = self.links.host_gbps;
        homa.numbers.extend([
            ("overcommitment", of_eight.into()),
            ("unscheduled", PAPER_UNSCHEDULED.into()),
            ("unscheduled_min", PAPER_UNSCHEDULED.into()),
            ("unscheduled_max", PAPER_UNSCHEDULED.into()),
            ("max_incoming", PAPER_MAX_INCOMING),
            ("fifo_share", 0),
            ("incast_threshold", 1 << 20),
            ("incast_unscheduled", 400),
            ("resend_min", PAPER_RESEND),
            ("resend_initial", PAPER_RESEND),
            ("window_max", PAPER_WINDOW),
            ("learn_cutoffs", 0),
            ("priority_by_rest", 1),
        ]);
    }
}

impl Homa {
    fn set(&mut self, name: &'static str, asked: Option<impl Into<u64>>) {
        if let Some(number) = asked {
            self.numbers.insert(name, number.into());
        }
    }

    /// The value of a setting.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.numbers[name]
    }

    /// The core's configuration.
    ///
    /// # Errors
    ///
    /// If a setting is out of range.
    pub(crate) fn config(&self) -> Result<Config, SettingError> {
        let mut config = Config::default();
        for name in SETTINGS {
            config.set(name, self.number(name))?;
        }
        config
            .message_max(1 << 30)
            .total_budget(1 << 40)
            .socket_budget(1 << 40)
            .peer_budget(1 << 40)
            .pacing(true)
            .pacing_backlog(Duration::ZERO)
            .link_mbps(2 * 1000 * self.link_gbps)
            .burst(1500);
        if let Some(cutoffs) = self.cutoffs {
            config.cutoffs(cutoffs);
        }
        config.check()?;
        Ok(config)
    }
}

fn picos(ms: f64) -> u64 {
    (ms * 1e9) as u64
}

/// A plan that cannot be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Not TOML, or with an unknown name.
    #[error("not a plan: {0}")]
    Toml(#[source] Box<toml::de::Error>),
    /// Switches and links that are not a usable network.
    #[error("topology: {0}")]
    Layout(String),
    /// An impossible value.
    #[error("{what} cannot be {value}; allowed is {allowed}")]
    Value {
        /// The setting's name.
        what: &'static str,
        /// The given value.
        value: String,
        /// The possible values.
        allowed: &'static str,
    },
    /// A network that loses packets, with the paper's profile, which never requests them again.
    #[error(
        "homa.profile = \"paper\" and {by}: this network loses packets, and the profile requests nothing again before 10 s; set homa.resend_min_us (2000 is the core's default) or homa.profile = \"production\""
    )]
    NeverResent {
        /// The setting by which the network loses packets.
        by: &'static str,
    },
    /// An impossible setting of the core.
    #[error("homa: {0}")]
    Homa(#[from] SettingError),
    /// A line of a trace that is not a message.
    #[error(
        "`{}`, line {line}: `{text}` is not a message; allowed is time_ns,source,destination,bytes with two different hosts below {hosts} and at least 1 byte",
        path.display()
    )]
    Trace {
        /// The trace's file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The line's text.
        text: String,
        /// Number of hosts.
        hosts: u32,
    },
    /// A plan's or trace's file that could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
}

/// Sets a value of a plan by its name. Points separate the parts of the name.
pub(crate) fn set(table: &mut Table, name: &str, value: Value) -> Result<(), PlanError> {
    match name.split_once('.') {
        None => {
            table.insert(name.to_owned(), value);
            Ok(())
        }
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Table(Table::new()));
            match inner {
                Value::Table(inner) => set(inner, rest, value),
                other => {
                    let (what, value) = ("a setting with parts", other.to_string());
                    Err(PlanError::Value { what, value, allowed: "a table" })
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_plan_is_the_papers_w4() {
        let plan = Plan::from_toml("").unwrap();
        assert_eq!(plan, Plan::default());
        assert_eq!(Plan::from_toml(&plan.to_toml()).unwrap(), plan);
    }

    #[test]
    fn everything_can_be_said() {
        let plan = Plan::from_toml(
            r#"
            topology = "single-8"
            transport = "apus"
            workload = "10kB"
            arrivals = { closed = 100 }
            exchange = { response = 10000 }
            buffers = { port_bytes = 200000 }
            [links]
            host_gbps = 100
            [homa]
            profile = "production"
            priorities = 2
            "#,
        )
        .unwrap();
        assert_eq!(plan.arrivals, Arrivals::Closed(100));
        assert_eq!((plan.homa().number("priorities"), plan.homa().link_gbps), (2, 100));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let error = |text: &str| Plan::from_toml(text).unwrap_err().to_string();
        assert!(error("load = 0.0").starts_with("load cannot be 0; allowed is above 0"));
        assert!(error("typo = 1").contains("typo"));
        assert!(
            error("transport = \"pfabric\"\nexchange = \"echo\"").starts_with("exchange cannot")
        );
        assert!(error("[links]\nhost_gbps = 7").contains("a link's rate cannot be 7"));
        let wrong = "homa: priorities = 9: expected a number from 1 to 8";
        assert_eq!(error("[homa]\npriorities = 9"), wrong);
        let wrong = "homa: resend_min = 1 µs: expected a time from 100 µs to 10 s";
        assert_eq!(error("[homa]\nresend_min_us = 1"), wrong);
    }

    #[test]
    fn the_papers_profile_needs_a_network_without_loss() {
        for (text, by) in [
            ("buffers = { port_bytes = 20000 }", "buffers"),
            ("[links]\nloss_per_million = 1", "links.loss_per_million"),
            ("[layer_bytes]\ntor_up = 1000", "layer_bytes"),
        ] {
            let error = Plan::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("homa.profile = \"paper\" and {by}: ")), "{error}");
            for homa in ["profile = \"production\"", "resend_min_us = 2000"] {
                assert!(
                    Plan::from_toml(&format!("{text}\n[homa]\n{homa}")).is_ok(),
                    "{by}, {homa}"
                );
            }
            assert!(Plan::from_toml(&format!("transport = \"dctcp\"\n{text}")).is_ok(), "{by}");
        }
    }

    #[test]
    fn values_are_set_by_name() {
        let set =
            |name: &str, value: &str| Plan::default().with(&[(name.to_owned(), value.to_owned())]);
        assert_eq!(set("homa.priorities", "4").unwrap().homa.priorities, Some(4));
        assert_eq!(set("homa.profile", "production").unwrap().homa.profile, Profile::Production);
        assert_eq!(set("arrivals", "{ closed = 3 }").unwrap().arrivals, Arrivals::Closed(3));
        assert_eq!(set("load", "1").unwrap().load, 1.0);
        for (name, value) in
            [("homa.nothing", "4"), ("load", "high"), ("seed.x", "1"), ("load", "9")]
        {
            assert!(set(name, value).is_err(), "{name}");
        }
    }

    #[test]
    fn the_papers_levels() {
        let levels = |workload: &str, priorities| {
            let plan = Plan {
                workload: workload.parse().unwrap(),
                homa: HomaPlan { priorities: Some(priorities), ..HomaPlan::default() },
                ..Plan::default()
            };
            plan.homa().cutoffs.unwrap().iter().filter(|&&cut| cut == u32::MAX).count()
        };
        // The lowest unscheduled level and all scheduled ones take all sizes.
        assert_eq!(levels("w1", 8), 2);
        assert_eq!(levels("w3", 8), 5);
        assert_eq!(levels("w5", 8), 8);
        assert_eq!((levels("w4", 1), levels("w1", 2)), (1, 2));
    }
}
