//! Arrivals, calls and events over time.

use std::collections::BTreeMap;

use super::delay::side;
use super::{WORST, end, thread};
use crate::calls::{STAGES, TracedCall, calls};
use crate::distribution::Distribution;
use crate::level::{During, Level, interval};
use crate::merged::{Merged, Moment};
use crate::report::{Cell, Report};

/// Datagrams and bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    datagrams: u64,
    bytes: u64,
}

/// Datagrams that each thread's link received, over time; for a simulated host, DATA packets.
#[must_use]
pub fn incoming(merged: &Merged, wanted: u64) -> Report {
    let (end, mut report) = (end(merged), Report::default());
    let interval = interval(wanted, end);
    let mut sums: BTreeMap<(u64, usize), Sum> = BTreeMap::new();
    let has_link = merged.moments.iter().any(|moment| merged.name(moment) == "link_recv");
    for moment in &merged.moments {
        let (datagrams, bytes) = match (merged.name(moment), moment.arguments) {
            ("link_recv", [datagrams, bytes, ..]) => (datagrams, bytes),
            ("data_received", [_, _, _, bytes]) if !has_link => (1, bytes),
            _ => continue,
        };
        let sum = sums.entry((moment.nanos / interval, moment.ring)).or_default();
        sum.datagrams += u64::from(datagrams);
        sum.bytes += u64::from(bytes);
    }
    let columns = ["thread", "datagrams", "bytes", "gbps", "most_gbps", "most_at_us"];
    let table = report.table("threads", &columns);
    for ring in 0..merged.rings.len() {
        let of_ring = || sums.iter().filter(|((_, it), _)| *it == ring);
        let Some(((index, _), most)) = of_ring().max_by_key(|(_, sum)| sum.bytes) else { continue };
        let bytes = of_ring().map(|(_, sum)| sum.bytes).sum::<u64>();
        let datagrams = of_ring().map(|(_, sum)| sum.datagrams).sum::<u64>();
        let rates = [Cell::gbps(bytes, end), Cell::gbps(most.bytes, interval)];
        let [rate, most_rate] = rates;
        let at = Cell::nanos(index * interval);
        table.row([
            thread(merged, ring).into(),
            datagrams.into(),
            bytes.into(),
            rate,
            most_rate,
            at,
        ]);
    }
    let table = report.table("over_time", &["from_us", "thread", "datagrams", "bytes", "gbps"]);
    for ((index, ring), Sum { datagrams, bytes }) in sums {
        let (from, name) = (Cell::nanos(index * interval), thread(merged, ring).into());
        table.row([from, name, datagrams.into(), bytes.into(), Cell::gbps(bytes, interval)]);
    }
    report
}

/// Time at which a call ended at its client, if recorded.
fn ended(call: &TracedCall) -> Option<u64> {
    let [.., complete, taken] = call.reached;
    complete.or(taken).or_else(|| call.failed.map(|_| call.last))
}

/// Recorded calls in progress and bytes of received DATA, over time.
#[must_use]
pub fn activity(merged: &Merged, wanted: u64) -> Report {
    let (end, mut report) = (end(merged), Report::default());
    let interval = interval(wanted, end);
    let (calls, mut live) = (calls(merged), Level::default());
    let mut counts: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    for call in &calls {
        let Some(begun) = call.reached[0] else { continue };
        counts.entry(begun / interval).or_default()[0] += 1;
        if let Some(ended) = ended(call) {
            counts.entry(ended / interval).or_default()[1] += 1;
        }
        live.raise(begun, ended(call).unwrap_or(end), 1);
    }
    for moment in merged.moments.iter().filter(|it| merged.name(it) == "data_received") {
        counts.entry(moment.nanos / interval).or_default()[2] += u64::from(moment.arguments[3]);
    }
    let overall = live.overall(end);
    let bytes: u64 = counts.values().map(|[.., bytes]| bytes).sum();
    report.fact("calls", calls.len());
    report.fact("live_mean", overall.mean);
    report.fact("live_most", overall.most.max(0) as u64);
    report.fact("data_gbps", Cell::gbps(bytes, end));
    let columns = ["from_us", "live_mean", "live_most", "begun", "ended", "data_gbps"];
    let table = report.table("over_time", &columns);
    for (index, during) in (0..).zip(live.over(interval, end)) {
        let [begun, ended, bytes] = counts.get(&index).copied().unwrap_or_default();
        if during == During::NOTHING && bytes == 0 {
            continue;
        }
        let (from, rate) = (Cell::nanos(index * interval), Cell::gbps(bytes, interval));
        let most = Cell::Count(during.most.max(0) as u64);
        table.row([from, during.mean.into(), most, begun.into(), ended.into(), rate]);
    }
    report
}

/// The recorded calls that began in each interval: the numbers of failed and disturbed calls, their durations, and the age of the
/// oldest unfinished call.
#[must_use]
pub fn longterm(merged: &Merged, wanted: u64) -> Report {
    let (end, mut report) = (end(merged), Report::default());
    let interval = interval(wanted, end);
    let calls = calls(merged);
    let begun = |call: &TracedCall| call.reached[0].unwrap_or(call.first);
    report.fact("calls", calls.len());
    report.fact("span_us", Cell::nanos(end));
    let columns = [
        "from_us",
        "begun",
        "failed",
        "disturbed",
        "round_trip_p50_us",
        "round_trip_p99_us",
        "oldest_us",
    ];
    let table = report.table("over_time", &columns);
    let (mut rest, mut open) = (&calls[..], Vec::new());
    let mut from = 0;
    while from < end {
        let until = from.saturating_add(interval);
        let (now, later) = rest.split_at(rest.partition_point(|call| call.first < until));
        rest = later;
        open.extend(now.iter().filter(|call| call.reached[0].is_some()));
        open.retain(|call| ended(call).is_none_or(|ended| ended >= until));
        let oldest = open.iter().map(|call| until.min(end).saturating_sub(begun(call))).max();
        if now.is_empty() && oldest.is_none() {
            from = until;
            continue;
        }
        let failed = now.iter().filter(|call| call.failed.is_some()).count();
        let disturbed = now.iter().filter(|call| call.disturbances > 0).count();
        let times: Distribution = now.iter().filter_map(TracedCall::round_trip).collect();
        let [p50, p99] = [50, 99].map(|percent| {
            if times.count() == 0 { Cell::Missing } else { Cell::nanos(times.percentile(percent)) }
        });
        let counts = [now.len(), failed, disturbed].map(Cell::from);
        let start = [Cell::nanos(from)].into_iter().chain(counts);
        table.row(start.chain([p50, p99, oldest.map(Cell::nanos).into()]));
        from = until;
    }
    report
}

/// A message whose first transmission and end are in the traces.
struct CompletedMessage {
    id: u32,
    pair: u32,
    from_client: bool,
    bytes: u32,
    sent: u64,
    took: u64,
}

/// Rates of single messages of at least `least` bytes, from first transmission to completion.
#[must_use]
pub fn tput(merged: &Merged, least: u32) -> Report {
    let mut report = Report::default();
    let mut messages: Vec<_> =
        calls(merged).iter().flat_map(messages_of).filter(|it| it.bytes >= least).collect();
    let rate =
        |message: &CompletedMessage| f64::from(message.bytes) * 8.0 / message.took.max(1) as f64;
    let table =
        report.table("directions", &["message", "count", "bytes_mean", "took_p50_us", "gbps_p50"]);
    for from_client in [true, false] {
        let of = || messages.iter().filter(|it| it.from_client == from_client);
        let bytes: Distribution = of().map(|message| message.bytes.into()).collect();
        let took: Distribution = of().map(|message| message.took).collect();
        // Rates are in kbit/s, which are integers and can be sorted.
        let rates: Distribution = of().map(|message| (rate(message) * 1e6) as u64).collect();
        let message = if from_client { "request" } else { "response" };
        let (p50, gbps) = (Cell::nanos(took.median()), rates.median() as f64 / 1e6);
        table.row([message.into(), bytes.count().into(), bytes.mean().into(), p50, gbps.into()]);
    }
    messages.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    let columns = ["id", "pair", "from", "bytes", "sent_us", "took_us", "gbps"];
    let table = report.table("slowest", &columns);
    for message in messages.iter().take(WORST) {
        let [sent, took] = [message.sent, message.took].map(Cell::nanos);
        let (id, pair) = (message.id.into(), Cell::hex(message.pair));
        let from = side(message.from_client).into();
        table.row([id, pair, from, message.bytes.into(), sent, took, rate(message).into()]);
    }
    report
}

/// The request and the response of a call.
fn messages_of(call: &TracedCall) -> impl Iterator<Item = CompletedMessage> + use<> {
    let place = |name| STAGES.iter().position(|stage| stage.name == name);
    let reached = |name| call.reached[place(name)?];
    let of = |from_client, bytes: Option<u32>, sent, complete| {
        let (id, pair, sent) = (call.id, call.pair, reached(sent)?);
        let took = reached(complete)?.saturating_sub(sent);
        Some(CompletedMessage { id, pair, from_client, bytes: bytes?, sent, took })
    };
    let request = of(true, call.request, "request_xmit", "request_complete");
    let response = of(false, call.response, "response_xmit", "response_complete");
    [request, response].into_iter().flatten()
}

/// Number of records of each event and each thread, their rate, and the time since the thread's previous record.
#[must_use]
pub fn sum(merged: &Merged) -> Report {
    let (end, mut report) = (end(merged), Report::default());
    let mut before: Vec<Option<&Moment>> = vec![None; merged.rings.len()];
    let (mut events, mut threads) = (BTreeMap::new(), BTreeMap::new());
    for moment in &merged.moments {
        let last = before[moment.ring].replace(moment);
        let since = last.map(|last| moment.nanos - last.nanos);
        let (count, times): &mut (u64, Vec<u64>) = events.entry(merged.name(moment)).or_default();
        *count += 1;
        times.extend(since);
        *threads.entry((moment.ring, merged.name(moment))).or_insert(0u64) += 1;
    }
    report.fact("records", merged.moments.len());
    report.fact("span_us", Cell::nanos(end));
    let rate = |count: u64| Cell::Number(count as f64 * 1e9 / end.max(1) as f64);
    let columns =
        ["event", "records", "per_second", "since_p50_us", "since_p99_us", "since_most_us"];
    let table = report.table("events", &columns);
    for (event, (count, times)) in events {
        let times: Distribution = times.into_iter().collect();
        let times = [times.median(), times.percentile(99), times.most()].map(Cell::nanos);
        table.row([event.into(), count.into(), rate(count)].into_iter().chain(times));
    }
    let table = report.table("threads", &["thread", "event", "records", "per_second"]);
    for ((ring, event), count) in threads {
        table.row([thread(merged, ring).into(), event.into(), count.into(), rate(count)]);
    }
    report
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    const CALLS: &str = "0 c sendmsg_request 2 9 400000
        1000 c data_xmit 2 9 0 400000
        1500 s link_recv 4 3000
        4000 s link_recv 2 5000
        33000 s request_complete 3 9 400000
        40000 c response_complete 2 9 100
        50000 c sendmsg_request 4 9 100
        60000 c resend_xmit 4 9 0 0
        70000 c call_failed 4 9 8
        80000 c sleep 0";

    #[test]
    fn datagrams_are_counted_by_interval_and_thread() {
        let report = incoming(&script(CALLS), 2_000);
        assert_eq!(report.cell("threads", 0, "bytes"), Some(&Cell::Count(8000)));
        assert_eq!(report.cell("threads", 0, "most_at_us"), Some(&Cell::Number(4.0)));
        assert_eq!(report.cell("over_time", 0, "gbps"), Some(&Cell::Number(12.0)));
    }

    #[test]
    fn calls_live_until_they_end_or_fail() {
        let report = activity(&script(CALLS), 40_000);
        assert_eq!(report.cell("over_time", 0, "live_mean"), Some(&Cell::Number(1.0)));
        assert_eq!(report.cell("over_time", 1, "live_mean"), Some(&Cell::Number(0.5)));
        let report = longterm(&script(CALLS), 20_000);
        assert_eq!(report.cell("over_time", 0, "oldest_us"), Some(&Cell::Number(20.0)));
        assert_eq!(report.cell("over_time", 2, "failed"), Some(&Cell::Count(1)));
        assert_eq!(report.cell("over_time", 2, "disturbed"), Some(&Cell::Count(1)));
    }

    #[test]
    fn long_messages_have_a_rate() {
        let report = tput(&script(CALLS), 300_000);
        assert_eq!(report.cell("slowest", 0, "gbps"), Some(&Cell::Number(100.0)));
        assert_eq!(report.cell("directions", 1, "count"), Some(&Cell::Count(0)));
    }

    #[test]
    fn records_are_counted_by_event_and_thread() {
        let report = sum(&script(CALLS));
        assert_eq!(report.facts[0], ("records", Cell::Count(10)));
        assert_eq!(report.cell("threads", 0, "thread"), Some(&Cell::from("c.1/main")));
    }
}
