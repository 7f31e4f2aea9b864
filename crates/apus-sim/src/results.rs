//! Outcomes as rows and curves of result files.

use apus_load::{ResultFile, Row, Series};

use crate::paper::PaperWorkload;
use crate::plan::Protocol;
use crate::run::SimulationResult;

/// Number of messages from which the 99th percentile of a size is stable.
const STABLE: u64 = 1_000;
/// Share of messages in stable sizes below which a run has a warning.
const STABLE_SHARE_MIN: f64 = 0.9;

/// The slowdown of one decile of the messages, beside the paper's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Compared {
    /// The decile's number, 0 to 9.
    pub decile: usize,
    /// Largest size, in bytes.
    pub bytes: u32,
    /// Median slowdown, of the simulation and of the paper.
    pub p50: (f64, f64),
    /// 99th percentile of the slowdown, of the simulation and of the paper.
    pub p99: (f64, f64),
    /// Half the 95 % confidence interval of the simulation's median and 99th percentile.
    pub intervals: (f64, f64),
}

impl Compared {
    /// Relative difference of the medians.
    #[must_use]
    pub fn p50_difference(&self) -> f64 {
        self.p50.0 / self.p50.1 - 1.0
    }

    /// Relative difference of the 99th percentiles.
    #[must_use]
    pub fn p99_difference(&self) -> f64 {
        self.p99.0 / self.p99.1 - 1.0
    }

    /// `agrees` within 10 % and 15 %, otherwise `lower` (better) or `HIGHER`.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        let (p50, p99) = (self.p50_difference(), self.p99_difference());
        if p50 > 0.10 || p99 > 0.15 {
            "HIGHER"
        } else if p50 < -0.10 || p99 < -0.15 {
            "lower"
        } else {
            "agrees"
        }
    }
}

/// Number of cells of one transport by verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdicts {
    /// Within the tolerance.
    pub agree: usize,
    /// Lower than the paper's figure by more than the tolerance.
    pub lower: usize,
    /// Higher than the paper's figure by more than the tolerance.
    pub higher: usize,
}

impl Verdicts {
    /// Counts the cells of one run.
    pub fn add(&mut self, cells: &[Compared]) {
        for cell in cells {
            match cell.verdict() {
                "HIGHER" => self.higher += 1,
                "lower" => self.lower += 1,
                _ => self.agree += 1,
            }
        }
    }

    /// "44 of 50 deciles agree with the paper, 0 are lower, 6 are HIGHER".
    #[must_use]
    pub fn in_words(&self) -> String {
        let Self { agree, lower, higher } = self;
        let all = agree + lower + higher;
        if all == 0 {
            return "the paper has no figures for it".to_owned();
        }
        format!(
            "{agree} of {all} deciles agree with the paper, {lower} are lower, {higher} are HIGHER"
        )
    }
}

/// The load of the paper's results.
pub const PAPER_LOAD: f64 = 0.8;

/// An outcome beside the paper's result for the same transport. `None` if the paper has no such result, as for loads other than
/// [`PAPER_LOAD`].
#[must_use]
pub fn compare(outcome: &SimulationResult) -> Option<Vec<Compared>> {
    let workload = outcome.plan.workload.paper()?;
    if (outcome.plan.load - PAPER_LOAD).abs() > 1e-9 {
        return None;
    }
    let paper = match outcome.plan.transport {
        Protocol::Apus => workload.homa(),
        Protocol::Pfabric => workload.pfabric(),
        Protocol::SrptOracle => workload.oracle(),
        Protocol::Dctcp | Protocol::TcpNewreno | Protocol::TcpCubic => return None,
    };
    let row = |(decile, here): (usize, &crate::Decile)| Compared {
        decile,
        bytes: here.bytes,
        p50: (here.p50, paper[decile].0),
        p99: (here.p99, paper[decile].1),
        intervals: (here.p50_interval, here.p99_interval),
    };
    Some(outcome.deciles.iter().enumerate().map(row).collect())
}

fn row(outcome: &SimulationResult, bench: &str) -> Row {
    Row::new(outcome.plan.transport.name())
        .set("bench", bench)
        .set("workload", outcome.plan.workload.to_string())
        .set("load", outcome.plan.load)
}

fn decile_name(decile: usize, bytes: u32) -> String {
    format!("{:02} to {bytes} B", decile + 1)
}

/// Adds the rows, curves and warnings of an outcome to a result.
pub fn record(outcome: &SimulationResult, result: &mut ResultFile) {
    for (decile, here) in outcome.deciles.iter().enumerate() {
        result.rows.push(
            row(outcome, "sim slowdown")
                .set("decile", decile_name(decile, here.bytes))
                .set("messages", here.messages.round() as u64)
                .set("p50_slowdown", here.p50)
                .set("p99_slowdown", here.p99)
                .set("p99_9_slowdown", here.p999)
                .set("p50_interval", here.p50_interval)
                .set("p99_interval", here.p99_interval),
        );
    }
    // One row for each size, which the reports show as curves.
    for size in &outcome.sizes {
        result.rows.push(
            row(outcome, "sim sizes")
                .set("seed", outcome.plan.seed)
                .set("bytes_max", size.bytes)
                .set("messages", size.messages)
                .set("unfinished", size.unfinished)
                .set("mean_slowdown", size.mean)
                .set("p50_slowdown", size.p50)
                .set("p99_slowdown", size.p99)
                .set("p99_9_slowdown", size.p999),
        );
    }
    for layer in &outcome.layers {
        result.rows.push(
            row(outcome, "sim queues")
                .set("layer", layer.name)
                .set("mean_bytes", layer.mean_bytes)
                .set("p99_bytes", layer.p99_bytes)
                .set("max_bytes", layer.max_bytes)
                .set("used_pct", layer.utilization * 100.0)
                .set("lost_packets", layer.lost),
        );
    }
    let run = row(outcome, "sim run")
        .set("topology", outcome.plan.topology.to_string())
        .set("seed", outcome.plan.seed)
        .set("messages", outcome.messages)
        .set("unfinished", outcome.unfinished)
        .set("goodput_gbps", outcome.goodput_gbps)
        .set("simulated_s", outcome.simulated.as_secs_f64())
        .set("wall_s", outcome.wall.as_secs_f64())
        .set("packet_hops", outcome.packet_hops)
        .set("packet_hops_per_s", outcome.packet_hops_per_s())
        .set("events", outcome.events)
        .set("event_hash", format!("{:016x}", outcome.hash));
    result.rows.push(run);
    let mut counters = row(outcome, "sim counters");
    // Counters with value 0 as well, so that a reader can distinguish "none" from "not measured".
    for &(name, value) in &outcome.counters {
        counters.put(name, value);
    }
    result.rows.push(counters);
    record_curves(outcome, result);
    record_warnings(outcome, result);
}

/// Slowdown by size, in the form of the paper's figures 12 and 13.
fn record_curves(outcome: &SimulationResult, result: &mut ResultFile) {
    let title = format!("{} at {:.0} %", outcome.plan.workload, outcome.plan.load * 100.0);
    let curve = |transport: &str, percent: &str, points: Vec<(f64, f64)>| {
        Series::by_size(&format!("{title}, p{percent}"), transport, "slowdown".to_owned(), points)
    };
    let name = outcome.plan.transport.name();
    let points = |value: fn(&crate::SizeClass) -> f64| {
        outcome.sizes.iter().map(|size| (f64::from(size.bytes), value(size))).collect()
    };
    result.series.push(curve(name, "50", points(|size| size.p50)));
    result.series.push(curve(name, "99", points(|size| size.p99)));
    if let Some(bins) = outcome.plan.workload.paper().map(PaperWorkload::bins)
        && outcome.plan.transport == Protocol::Apus
    {
        let points = |value: fn(&crate::paper::Bin) -> f64| {
            bins.iter().map(|bin| (f64::from(bin.bytes), value(bin))).collect()
        };
        result.series.push(curve("homa-paper-80", "50", points(|bin| bin.p50)));
        result.series.push(curve("homa-paper-80", "99", points(|bin| bin.p99)));
    }
}

fn record_warnings(outcome: &SimulationResult, result: &mut ResultFile) {
    let (title, messages) = (&outcome.plan.workload, outcome.messages);
    if outcome.unfinished > 0 {
        result.warn(format!(
            "{title}: {} of {messages} messages were unfinished at the end of the run; each counts with its age, so figures of the longest sizes may be too low",
            outcome.unfinished
        ));
    }
    let stable = outcome.sizes.iter().filter(|size| size.messages >= STABLE);
    let share = stable.map(|size| size.messages).sum::<u64>() as f64 / messages.max(1) as f64;
    if share < STABLE_SHARE_MIN {
        result.warn(format!(
            "{title}: only {:.0} % of the messages have a size with at least {STABLE} messages, so 99th percentiles are rough",
            share * 100.0
        ));
    }
}

/// Adds the decile table beside the paper's. Returns its cells.
pub fn record_comparison(outcome: &SimulationResult, result: &mut ResultFile) -> Vec<Compared> {
    let cells = compare(outcome).unwrap_or_default();
    for cell in &cells {
        result.rows.push(
            row(outcome, "sim compare")
                .set("decile", decile_name(cell.decile, cell.bytes))
                .set("verdict", cell.verdict())
                .set("p50_slowdown", cell.p50.0)
                .set("p50_interval", cell.intervals.0)
                .set("paper_p50", cell.p50.1)
                .set("p50_difference_pct", cell.p50_difference() * 100.0)
                .set("p99_slowdown", cell.p99.0)
                .set("p99_interval", cell.intervals.1)
                .set("paper_p99", cell.p99.1)
                .set("p99_difference_pct", cell.p99_difference() * 100.0),
        );
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_not_worse() {
        let cell = |p50, p99| Compared {
            decile: 0,
            bytes: 1,
            p50: (p50, 1.0),
            p99: (p99, 2.0),
            intervals: (0.0, 0.0),
        };
        assert_eq!(cell(1.09, 2.2).verdict(), "agrees");
        assert_eq!(cell(1.11, 1.0).verdict(), "HIGHER");
        assert_eq!(cell(0.8, 2.0).verdict(), "lower");
        assert_eq!(cell(1.0, 2.31).verdict(), "HIGHER");
        let mut verdicts = Verdicts::default();
        assert_eq!(verdicts.in_words(), "the paper has no figures for it");
        verdicts.add(&[cell(1.0, 2.0), cell(1.0, 9.0), cell(0.5, 2.0), cell(2.0, 2.0)]);
        let words = "1 of 4 deciles agree with the paper, 1 are lower, 2 are HIGHER";
        assert_eq!(verdicts.in_words(), words);
    }
}
