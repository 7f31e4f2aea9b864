//! `apus trace`: events and their times, as processes recorded them.
//!
//! | file | |
//! |---|---|
//! | `files` | traces of files on one clock |
//! | `processes` | running processes that have a trace |
//! | `record` | the traces of running processes become files, or are frozen |
//! | `lines` | `show`, `grep`, `range`, `rpcid`: records as text |
//! | `rpcs`, `timeline`, `explain` | analyses of calls |
//! | `help` | the last part of an analysis's `--help` |
//! | `analysis` | all other analyses: their arguments, and how their reports are shown |
//! | `gaps` | threads, nodes and CPUs that stood still |
//! | `page` | one call as an HTML page |
//! | `diff` | two measurements side by side |
//! | `merge` | one file of several; a file for trace viewers |

mod analysis;
mod diff;
mod explain;
mod files;
mod gaps;
mod help;
mod lines;
mod merge;
mod page;
mod processes;
mod record;
mod rpcs;
mod timeline;

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use apus_load::misuse::Misuse;
use apus_trace::analysis as analyses;
use clap::Subcommand;

pub(crate) use processes::trace_of;

use analysis::{Input, Instant, Lengths, OverTime};

/// Show the time trace of nodes and simulations: events and their times
#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    Record(record::RecordArgs),
    Freeze(record::FreezeArgs),
    Show(lines::ShowArgs),
    Grep(lines::GrepArgs),
    Range(lines::RangeArgs),
    Rpcid(lines::RpcidArgs),
    Rpcs(rpcs::Args),
    Timeline(timeline::Args),
    Explain(explain::Args),
    /// Show the time of packets by stage, and the time that messages wait for the application
    #[command(after_help = help::DELAY)]
    Delay(Input),
    /// Show the time that complete messages wait for the application, by the way in which its thread gets them
    #[command(after_help = help::HANDOFFS)]
    Handoffs(Input),
    /// Show why the slowest percent of the calls of one packet were slow
    #[command(after_help = help::P99SHORT)]
    P99short(Input),
    /// List packets that did not arrive
    #[command(after_help = help::LOST)]
    Lost(Input),
    /// Show packets that arrived after later bytes of their message
    #[command(after_help = help::OOO)]
    Ooo(Input),
    /// Show bytes that were granted and have not arrived, over time
    #[command(after_help = help::GRANTS)]
    Grants(OverTime),
    Gaps(gaps::Args),
    /// Show which threads waited for the lock of an engine
    #[command(after_help = help::LOCKS)]
    Locks(Input),
    /// Show how many requests wait behind one that a thread takes
    #[command(after_help = help::SOCKQS)]
    Sockqs(Input),
    /// Show whether packets of short messages overtake packets of long ones
    #[command(after_help = help::PASS)]
    Pass(Lengths),
    /// Show the packets that each thread received, over time
    #[command(after_help = help::INCOMING)]
    Incoming(OverTime),
    /// Show bytes that are on their way from node to node, over time
    #[command(after_help = help::NET)]
    Net(OverTime),
    /// Show how many recorded calls are under way, over time
    #[command(after_help = help::ACTIVITY)]
    Activity(OverTime),
    /// Show figures of calls by interval, 20 ms unless --interval is given
    #[command(after_help = help::LONGTERM)]
    Longterm(OverTime),
    /// Show how fast long messages arrive
    #[command(after_help = help::TPUT)]
    Tput(Lengths),
    /// Count records by event and thread
    #[command(after_help = help::SUM)]
    Sum(Input),
    /// Show the round trips of short calls, and the longest ones
    #[command(after_help = help::RTT)]
    Rtt(Lengths),
    /// Show the least time that a packet took from node to node
    #[command(after_help = help::MINLATENCY)]
    Minlatency(Input),
    /// Show the time of packets from node to node beyond the least time
    #[command(after_help = help::PAIRS)]
    Pairs(Input),
    /// Show how fast payload is copied
    #[command(after_help = help::COPY)]
    Copy(Input),
    /// Show which messages were on their way at one instant
    #[command(after_help = help::SNAPSHOT)]
    Snapshot(Instant),
    Diff(diff::Args),
    Merge(merge::Args),
    Export(merge::ExportArgs),
}

/// In µs.
const MILLISECOND: u64 = 1_000;

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(trace: &Trace) -> Result<()> {
    match trace {
        Trace::Record(args) => record::run(args),
        Trace::Freeze(args) => record::freeze(args),
        Trace::Show(args) => lines::show(args),
        Trace::Grep(args) => lines::grep(args),
        Trace::Range(args) => lines::range(args),
        Trace::Rpcid(args) => lines::rpcid(args),
        Trace::Rpcs(args) => rpcs::run(args),
        Trace::Timeline(args) => timeline::run(args),
        Trace::Explain(args) => explain::run(args),
        Trace::Delay(args) => args.show(analyses::delay),
        Trace::Handoffs(args) => args.show(analyses::handoffs),
        Trace::P99short(args) => args.show(analyses::p99short),
        Trace::Lost(args) => args.show(analyses::lost),
        Trace::Ooo(args) => args.show(analyses::ooo),
        Trace::Grants(args) => args.show(MILLISECOND, analyses::grants),
        Trace::Gaps(args) => gaps::run(args),
        Trace::Locks(args) => args.show(analyses::locks),
        Trace::Sockqs(args) => args.show(analyses::sockqs),
        Trace::Pass(args) => args.show(1_000, analyses::pass),
        Trace::Incoming(args) => args.show(MILLISECOND, analyses::incoming),
        Trace::Net(args) => args.show(MILLISECOND, analyses::net),
        Trace::Activity(args) => args.show(MILLISECOND, analyses::activity),
        Trace::Longterm(args) => args.show(20 * MILLISECOND, analyses::longterm),
        Trace::Tput(args) => args.show(300_000, analyses::tput),
        Trace::Sum(args) => args.show(analyses::sum),
        Trace::Rtt(args) => args.show(1_000, analyses::rtt),
        Trace::Minlatency(args) => args.show(analyses::minlatency),
        Trace::Pairs(args) => args.show(analyses::pairs),
        Trace::Copy(args) => args.show(analyses::copy),
        Trace::Snapshot(args) => args.show(analyses::snapshot),
        Trace::Diff(args) => diff::run(args),
        Trace::Merge(args) => merge::run(args),
        Trace::Export(args) => merge::export(args),
    }
}

/// Checks the variables of the time trace, which the first node of the process reads and cannot complain about.
///
/// # Errors
/// When one has a value that is not allowed.
pub(crate) fn check_variables() -> Result<()> {
    let wrong = VARIABLES.iter().find_map(|(name, is_allowed, allowed)| {
        let value = std::env::var_os(name)?;
        (!is_allowed(&value)).then(|| format!("{name}: '{}': {allowed}", value.display()))
    });
    wrong.map_or(Ok(()), |error| Err(Misuse(error).into()))
}

/// A variable: its name, its check, and its allowed values.
type Variable = (&'static str, fn(&OsStr) -> bool, &'static str);

const VARIABLES: [Variable; 4] = [
    ("APUS_TRACE", is_place, "expected on, off, or an existing directory"),
    ("APUS_TRACE_CALLS", is_share, "expected all, or a number from 1 to 4294967295"),
    ("APUS_TRACE_SLOWER_THAN", is_time, "expected a time of at least 1ns, like 5ms"),
    ("APUS_TRACE_KERNEL", is_switch, "expected on or off"),
];

fn is_switch(value: &OsStr) -> bool {
    value.is_empty() || value == "on" || value == "off"
}

fn is_place(value: &OsStr) -> bool {
    is_switch(value) || Path::new(value).is_dir()
}

fn is_share(value: &OsStr) -> bool {
    let text = value.to_str().unwrap_or_default();
    text.is_empty() || text == "all" || text.parse().is_ok_and(|one_in: u32| one_in > 0)
}

fn is_time(value: &OsStr) -> bool {
    let text = value.to_str().unwrap_or_default();
    text.is_empty() || humantime::parse_duration(text).is_ok_and(|time| time > Duration::ZERO)
}
