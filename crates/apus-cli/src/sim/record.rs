//! The record of a fault campaign: the seeds that were run, with their commits and results.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use apus_sim::check::Tally;
use derive_more::AddAssign;
use serde::{Deserialize, Serialize};

/// Everything that was run, in the order in which it was.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckLog {
    pub(super) ranges: Vec<SeedRange>,
}

/// One range of seeds, run to its end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeedRange {
    pub(super) commit: String,
    /// Whether the nodes spoke sealed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sealed: bool,
    /// The first seed, and the one after the last.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) counts: Counts,
    pub(super) failures: Vec<Failed>,
    /// Duration of the campaign, and the number of cores.
    pub(super) took_s: u64,
    pub(super) jobs: usize,
}

/// The results of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, AddAssign, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) answered: u64,
    /// Calls that ended with an error that had its reason.
    pub(super) failed: u64,
    pub(super) packets: u64,
    pub(super) faults: u64,
    pub(super) simulated_s: u64,
}

/// A seed in which something did not hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Failed {
    pub(super) seed: u64,
    pub(super) violation: String,
    /// The command that gives the failure again.
    pub(super) replay: String,
}

impl From<Tally> for Counts {
    fn from(tally: Tally) -> Self {
        let Tally { calls, answered, failed, packets, faults, simulated } = tally;
        Self { calls, answered, failed, packets, faults, simulated_s: simulated.as_secs() }
    }
}

impl CheckLog {
    /// The record in a file, empty when there is no such file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let what = || format!("cannot read `{}`", path.display());
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path).with_context(what)?;
        serde_json::from_str(&text).with_context(what)
    }

    /// Writes the file, so that one that is interrupted leaves the earlier one.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let whole = path.with_extension("json.part");
        crate::output::write_json(&whole, self)?;
        std::fs::rename(&whole, path).with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Entries of a commit and a kind of campaign that touch these seeds.
    pub(super) fn of<'a>(
        &'a self,
        commit: &'a str,
        sealed: bool,
        seeds: &'a Range<u64>,
    ) -> impl Iterator<Item = &'a SeedRange> {
        let touches = |entry: &&SeedRange| entry.from < seeds.end && seeds.start < entry.to;
        let same = move |entry: &&SeedRange| entry.commit == commit && entry.sealed == sealed;
        self.ranges.iter().filter(same).filter(touches)
    }

    /// The seeds that were not run with this commit, cut at multiples of `most`.
    pub(super) fn left(
        &self,
        commit: &str,
        sealed: bool,
        seeds: &Range<u64>,
        most: u64,
    ) -> Vec<Range<u64>> {
        let mut left = vec![seeds.clone()];
        for entry in self.of(commit, sealed, seeds) {
            left = left
                .into_iter()
                .flat_map(|part| {
                    let before = part.start..part.end.min(entry.from);
                    [before, part.start.max(entry.to)..part.end]
                })
                .filter(|part| !part.is_empty())
                .collect();
        }
        left.into_iter().flat_map(|part| cut(part, most)).collect()
    }
}

fn cut(part: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let pieces = part.start / most..part.end.div_ceil(most);
    pieces.map(move |piece| {
        part.start.max(piece * most)..part.end.min((piece + 1).saturating_mul(most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(commit: &str, from: u64, to: u64) -> SeedRange {
        SeedRange {
            commit: commit.to_owned(),
            sealed: false,
            from,
            to,
            counts: Counts::default(),
            failures: Vec::new(),
            took_s: 1,
            jobs: 2,
        }
    }

    #[test]
    fn what_was_run_with_this_commit_is_not_run_again() {
        let record =
            CheckLog { ranges: vec![entry("a", 20, 40), entry("b", 0, 100), entry("a", 50, 60)] };
        assert_eq!(record.left("a", false, &(10..90), 100), [10..20, 40..50, 60..90]);
        assert_eq!(record.left("a", false, &(25..35), 100), []);
        assert_eq!(record.left("b", false, &(10..90), 100), []);
        assert_eq!(record.left("b", true, &(10..90), 20), [10..20, 20..40, 40..60, 60..80, 80..90]);
        assert_eq!(record.left("c", false, &(10..90), 30), [10..30, 30..60, 60..90]);
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        let path = std::env::temp_dir().join(format!("apus-record-{}.json", std::process::id()));
        assert_eq!(CheckLog::read(&path).unwrap(), CheckLog::default());
        let failure = Failed {
            seed: 30,
            violation: "a storm".to_owned(),
            replay: "apus sim check --seeds 30..31".to_owned(),
        };
        let record =
            CheckLog { ranges: vec![SeedRange { failures: vec![failure], ..entry("a", 20, 40) }] };
        record.write(&path).unwrap();
        let read = CheckLog::read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), record);
    }
}
