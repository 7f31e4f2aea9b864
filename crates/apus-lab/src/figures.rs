//! Rows, curves and warnings from the measurements of a lab's hosts.
//!
//! * A *slowdown* is a call's time, from the time at which it was due to the last byte of its reply, divided by the ideal
//!   ([`crate::ideal`]). Calls that had not ended at the end of the run count with their time so far.
//! * *Short* messages are the shortest decile of all messages of the run, as in the Homa papers.
//! * A 99th percentile is *stable* if its 95 % interval by order statistics spans at most a factor of 1.5.

use anyhow::Result;
use apus_load::{Latency, REFUSED, ResultFile, Row, Scale, Series, Size, stats};

use crate::agent::{Measured, Transport};
use crate::ideal::Ideal;
use crate::plan::{Contender, LoadLevel, Pattern, Setting};
use crate::rival::TcpRival;
use crate::trial::{Idle, Trial};

/// Share of busy time above which the machine was the bottleneck rather than the network: 85 %.
const BUSY_MAX: f64 = 0.85;

/// Share of samples without an idle processor above which the machine was the bottleneck: 5 %.
const FULL_MAX: f64 = 0.05;

/// Upper bound on the factor that the 95 % interval of a stable percentile spans.
const STABLE: f64 = 1.5;

/// Upper bound on the points of a curve over sizes.
const SIZE_POINTS: usize = 30;

/// Lower bound on the calls of each of these points, except that of the longest messages.
const CALLS_PER_POINT: usize = 100;

/// IPv4 and TCP headers with timestamps, in bytes.
const TCP_HEADERS: u32 = 52;

/// Points of the curve of queue lengths.
const QUEUE_POINTS: usize = 200;

/// The label of curves of the idle network.
const ROUND_TRIP: &str = "median round trip (µs)";

/// A call: bytes of the request, nanoseconds, slowdown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CallSample {
    bytes: u32,
    ns: u64,
    slowdown: f64,
}

/// All calls of a transport in one trial, short to long.
struct Calls {
    sorted: Vec<CallSample>,
}

impl Calls {
    fn of(setting: &Setting, trial: &Trial, number: usize, ideal: &Ideal) -> Result<Self> {
        let reply = setting.reply()?;
        let loads = || trial.reports.iter().map(|report| &report.loads[number]);
        let all = loads().flat_map(|load| load.calls.iter().chain(&load.unfinished));
        let mut sorted: Vec<CallSample> = all
            .map(|&(bytes, ns)| {
                let reply = if reply == 0 { bytes } else { reply };
                let took_us = ns as f64 / 1e3;
                CallSample { bytes, ns, slowdown: ideal.slowdown(took_us, bytes, reply) }
            })
            .collect();
        // The sort is stable: calls of one length stay in the order of hosts and time.
        sorted.sort_by_key(|call| call.bytes);
        Ok(Self { sorted })
    }

    /// Equal parts of the messages, short to long.
    fn parts(&self, parts: usize) -> impl Iterator<Item = &[CallSample]> {
        let all = self.sorted.len();
        (0..parts).map(move |part| &self.sorted[all * part / parts..all * (part + 1) / parts])
    }

    /// The points of a curve over sizes, short to long: about equal parts of the messages, with all calls of one length in one part.
    /// The longest messages have a part of their own if the part before has one length, even if they are few.
    fn size_points(&self) -> Vec<&[CallSample]> {
        let least = (self.sorted.len() / SIZE_POINTS).max(CALLS_PER_POINT);
        let (mut points, mut rest) = (Vec::new(), &self.sorted[..]);
        while !rest.is_empty() {
            let longest = rest[least.min(rest.len()) - 1].bytes;
            let mut end = rest.partition_point(|call| call.bytes <= longest);
            if rest.len() - end < least && rest[0].bytes < longest {
                end = rest.len();
            }
            let (point, longer) = rest.split_at(end);
            points.push(point);
            rest = longer;
        }
        points
    }

    fn short(&self) -> &[CallSample] {
        &self.sorted[..self.sorted.len() / 10]
    }
}

/// A percentile of one figure of some calls; `None` without calls.
fn percentile(
    calls: &[CallSample],
    percent: f64,
    figure: impl Fn(&CallSample) -> f64,
) -> Option<f64> {
    stats::percentile(&ordered(calls, figure), percent)
}

/// The 95 % interval of a percentile by order statistics.
fn interval(
    calls: &[CallSample],
    percent: f64,
    figure: impl Fn(&CallSample) -> f64,
) -> Option<(f64, f64)> {
    let ordered = ordered(calls, figure);
    let (n, p) = (ordered.len() as f64, percent / 100.0);
    let spread = 1.96 * (n * p * (1.0 - p)).sqrt();
    let low = (n * p - spread).floor().max(1.0) as usize - 1;
    let high = (n * p + spread).ceil() as usize;
    // There is no upper bound beyond the last call.
    let high = ordered.get(high).copied().unwrap_or(f64::INFINITY);
    Some((*ordered.get(low)?, high))
}

fn ordered(calls: &[CallSample], figure: impl Fn(&CallSample) -> f64) -> Vec<f64> {
    let mut ordered: Vec<f64> = calls.iter().map(figure).collect();
    ordered.sort_by(f64::total_cmp);
    ordered
}

fn mean(calls: &[CallSample], figure: impl Fn(&CallSample) -> f64) -> Option<f64> {
    (!calls.is_empty()).then(|| calls.iter().map(figure).sum::<f64>() / calls.len() as f64)
}

fn us(call: &CallSample) -> f64 {
    call.ns as f64 / 1e3
}

fn slowdown(call: &CallSample) -> f64 {
    call.slowdown
}

/// The name of a setting's benchmark, for tables.
fn bench(setting: &Setting) -> &'static str {
    match (setting.pattern, setting.load) {
        (_, LoadLevel::Unloaded) => "lab idle",
        (Pattern::Incast, _) => "lab incast",
        (Pattern::AllToAll, LoadLevel::Max) => "lab max",
        (Pattern::AllToAll, LoadLevel::Share(_)) => "lab",
    }
}

/// A row with the conditions of a setting.
fn row(setting: &Setting, name: &str, bench: &str) -> Row {
    let mut row = Row::new(name)
        .set("bench", bench)
        .set("workload", setting.workload.clone())
        .set("load", setting.load.to_string())
        .set("hosts", setting.hosts)
        .set("link_mbps", setting.link_mbps)
        .set("host_cpu", setting.host_cpu);
    let swept: Vec<String> = setting
        .swept
        .iter()
        .map(|(key, value)| format!("{} {value}", key.replace('_', " ")))
        .collect();
    if !swept.is_empty() {
        // A setting with several transports compares them; settings with one transport are compared with each other.
        let key = if setting.transports.len() > 1 { "setting" } else { "with" };
        row.put(key, swept.join(", "));
    }
    row
}

fn transport_name(transport: &Transport) -> &'static str {
    match transport {
        Transport::Apus { .. } => "apus-udp",
        Transport::Tcp(_) => "tcp-epoll",
    }
}

/// The transport's name, including the transport that shares the network.
fn name(transports: &[Transport], number: usize) -> String {
    let other = transports.get(1 - number.min(1)).filter(|_| transports.len() > 1);
    match other {
        Some(other) => {
            format!("{} beside {}", transport_name(&transports[number]), transport_name(other))
        }
        None => transport_name(&transports[number]).to_owned(),
    }
}

/// Bytes of messages per second that each caller's link carried in both directions, in Mb/s.
fn goodput_mbps(setting: &Setting, trial: &Trial, number: usize) -> f64 {
    let bytes: u64 = trial.reports.iter().map(|report| report.loads[number].bytes).sum();
    let links = match setting.pattern {
        // A call's request and reply each pass one uplink and one downlink of two hosts.
        Pattern::AllToAll => setting.hosts as f64,
        Pattern::Incast => 1.0,
    };
    bytes as f64 * 8.0 / 1e6 / setting.seconds / links
}

/// Adds the row of each transport of a trial, with its warnings.
///
/// # Errors
/// If a size of the setting is wrong.
pub(crate) fn summarize(
    setting: &Setting,
    transports: &[Transport],
    run: u32,
    trial: &Trial,
    ideal: &Ideal,
    result: &mut ResultFile,
) -> Result<()> {
    let refused = refusal(trial);
    for (number, transport) in transports.iter().enumerate() {
        let name = name(transports, number);
        let calls = Calls::of(setting, trial, number, ideal)?;
        let mut row = with_set_up(row(setting, &name, bench(setting)), transport).set("run", run);
        if setting.load == LoadLevel::Max {
            row.put("goodput_mbps", goodput_mbps(setting, trial, number));
        }
        let short = calls.short();
        row = row
            .set("short_p50_us", percentile(short, 50.0, us))
            .set("short_p99_us", percentile(short, 99.0, us))
            .set("short_s99", percentile(short, 99.0, slowdown))
            .set("mean_slowdown", mean(&calls.sorted, slowdown))
            .set("s99", percentile(&calls.sorted, 99.0, slowdown));
        if setting.host_cpu.is_some() {
            row.put("p99_us", percentile(&calls.sorted, 99.0, us));
        }
        if setting.load != LoadLevel::Max {
            row.put("goodput_mbps", goodput_mbps(setting, trial, number));
        }
        row = with_health(row.set("calls", calls.sorted.len()), setting, trial, number);
        let verdict = if refused.is_some() { REFUSED } else { "good" };
        result.rows.push(row.set("verdict", verdict));
        let title = format!("{}, {name}, run {run}", setting.name());
        if let Some(reason) = &refused {
            result.warn(format!("{title}: REFUSED as a measurement of the network: {reason}"));
        }
        warn(setting, &title, trial, number, result);
    }
    Ok(())
}

/// The reason for which the machine was the bottleneck, if it was.
fn refusal(trial: &Trial) -> Option<String> {
    let (busy, full) = (trial.busy?, trial.full?);
    if busy > BUSY_MAX {
        return Some(format!("the processors were busy {:.0} % of the time", busy * 100.0));
    }
    (full > FULL_MAX).then(|| {
        format!("no processor was idle in {:.0} % of the tenths of a second", full * 100.0)
    })
}

/// Adds the transport's settings to a row.
fn with_set_up(row: Row, transport: &Transport) -> Row {
    match transport {
        Transport::Apus { delivery, settings } => {
            let priorities = settings.get("priorities").and_then(|text| text.parse::<u64>().ok());
            row.set("delivery", delivery.clone()).set("priorities", priorities)
        }
        Transport::Tcp(rival) => {
            let mut row = row.set("connections", rival.connections);
            if !rival.classes.is_empty() {
                row.put("spread", "by length");
            }
            if let Some(name) = &rival.congestion {
                row.put("congestion", name.clone());
            }
            row.set("rto_min_ms", rival.rto_min_ms)
        }
    }
}

/// Adds losses below the messages and the use of the machine to a row.
fn with_health(row: Row, setting: &Setting, trial: &Trial, number: usize) -> Row {
    let loads = || trial.reports.iter().map(|report| &report.loads[number]);
    let sum = |value: fn(&Measured) -> u64| loads().map(value).sum::<u64>();
    let started: u64 = loads().map(|load| load.lateness.started()).sum();
    let late: f64 =
        loads().map(|load| load.lateness.share() * load.lateness.started() as f64).sum();
    let late_max = loads().map(|load| load.lateness.max_us()).fold(0.0, f64::max);
    let counted = |key: &str| loads().filter_map(|load| load.counters.get(key)).sum::<u64>();
    let segment = u64::from(setting.mtu - TCP_HEADERS);
    let repeated = counted("retransmitted_bytes") + counted("tcp_retransmits") * segment;
    let cpu_s: f64 = trial.reports.iter().map(|report| report.cpu_s).sum();
    let mut held = trial.held.clone();
    held.sort_unstable();
    let held_kb = |percent: f64| stats::percentile(&held, percent).map(|bytes| bytes as f64 / 1e3);
    row.set("unfinished", sum(|load| load.unfinished.len() as u64))
        .set("late_pct", if started > 0 { late / started as f64 * 100.0 } else { 0.0 })
        .set("late_max_us", late_max)
        .set("retransmitted_kb", repeated as f64 / 1e3)
        .set("switch_drops", trial.dropped)
        .set("switch_queue_p50_kb", held_kb(50.0))
        .set("switch_queue_p99_kb", held_kb(99.0))
        .set("switch_classes", trial.by_class.map(classes_used))
        .set("hosts_cpu_s", cpu_s)
        .set("cpu_busy_pct", trial.busy.map(|share| share * 100.0))
}

/// Number of the switch's classes that carried more than a thousandth of the bytes.
fn classes_used(by_class: [u64; 8]) -> usize {
    let all: u64 = by_class.iter().sum();
    by_class.iter().filter(|bytes| **bytes > all / 1000).count()
}

fn warn(setting: &Setting, title: &str, trial: &Trial, number: usize, result: &mut ResultFile) {
    let loads = || trial.reports.iter().map(|report| &report.loads[number]);
    let unfinished: usize = loads().map(|load| load.unfinished.len()).sum();
    let calls: usize = loads().map(|load| load.calls.len()).sum();
    let blocked_s = loads().map(|load| load.blocked_ns).sum::<u64>() as f64 / 1e9;
    if unfinished * 100 > calls {
        result.warn(format!(
            "{title}: {unfinished} of {} calls had not ended {} s after the last one began; each counts with its time until then",
            unfinished + calls,
            setting.drain_s
        ));
    }
    if blocked_s > 0.01 * setting.seconds * setting.hosts as f64 {
        result.warn(format!(
            "{title}: due calls could not start for {blocked_s:.1} s of all hosts' time, because the limit of outstanding calls \
             was reached"
        ));
    }
}

/// The cost of a way to run TCP, for the choice of the best.
pub(crate) fn cost(setting: &Setting, trial: &Trial) -> f64 {
    match setting.load {
        LoadLevel::Max => -goodput_mbps(setting, trial, 0),
        _ => choice_calls(setting, trial)
            .and_then(|calls| percentile(calls.short(), 99.0, us))
            .unwrap_or(f64::INFINITY),
    }
}

fn choice_calls(setting: &Setting, trial: &Trial) -> Option<Calls> {
    // Only times are compared, so the slowdowns are arbitrary.
    let wire = super::ideal::Wire { mtu: setting.mtu, link_mbps: setting.link_mbps };
    Calls::of(setting, trial, 0, &Ideal { wire, base_us: 1.0 }).ok()
}

/// Adds the result of a way to run TCP in a choosing trial.
pub(crate) fn note_choice(
    setting: &Setting,
    rival: &TcpRival,
    trial: &Trial,
    result: &mut ResultFile,
) {
    let Some(calls) = choice_calls(setting, trial) else { return };
    result.rows.push(
        row(setting, &rival.to_string(), "lab choice of TCP")
            .set("short_p99_us", percentile(calls.short(), 99.0, us))
            .set("p99_us", percentile(&calls.sorted, 99.0, us))
            .set("goodput_mbps", goodput_mbps(setting, trial, 0))
            .set("cpu_busy_pct", trial.busy.map(|share| share * 100.0)),
    );
}

/// Adds the idle network: a row for each size, computed and measured.
pub(crate) fn unloaded(setting: &Setting, idle: &Idle, result: &mut ResultFile) {
    let Some((_, sizes)) = idle.medians.first() else { return };
    for (place, (bytes, _)) in sizes.iter().enumerate() {
        let mut row = row(setting, &size(*bytes), "lab idle")
            .set("computed_us", computed_us(setting, idle, *bytes));
        for (contender, medians) in &idle.medians {
            row.put(&format!("{}_p50_us", contender.title()), medians[place].1);
        }
        result.rows.push(row);
    }
    if sizes.len() < 2 {
        return; // A curve needs two points.
    }
    for (contender, medians) in &idle.medians {
        let points = medians.iter().map(|(bytes, us)| (f64::from(*bytes), *us)).collect();
        let name = if *contender == Contender::Apus { "apus-udp" } else { "tcp-epoll" };
        let label = ROUND_TRIP.to_owned();
        result.series.push(Series::by_size(&idle_title(setting), name, label, points));
    }
    let computed =
        sizes.iter().map(|(bytes, _)| (f64::from(*bytes), computed_us(setting, idle, *bytes)));
    result.series.push(Series::by_size(
        &idle_title(setting),
        "computed ideal",
        ROUND_TRIP.to_owned(),
        computed.collect(),
    ));
}

fn computed_us(setting: &Setting, idle: &Idle, bytes: u32) -> f64 {
    let reply = setting.reply().unwrap_or(0);
    idle.ideal.us(bytes, if reply == 0 { bytes } else { reply })
}

fn idle_title(setting: &Setting) -> String {
    format!("Idle network, {}", setting.name())
}

/// Adds the comparison of transports over all repetitions: rows of each decile of the messages, and curves.
///
/// # Errors
/// If a size of the setting is wrong.
pub(crate) fn compare(
    setting: &Setting,
    trials: &[(Vec<Transport>, Trial)],
    idle: &Idle,
    result: &mut ResultFile,
) -> Result<()> {
    let mut all: Vec<(String, Calls)> = Vec::new();
    for (transports, trial) in trials {
        for number in 0..transports.len() {
            let (name, calls) =
                (name(transports, number), Calls::of(setting, trial, number, &idle.ideal)?);
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => {
                    known.sorted.extend(calls.sorted);
                    known.sorted.sort_by_key(|call| call.bytes);
                }
                None => all.push((name, calls)),
            }
        }
    }
    unloaded(setting, idle, result);
    if setting.load != LoadLevel::Max {
        deciles(setting, &all, idle, result);
        curves(setting, &all, result);
    }
    queues(setting, trials, result);
    Ok(())
}

/// Deciles of the messages, short to long: one table that compares the transports, and one for each transport with cperf's columns.
fn deciles(setting: &Setting, all: &[(String, Calls)], idle: &Idle, result: &mut ResultFile) {
    for decile in 0..10 {
        let parts =
            all.iter().filter_map(|(name, calls)| Some((name, calls.parts(10).nth(decile)?)));
        let parts: Vec<_> = parts.filter(|(_, part)| !part.is_empty()).collect();
        let Some((_, first)) = parts.first() else { continue };
        let mut row = row(setting, &up_to(decile, first), "lab deciles");
        for (name, part) in &parts {
            row.put(&format!("{}_mean_slowdown", key(name)), mean(part, slowdown));
            row.put(&format!("{}_s99", key(name)), percentile(part, 99.0, slowdown));
            row.put(&format!("{}_p99_us", key(name)), percentile(part, 99.0, us));
        }
        if let [(_, ours), (_, theirs), ..] = parts[..] {
            let ratio = percentile(theirs, 99.0, us).zip(percentile(ours, 99.0, us));
            row.put("p99_ratio", ratio.map(|(theirs, ours)| theirs / ours));
        }
        result.rows.push(row);
    }
    let mut unstable = Vec::new();
    for (name, calls) in all {
        for (decile, part) in calls.parts(10).enumerate().filter(|(_, part)| !part.is_empty()) {
            let (low, high) = interval(part, 99.0, us).unwrap_or((0.0, f64::INFINITY));
            if high > low * STABLE {
                unstable.push(format!("{} of {name}", decile + 1));
            }
            let row = row(setting, &up_to(decile, part), &format!("lab sizes of {name}"));
            result.rows.push(by_size(
                row,
                part,
                decile,
                computed_us(setting, idle, part[part.len() / 2].bytes),
                (low, high),
            ));
        }
    }
    if !unstable.is_empty() {
        result.warn(format!(
            "{}: the 99th percentile is not stable (its 95 % interval spans more than a factor of {STABLE}) in decile {}: measure longer",
            setting.name(),
            unstable.join(", ")
        ));
    }
}

/// cperf's columns, with the ideal and the interval of the 99th percentile.
fn by_size(row: Row, part: &[CallSample], decile: usize, ideal_us: f64, p99_us: (f64, f64)) -> Row {
    row.set("cumulative", (decile + 1) as f64 / 10.0)
        .set("samples", part.len())
        .set("ideal_us", ideal_us)
        .set("p50_us", percentile(part, 50.0, us))
        .set("p99_us", percentile(part, 99.0, us))
        .set("p99_9_us", percentile(part, 99.9, us))
        .set("s50", percentile(part, 50.0, slowdown))
        .set("s99", percentile(part, 99.0, slowdown))
        .set("s999", percentile(part, 99.9, slowdown))
        .set("p99_from_us", p99_us.0)
        .set("p99_to_us", p99_us.1)
}

/// The label of a decile: its number and its longest message.
fn up_to(decile: usize, part: &[CallSample]) -> String {
    format!("{}: {}", decile + 1, size(part[part.len() - 1].bytes))
}

/// A transport's name as the start of a key.
fn key(name: &str) -> String {
    name.replace("-udp", "").replace("-epoll", "").replace(' ', "_")
}

/// Slowdown over size, and the distribution of short messages.
fn curves(setting: &Setting, all: &[(String, Calls)], result: &mut ResultFile) {
    for percent in [50.0, 99.0] {
        let title = format!("Slowdown p{percent}, {}", setting.name());
        for (name, calls) in all {
            let point = |part: &[CallSample]| {
                let bytes = mean(part, |call| f64::from(call.bytes))?;
                Some((bytes, percentile(part, percent, slowdown)?))
            };
            let points = calls.size_points().into_iter().filter_map(point).collect();
            let label = format!("p{percent} slowdown (times the ideal)");
            result.series.push(Series::by_size(&title, name, label, points));
        }
    }
    let title = format!("Short messages, {}", setting.name());
    for (name, calls) in all {
        let mut latency = Latency::new();
        calls.short().iter().for_each(|call| latency.record_ns(call.ns));
        result.series.push(Series::latency_cdf(&title, name, &latency));
    }
}

/// Distribution of the switch's queue lengths.
fn queues(setting: &Setting, trials: &[(Vec<Transport>, Trial)], result: &mut ResultFile) {
    let title = format!("Queues of the switch, {}", setting.name());
    let mut seen: Vec<String> = Vec::new();
    for (transports, trial) in trials {
        let name = match transports.len() {
            1 => transport_name(&transports[0]).to_owned(),
            _ => "apus-udp and tcp-epoll".to_owned(),
        };
        if trial.held.is_empty() || seen.contains(&name) {
            continue;
        }
        let mut held = trial.held.clone();
        held.sort_unstable();
        let at = |point: usize| held[(held.len() - 1) * point / QUEUE_POINTS] as f64 / 1e3;
        let points = (0..=QUEUE_POINTS).map(|p| (at(p), p as f64 / QUEUE_POINTS as f64 * 100.0));
        result.series.push(Series {
            name: title.clone(),
            transport: name.clone(),
            x_label: "bytes queued at a port (kB)".to_owned(),
            x_scale: Scale::Linear,
            y_label: "samples with at most this many (%)".to_owned(),
            y_scale: Scale::Linear,
            points: points.collect(),
        });
        seen.push(name);
    }
}

/// A length as text.
fn size(bytes: u32) -> String {
    Size::new(bytes).map_or_else(|| bytes.to_string(), |size| size.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(values: impl Iterator<Item = u64>) -> Vec<CallSample> {
        values.map(|ns| CallSample { bytes: 100, ns: ns * 1000, slowdown: ns as f64 }).collect()
    }

    #[test]
    fn the_interval_narrows_with_the_number_of_calls() {
        let (low, high) = interval(&calls(1..=10_000), 99.0, us).unwrap();
        assert!(
            (9_870.0..9_890.0).contains(&low) && (9_910.0..9_930.0).contains(&high),
            "{low} {high}"
        );
        // With a hundred calls, no observation bounds the 99th percentile.
        assert_eq!(interval(&calls(1..=100), 99.0, us).unwrap().1, f64::INFINITY);
    }

    #[test]
    fn deciles_are_equal_and_go_by_length() {
        let mut sorted = calls(1..=95);
        sorted.iter_mut().enumerate().for_each(|(place, call)| call.bytes = place as u32);
        let calls = Calls { sorted };
        let parts: Vec<usize> = calls.parts(10).map(<[CallSample]>::len).collect();
        assert_eq!(parts.iter().sum::<usize>(), 95);
        assert!(parts.iter().all(|part| (9..=10).contains(part)), "{parts:?}");
        assert_eq!(calls.short().len(), 9);
    }

    #[test]
    fn calls_of_one_length_are_one_point_of_a_curve() {
        let of = |lengths: &[(u32, usize)]| {
            let call = |bytes| CallSample { bytes, ns: 1, slowdown: 1.0 };
            let calls = lengths.iter().flat_map(|&(bytes, count)| vec![call(bytes); count]);
            Calls { sorted: calls.collect() }
        };
        let mut result = ResultFile::new("apus lab run", apus_load::Machine::default());
        let calls = of(&[(100, 9_000), (10_000, 900), (1_000_000, 100)]);
        curves(&Setting::default(), &[("apus-udp".to_owned(), calls)], &mut result);
        let sizes: Vec<f64> = result.series[0].points.iter().map(|point| point.0).collect();
        assert_eq!(sizes, [100.0, 10_000.0, 1_000_000.0]);
        let lengths: Vec<(u32, usize)> = (1..=5_050).map(|bytes| (bytes, 1)).collect();
        let calls = of(&lengths);
        let points = calls.size_points();
        assert_eq!(points.len(), SIZE_POINTS);
        assert!(points.iter().all(|point| point.len() >= CALLS_PER_POINT));
        assert_eq!(points.concat().len(), 5_050);
        assert!(of(&[]).size_points().is_empty());
    }

    #[test]
    fn a_busy_machine_is_refused() {
        let trial = |busy, full| Trial {
            reports: Vec::new(),
            busy: Some(busy),
            full: Some(full),
            held: Vec::new(),
            dropped: None,
            by_class: None,
        };
        assert_eq!(refusal(&trial(0.5, 0.01)), None);
        assert!(refusal(&trial(0.9, 0.0)).unwrap().contains("90 %"));
        assert!(refusal(&trial(0.5, 0.2)).unwrap().contains("20 %"));
    }
}
