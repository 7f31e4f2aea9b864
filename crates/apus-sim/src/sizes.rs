//! Message lengths, and the classes of results.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use apus_load::{Random, Workload};
use serde::{Deserialize, Serialize};

use crate::framing::Framing;
use crate::paper::PaperWorkload;
use crate::size_table::SizeTable;

/// Bytes of a GRANT.
const GRANT: u32 = 33;

/// A distribution of message lengths.
///
/// Text forms: `w1` to `w5`, the sizes of the Homa paper's simulations; `cp-w1` to `cp-w5`, the same workloads as drawn by `apus
/// bench` and the Homa authors' `cp_node`; a number of bytes (`10kB`); a mix (`90:100,10:1MB`); or `csv:PATH`, also `PATH.csv`: a
/// [table](SizeTable) of sizes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sizes {
    /// The paper's tables.
    Paper(PaperWorkload),
    /// A workload of `apus-load`.
    Load(Workload),
    /// The lengths of a file.
    Table(SizeTable),
}

/// Upper bound on sizes of a table with a class each; more sizes share classes.
const CLASSES_MAX: usize = 100;

impl Sizes {
    /// The paper's workload, if it is one.
    #[must_use]
    pub fn paper(&self) -> Option<PaperWorkload> {
        match self {
            Self::Paper(workload) => Some(*workload),
            Self::Load(_) | Self::Table(_) => None,
        }
    }

    pub(crate) fn sample(&self, rng: &mut Random) -> u32 {
        match self {
            Self::Paper(workload) => workload.sample(rng),
            Self::Load(workload) => workload.sample(rng, None).max(1),
            Self::Table(table) => table.sample(rng),
        }
    }

    pub(crate) fn longest(&self) -> u32 {
        match self {
            Self::Paper(workload) => {
                workload.bins().last().map_or(1, |bin| bin.bytes.div_ceil(1442) * 1442)
            }
            Self::Load(workload) => workload.longest(),
            Self::Table(table) => table.lengths().last().unwrap_or(1),
        }
    }

    /// Calls `visit` with representative sizes and their shares of the messages.
    fn each_size(&self, mut visit: impl FnMut(u32, f64)) {
        match self {
            Self::Paper(workload) => workload.each_size(visit),
            Self::Table(table) => table.each_size(visit),
            Self::Load(workload) => {
                const POINTS: u32 = 100_000;
                for point in 0..POINTS {
                    let at = (f64::from(point) + 0.5) / f64::from(POINTS);
                    let bytes = (workload.quantile(at).round() as u32).max(1);
                    visit(bytes, 1.0 / f64::from(POINTS));
                }
            }
        }
    }

    fn mean_of(&self, value: impl Fn(u32) -> f64) -> f64 {
        let mut sum = 0.0;
        self.each_size(|bytes, share| sum += value(bytes) * share);
        sum
    }

    /// Mean bytes on the wire of a message: with headers and grants for the paper's workloads, as in the paper's load, otherwise
    /// with headers.
    pub(crate) fn mean_wire(&self, framing: Framing) -> f64 {
        match self {
            Self::Paper(workload) => self.mean() / workload.payload_share(),
            Self::Load(_) | Self::Table(_) => {
                self.mean_of(|bytes| framing.message_wire(bytes) as f64)
            }
        }
    }

    /// Mean bytes of a message.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean_of(f64::from)
    }

    /// The rest of a message when one of its unscheduled packets is sent, at the points that divide those packets' bytes on the
    /// wire into `parts` equal shares: `parts - 1` points. The paper's simulations compute cutoffs in this way: packets of the last
    /// `unscheduled` bytes of longer messages count too, and so do grants, whose rest is 0.
    pub(crate) fn balanced(&self, framing: Framing, unscheduled: u32, parts: usize) -> Vec<u32> {
        let mut by_rest: BTreeMap<u32, f64> = BTreeMap::new();
        let payload = framing.payload();
        self.each_size(|bytes, share| {
            let packets = bytes.div_ceil(payload).max(1);
            let at_an_end = unscheduled.div_ceil(payload);
            let granted = packets.saturating_sub(at_an_end);
            let grants = f64::from(granted) * f64::from(framing.control_wire(GRANT));
            *by_rest.entry(0).or_default() += share * grants;
            let last = granted.max(at_an_end)..packets;
            for packet in (0..packets.min(at_an_end)).chain(last) {
                let rest = bytes - packet * payload;
                let wire = f64::from(framing.data_wire(rest.min(payload)));
                *by_rest.entry(rest).or_default() += share * wire;
            }
        });
        let total: f64 = by_rest.values().sum();
        let mut sum = 0.0;
        let mut cuts = Vec::with_capacity(parts);
        for (rest, wire) in by_rest {
            sum += wire;
            while cuts.len() + 1 < parts && sum >= total * (cuts.len() + 1) as f64 / parts as f64 {
                cuts.push(rest);
            }
        }
        cuts
    }

    /// Upper ends of the classes of results, in rising order.
    pub(crate) fn classes(&self) -> Vec<u32> {
        match self {
            Self::Paper(workload) => workload.bins().iter().map(|bin| bin.bytes).collect(),
            Self::Load(workload)
                if workload.lengths().is_some_and(|it| it.len() <= CLASSES_MAX) =>
            {
                workload.lengths().unwrap_or_default()
            }
            Self::Table(table) if table.lengths().len() <= CLASSES_MAX => table.lengths().collect(),
            Self::Load(_) | Self::Table(_) => Self::classes_of_any(),
        }
    }

    /// Classes for unknown sizes: ten for each power of ten.
    pub(crate) fn classes_of_any() -> Vec<u32> {
        let end = |tenth: u32| 10f64.powf(f64::from(tenth) / 10.0).round() as u32;
        let mut classes: Vec<u32> = (0..=96).map(end).collect();
        classes.dedup();
        classes
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paper(workload) => write!(f, "w{}", workload.number()),
            Self::Load(
                workload @ (Workload::W1
                | Workload::W2
                | Workload::W3
                | Workload::W4
                | Workload::W5),
            ) => write!(f, "cp-{workload}"),
            Self::Load(workload) => workload.fmt(f),
            Self::Table(table) => write!(f, "csv:{}", table.path().display()),
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let paper = text.strip_prefix('w').and_then(|number| number.parse().ok());
        if let Some(workload) = paper.and_then(PaperWorkload::new) {
            return Ok(Self::Paper(workload));
        }
        let is_file = |path: &&str| path.ends_with(".csv");
        if let Some(path) = text.strip_prefix("csv:").or_else(|| Some(text).filter(is_file)) {
            return SizeTable::read(path).map(Self::Table);
        }
        let load = text.strip_prefix("cp-").unwrap_or(text);
        load.parse().map(Self::Load).map_err(|_| {
            format!("`{text}` is not a workload; known are w1 to w5, cp-w1 to cp-w5, a size such as 10kB, mixes such as 90:100,10:1MB, and a file such as sizes.csv")
        })
    }
}

impl TryFrom<String> for Sizes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> Self {
        match sizes {
            Sizes::Table(table) => format!("csv:{}", table.name()),
            sizes => sizes.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_and_write() {
        for name in ["w1", "w5", "cp-w3"] {
            assert_eq!(name.parse::<Sizes>().unwrap().to_string(), name);
        }
        assert!("w6".parse::<Sizes>().is_err() && "x".parse::<Sizes>().is_err());
        assert_eq!("10kB".parse::<Sizes>().unwrap().longest(), 10_000);
    }

    #[test]
    fn classes_of_a_mix_are_its_sizes() {
        let mix = "9:100,1:5000".parse::<Sizes>().unwrap();
        assert_eq!(mix.classes(), [100, 5_000]);
    }

    #[test]
    fn cutoffs_balance_bytes_not_messages() {
        // The paper's W1 shows a step between 11 and 12 bytes: the end of the first of 7 levels.
        let cutoffs = "w1".parse::<Sizes>().unwrap().balanced(Framing::default(), 10_094, 7);
        assert_eq!((cutoffs.len(), cutoffs[0]), (6, 11));
        assert!(cutoffs.is_sorted());
    }

    #[test]
    fn both_sets_of_sizes_have_about_the_same_mean() {
        for number in 1..=5 {
            let paper: Sizes = format!("w{number}").parse().unwrap();
            let load: Sizes = format!("cp-w{number}").parse().unwrap();
            assert!((paper.mean() / load.mean() - 1.0).abs() < 0.05, "w{number}");
        }
    }
}
