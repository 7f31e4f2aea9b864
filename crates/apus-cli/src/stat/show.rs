//! Counters as tables.

use std::fmt::Write as _;
use std::time::Duration;

use apus_load::report::{Style, Table};

use super::names::Name;
use crate::counters::{Change, Process, ProcessChange, state_warnings, warnings};

/// The form of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OutputForm {
    /// A line for each process that runs.
    Running,
    /// A line for each process, those that run first.
    All,
    /// The counters of each process.
    Counters,
    /// Counters that changed.
    Changed,
}

/// The list of processes, or the counters of each.
pub(super) fn text(change: &Change, shown: OutputForm, style: Style) -> String {
    if change.processes.is_empty() {
        return "No process of this user publishes counters.\n".to_owned();
    }
    if let OutputForm::Running | OutputForm::All = shown {
        return list(change, shown == OutputForm::All, style);
    }
    let changed_only = shown == OutputForm::Changed;
    let tables = change.processes.iter();
    let tables = tables.filter(|it| !changed_only || !it.grown.is_empty());
    let text: Vec<_> = tables.map(|it| detail(change, it, changed_only, style)).collect();
    if text.is_empty() { "No counter changed.\n".to_owned() } else { text.join("\n") }
}

fn list(change: &Change, with_ended: bool, style: Style) -> String {
    let mut heads = vec![("pid", true), ("command", false), ("UDP ports", false)];
    heads.extend(with_ended.then_some(("state", false)));
    heads.extend([
        ("calls/s", true),
        ("requests/s", true),
        ("sent B/s", true),
        ("received B/s", true),
        ("resends/s", true),
        ("all messages", true),
    ]);
    let line = |it: &&ProcessChange| {
        let grown = |names: &[&str]| {
            let all: u64 = names.iter().filter_map(|name| it.grown.get(*name)).sum();
            rate(change, it, all)
        };
        let name = Name::of(&it.process);
        let mut line = vec![it.process.pid.to_string(), name.command, name.ports];
        line.extend(with_ended.then(|| state(change, &it.process)));
        line.extend([
            grown(&["protocol.calls"]),
            grown(&["protocol.requests"]),
            grown(&["link.bytes_sent", "memory.bytes_sent"]),
            grown(&["link.bytes_received", "memory.bytes_received"]),
            grown(&["protocol.resends_sent"]),
            it.process.counters.get("delivery.messages").copied().unwrap_or(0).to_string(),
        ]);
        line
    };
    let runs = |it: &&ProcessChange| it.process.alive == Some(true);
    let (running, others): (Vec<&ProcessChange>, Vec<_>) = change.processes.iter().partition(runs);
    let shown: Vec<&ProcessChange> = match with_ended {
        true => running.iter().chain(&others).copied().collect(),
        false => running,
    };
    let note = match others.len() {
        0 => String::new(),
        _ if with_ended => String::new(),
        others => {
            format!("{others} more ended, or in another pid namespace; --ended shows them")
        }
    };
    if shown.is_empty() {
        return format!("No running process has a node. {note}\n");
    }
    let title = if with_ended { "Processes with counters" } else { "Running processes" };
    let mut text = Table::of_texts(title, &note, &heads, shown.iter().map(line)).text(style);
    for it in shown {
        let moved = if it.is_new { Vec::new() } else { warnings(&it.grown) };
        let runs = it.process.alive != Some(false);
        let states = if runs { state_warnings(&it.process) } else { Vec::new() };
        for warning in moved.into_iter().chain(states) {
            let _ = writeln!(text, "warning: {}: {warning}", it.process.pid);
        }
    }
    text
}

fn detail(change: &Change, it: &ProcessChange, changed_only: bool, style: Style) -> String {
    let Process { pid, program, version, .. } = &it.process;
    let title = format!("{program} (pid {pid})");
    let note = format!("Apus {version}; {}.", state(change, &it.process));
    let heads = [
        ("counter", false),
        ("total", true),
        ("grown", true),
        ("per second", true),
        ("unit", false),
    ];
    let counters = it.process.counters.iter();
    let counters = counters.filter(|(name, _)| !changed_only || it.grown.contains_key(*name));
    let line = |(name, total): (&String, &u64)| {
        let grown = it.grown.get(name).copied().unwrap_or(0);
        let shown = if it.is_new { String::new() } else { grown.to_string() };
        vec![name.clone(), total.to_string(), shown, rate(change, it, grown), unit(name)]
    };
    // The growth of a gauge has no meaning.
    let gauges = it.process.gauges.iter().filter(|_| !changed_only);
    let gauges = gauges.map(|(name, value)| {
        vec![name.clone(), value.to_string(), String::new(), String::new(), unit(name)]
    });
    let lines = counters.map(line).chain(gauges);
    let mut text = Table::of_texts(&title, &note, &heads, lines).text(style);
    if !it.process.attached.is_empty() {
        text.push('\n');
        text.push_str(&attached(&it.process, style));
    }
    // Of a process that has ended, all that it ever counted is of interest.
    let moved = if it.process.alive == Some(false) && !changed_only {
        &it.process.counters
    } else {
        &it.grown
    };
    let states = if changed_only { Vec::new() } else { state_warnings(&it.process) };
    for warning in warnings(moved).into_iter().chain(states) {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

fn attached(process: &Process, style: Style) -> String {
    let names: Vec<_> = apus_metrics::process_metrics().map(|it| it.name).collect();
    let heads = [("pid", true), ("uid", true), ("state", false)].into_iter();
    let heads: Vec<_> = heads.chain(names.iter().map(|name| (*name, true))).collect();
    let lines = process.attached.iter().map(|it| {
        let state = if it.ended { "ended" } else { "attached" };
        let values = names.iter().map(|name| {
            let value = it.counters.get(&format!("process.{name}"));
            value.copied().unwrap_or(0).to_string()
        });
        [it.pid.to_string(), it.uid.to_string(), state.to_owned()]
            .into_iter()
            .chain(values)
            .collect()
    });
    Table::of_texts("Attached processes", "", &heads, lines).text(style)
}

/// Empty for a process that was missing at the earlier reading.
fn rate(change: &Change, it: &ProcessChange, grown: u64) -> String {
    let rate = change.rate(grown).filter(|_| !it.is_new);
    rate.map_or_else(String::new, |rate| format!("{rate:.0}"))
}

fn state(change: &Change, process: &Process) -> String {
    match process.alive {
        Some(true) => "runs".to_owned(),
        Some(false) => {
            let ago = Duration::from_nanos(change.taken_ns.saturating_sub(process.written_ns));
            format!("ended {} ago", humantime::format_duration(Duration::from_secs(ago.as_secs())))
        }
        None => "in another pid namespace".to_owned(),
    }
}

/// The unit of a counter; empty if this version does not know the counter.
fn unit(name: &str) -> String {
    let known =
        apus_metrics::metrics().find(|it| name.split_once('.') == Some((it.group, it.name)));
    known.map_or_else(String::new, |it| it.unit.replace('_', " "))
}
