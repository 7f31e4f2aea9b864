//! Causes of the slowest short calls.

use std::collections::BTreeSet;

use crate::calls::{STAGES, TracedCall, calls};
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::packets::packets;
use crate::report::{Cell, Report, counted};

/// The activity before each of the [`STAGES`].
pub(super) const SPENT_IN: [&str; STAGES.len()] = [
    "nothing",
    "the client's core",
    "system calls and the network, to the server",
    "the rest of the request",
    "the hand-off to the server's application",
    "the server's application",
    "the server's core",
    "system calls and the network, to the client",
    "the rest of the response",
    "the hand-off to the client's application",
];

/// A slow call, and the stage that exceeds its median by most.
struct Slow<'a> {
    call: &'a TracedCall,
    round_trip: u64,
    stage: usize,
    excess: u64,
}

/// The slowest percent of the calls whose messages are one packet each, at least one call, by the stage that exceeds its median by
/// most.
#[must_use]
pub fn p99short(merged: &Merged) -> Report {
    let mut report = Report::default();
    let calls = calls(merged);
    let nodes = Nodes::of(merged);
    let packets = packets(merged, &nodes);
    let whole = packets.iter().filter(|packet| packet.is_message());
    let whole: BTreeSet<_> = whole.map(|it| (it.call, it.from_client)).collect();
    let is_short = |call: &&TracedCall| {
        [true, false].iter().all(|&from_client| whole.contains(&(call.key, from_client)))
    };
    let short = calls.iter().filter(is_short);
    let mut rows: Vec<_> = short.filter_map(|call| Some((call, steps(call)?))).collect();
    rows.sort_by_key(|(call, _)| std::cmp::Reverse(call.round_trip()));
    let medians: Vec<u64> = (0..STAGES.len())
        .map(|stage| rows.iter().map(|(_, steps)| steps[stage]).collect::<Distribution>().median())
        .collect();
    let round_trips: Distribution = rows.iter().filter_map(|(call, _)| call.round_trip()).collect();
    report.fact("calls", rows.len());
    report.fact("round_trip_p50_us", Cell::nanos(round_trips.median()));
    report.fact("round_trip_p99_us", Cell::nanos(round_trips.percentile(99)));
    let slow = rows.iter().take(rows.len().div_ceil(100)).filter_map(|(call, steps)| {
        let excess = (0..STAGES.len()).map(|stage| steps[stage].saturating_sub(medians[stage]));
        let (stage, excess) = excess.enumerate().max_by_key(|(_, excess)| *excess)?;
        Some(Slow { call, round_trip: call.round_trip()?, stage, excess })
    });
    let slow: Vec<_> = slow.collect();
    fill(&mut report, &slow, round_trips.median());
    report
}

/// The time of each stage since the previous one.
fn steps(call: &TracedCall) -> Option<[u64; STAGES.len()]> {
    let reached = call.all_stages()?;
    Some(std::array::from_fn(|stage| reached[stage] - reached[stage.saturating_sub(1)]))
}

fn fill(report: &mut Report, slow: &[Slow<'_>], median: u64) {
    let mut causes: Vec<_> = (0..STAGES.len())
        .map(|stage| {
            let of_stage = slow.iter().filter(|slow| slow.stage == stage);
            (stage, of_stage.map(|slow| slow.excess).collect::<Distribution>())
        })
        .filter(|(_, excess)| excess.count() > 0)
        .collect();
    causes.sort_by_key(|(_, excess)| std::cmp::Reverse(excess.count()));
    if let (Some((stage, excess)), Some(slowest)) = (causes.first(), slow.first()) {
        let asked = slow.iter().filter(|slow| slow.stage == *stage && slow.call.disturbances > 0);
        let asked = match asked.count() {
            0 => String::new(),
            count => format!(", {count} after a retransmission"),
        };
        report.find(format!(
            "of the slowest {}, {} lost most time before {}, in {}{asked} (median excess {:.1} us); \
             the slowest took {:.1} us, the median {:.1} us",
            counted(slow.len(), "call"),
            excess.count(),
            STAGES[*stage].name,
            SPENT_IN[*stage],
            excess.median() as f64 / 1e3,
            slowest.round_trip as f64 / 1e3,
            median as f64 / 1e3
        ));
    }
    let columns = ["before_stage", "at", "calls", "excess_p50_us", "excess_most_us", "spent_in"];
    let table = report.table("causes", &columns);
    for (stage, excess) in causes {
        let times = [excess.median(), excess.most()].map(Cell::nanos);
        let start = [STAGES[stage].name.into(), side(stage).into(), excess.count().into()];
        table.row(start.into_iter().chain(times).chain([SPENT_IN[stage].into()]));
    }
    let columns = ["id", "pair", "begun_us", "took_us", "before_stage", "excess_us", "disturbed"];
    let table = report.table("slowest", &columns);
    for &Slow { call, round_trip, stage, excess } in slow {
        let [begun, took, excess] = [call.first, round_trip, excess].map(Cell::nanos);
        let (id, pair) = (call.id.into(), Cell::hex(call.pair));
        let stage = STAGES[stage].name.into();
        table.row([id, pair, begun, took, stage, excess, call.disturbances.into()]);
    }
}

fn side(stage: usize) -> &'static str {
    super::delay::side(STAGES[stage].at_client)
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    /// A call whose stages are 1 µs apart, except for one.
    fn call(id: u32, slow: usize, by: u64) -> String {
        let mut at = u64::from(id) * 1_000_000;
        let lines = STAGES.iter().enumerate().map(|(index, stage)| {
            at += if index == slow { by } else { 1_000 };
            let (node, id) = if stage.at_client { ("c", id) } else { ("s", id | 1) };
            let rest = if stage.event.starts_with("data") { "0 100" } else { "100 0" };
            format!("{at} {node} {} {id} 9 {rest}\n", stage.event)
        });
        lines.collect()
    }

    #[test]
    fn the_cause_is_the_stage_that_exceeds_its_median_by_most() {
        let calls = (1..100).map(|number| call(number * 2, 0, 1_000));
        let lines: String = calls.chain([call(400, 5, 50_000)]).collect();
        let report = p99short(&script(&lines));
        let stage = report.cell("causes", 0, "before_stage");
        assert_eq!(stage, Some(&Cell::from("sendmsg_response")));
        assert_eq!(report.cell("slowest", 0, "id"), Some(&Cell::Count(400)));
        assert_eq!(report.cell("slowest", 0, "excess_us"), Some(&Cell::Number(49.0)));
        assert!(report.findings[0].contains("the server's application"), "{:?}", report.findings);
    }
}
