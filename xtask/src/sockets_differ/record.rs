//! The lines of the record, docs/measurements/sockets-differ.txt: one for each campaign.

use std::fmt;

use super::Verdict;
use crate::seed_record::last_seed;

/// A campaign.
pub(super) struct RunRecord {
    pub(super) first: u64,
    pub(super) steps: u64,
    pub(super) core_seconds: u64,
    /// Seeds in the order in which they ended.
    pub(super) results: Vec<(u64, Verdict)>,
    pub(super) date: String,
    pub(super) commit: String,
}

impl RunRecord {
    /// The seeds that differ.
    pub(super) fn differing(&self) -> impl Iterator<Item = u64> + '_ {
        let differs = |(_, verdict): &&(u64, Verdict)| *verdict == Verdict::Differs;
        self.results.iter().filter(differs).map(|(seed, _)| *seed)
    }
}

impl fmt::Display for RunRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, steps, core_seconds, results, date, commit } = self;
        let last = results.iter().map(|(seed, _)| *seed).max().unwrap_or(*first);
        let count = |verdict| results.iter().filter(|(_, it)| *it == verdict).count();
        let (same, late) = (count(Verdict::Same), count(Verdict::Late));
        let differ: String = self.differing().map(|seed| format!(" {seed}")).collect();
        let colon = if differ.is_empty() { "" } else { ":" };
        write!(
            f,
            "seeds {first} to {last}, {} of them, {steps} steps each, {core_seconds} core-seconds: {same} the same, {late} only late, \
             {} differ{colon}{differ} ({date}, {commit})",
            results.len(),
            count(Verdict::Differs)
        )
    }
}

/// The seed after those of the last line. Programs of lower seeds than the first one have fewer kinds of steps.
pub(super) fn next_seed(record: &str) -> u64 {
    last_seed(record).map_or(SEED_MIN, |last| (last + 1).max(SEED_MIN))
}

const SEED_MIN: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(results: &[(u64, Verdict)]) -> RunRecord {
        RunRecord {
            first: 1_002_002,
            steps: 120,
            core_seconds: 49,
            results: results.to_vec(),
            date: "2026-11-25".to_owned(),
            commit: "09bde1b".to_owned(),
        }
    }

    #[test]
    fn a_line_has_the_seeds_that_differ() {
        let line = record(&[
            (1_002_003, Verdict::Same),
            (1_002_005, Verdict::Differs),
            (1_002_002, Verdict::Late),
            (1_002_004, Verdict::Differs),
        ])
        .to_string();
        let expected = "seeds 1002002 to 1002005, 4 of them, 120 steps each, 49 core-seconds: 1 the same, 1 only late, 2 differ: \
             1002005 1002004 (2026-11-25, 09bde1b)";
        assert_eq!(line, expected);
        assert_eq!(next_seed(&line), 1_002_006);
        let line = record(&[(1_002_002, Verdict::Same)]).to_string();
        assert!(
            line.ends_with("1 the same, 0 only late, 0 differ (2026-11-25, 09bde1b)"),
            "{line}"
        );
    }

    #[test]
    fn seeds_continue_the_last_line_of_the_record() {
        assert_eq!(next_seed(""), SEED_MIN);
        assert_eq!(next_seed("seeds 1 to 139, 77 of them\n"), SEED_MIN);
        assert_eq!(next_seed("seeds 1 to 2000010, 9\n"), 2_000_011);
    }
}
