//! Set-ups of kernel TCP, the rival of a campaign.
//!
//! An operator tunes TCP for his network, so a plan may name several set-ups, each a `[[tcp]]` table. The lab tries each of them with
//! each of its numbers of connections, and measures the one that serves short messages best.

use std::fmt;

use anyhow::{Context, Result, ensure};
use apus_load::Size;
use serde::{Deserialize, Serialize};

/// Bounds of the lower bound on a retransmission timeout, in ms. The kernel's own value is the upper one.
const RTO_MIN_MS: std::ops::RangeInclusive<u32> = 1..=200;

/// Upper bound on the classes of lengths.
const CLASSES_MAX: usize = 16;

/// A set-up of kernel TCP, as a plan names it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpSetUp {
    /// Congestion control: `cubic`, `bbr`, `dctcp`, … If absent, that of [`Setting::congestion`](crate::plan::Setting::congestion).
    pub congestion: Option<String>,
    /// Lower bound on the retransmission timeout, 1 to 200 ms, as the route attribute `rto_min`. If absent, the kernel's: 200 ms.
    pub rto_min_ms: Option<u32>,
    /// Numbers of connections for each pair of hosts. If absent, those of [`Setting::connections`](crate::plan::Setting::connections).
    pub connections: Option<Vec<usize>>,
    /// Classes of lengths, by the longest request of each, in rising order. Requests of each class, and longer requests, have a
    /// connection of their own.
    pub classes: Option<Vec<String>>,
}

/// One way to run kernel TCP.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TcpRival {
    /// Connections for each pair of hosts. A call uses the one with the fewest outstanding bytes.
    pub(crate) connections: usize,
    /// The longest request of each connection but the last, if calls have a connection by their lengths instead.
    pub(crate) classes: Vec<u32>,
    pub(crate) congestion: Option<String>,
    pub(crate) rto_min_ms: Option<u32>,
}

impl TcpSetUp {
    /// Checks the values.
    ///
    /// # Errors
    /// If a value is not allowed: with the key, the value and the allowed values.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(connections) = &self.connections {
            check_connections(connections)?;
        }
        if let Some(ms) = self.rto_min_ms {
            let (low, high) = (RTO_MIN_MS.start(), RTO_MIN_MS.end());
            ensure!(RTO_MIN_MS.contains(&ms), "rto_min_ms = {ms}: it must be from {low} to {high}");
        }
        ensure!(
            self.classes.is_none() || self.connections.is_none(),
            "connections beside classes: each class has one connection"
        );
        let classes = self.classes()?;
        let rises = classes.is_sorted_by(|a, b| a < b);
        let fits = self.classes.is_none() || (1..=CLASSES_MAX).contains(&classes.len());
        ensure!(
            fits && rises,
            "classes = {:?}: 1 to {CLASSES_MAX} lengths in rising order",
            self.classes.as_deref().unwrap_or_default()
        );
        Ok(())
    }

    fn classes(&self) -> Result<Vec<u32>> {
        self.classes.iter().flatten().map(|text| size("classes", text)).collect()
    }

    /// All ways to run this set-up, with the setting's connections and congestion control where it has none.
    pub(crate) fn rivals(
        &self,
        connections: &[usize],
        congestion: Option<&str>,
    ) -> Result<Vec<TcpRival>> {
        let classes = self.classes()?;
        let congestion = self.congestion.as_deref().or(congestion).map(str::to_owned);
        let rival = |connections: usize| TcpRival {
            connections,
            classes: classes.clone(),
            congestion: congestion.clone(),
            rto_min_ms: self.rto_min_ms,
        };
        if !classes.is_empty() {
            return Ok(vec![rival(classes.len() + 1)]);
        }
        let connections = self.connections.as_deref().unwrap_or(connections);
        Ok(connections.iter().copied().map(rival).collect())
    }
}

impl fmt::Display for TcpRival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connections = self.connections;
        write!(f, "{connections}")?;
        if !self.classes.is_empty() {
            f.write_str(" by length")?;
        }
        if let Some(name) = &self.congestion {
            write!(f, ", {name}")?;
        }
        self.rto_min_ms.map_or(Ok(()), |ms| write!(f, ", RTO from {ms} ms"))
    }
}

/// A length, in the form of [`Size`].
pub(crate) fn size(key: &str, text: &str) -> Result<u32> {
    let size: Size = text.parse().with_context(|| format!("{key} = `{text}`"))?;
    Ok(size.bytes())
}

/// Checks numbers of connections.
///
/// # Errors
/// If one is not allowed, or there is none.
pub(crate) fn check_connections(connections: &[usize]) -> Result<()> {
    ensure!(
        !connections.is_empty() && connections.iter().all(|k| (1..=64).contains(k)),
        "connections = {connections:?}: a list of numbers from 1 to 64"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::plan::settings;

    fn names(plan: &str) -> Vec<String> {
        let all = settings(plan).unwrap()[0].tcp_rivals().unwrap();
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_set_up_is_tried_with_each_of_its_connections() {
        assert_eq!(names(""), ["1", "2", "4", "8"]);
        assert_eq!(names("congestion = 'reno'\nconnections = [4]"), ["4, reno"]);
        let plan = "
            connections = [1, 4]
            [[tcp]]
            congestion = 'bbr'
            rto_min_ms = 5
            [[tcp]]
            classes = ['1kB', '100kB']
            [[tcp]]
            connections = [2]
        ";
        let expected = ["1, bbr, RTO from 5 ms", "4, bbr, RTO from 5 ms", "3 by length", "2"];
        assert_eq!(names(plan), expected);
    }

    #[test]
    fn a_wrong_set_up_is_named_with_its_value() {
        for (set_up, words) in [
            ("rto_min_ms = 0", "rto_min_ms = 0: it must be from 1 to 200"),
            ("connections = [0]", "connections = [0]: a list of numbers from 1 to 64"),
            ("classes = []", "classes = []: 1 to 16 lengths in rising order"),
            ("classes = ['2kB', '1kB']", "in rising order"),
            ("classes = ['much']", "classes = `much`"),
            ("classes = ['1kB']\nconnections = [2]", "connections beside classes"),
            ("speed = 3", "unknown field `speed`"),
        ] {
            let error = format!("{:#}", settings(&format!("[[tcp]]\n{set_up}")).unwrap_err());
            assert!(error.contains(words), "{set_up}: {error}");
        }
    }
}
