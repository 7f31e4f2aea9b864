//! `apus trace`: what happened when, as processes recorded it.
//!
//! | file | |
//! |---|---|
//! | `files` | traces of files on one clock |
//! | `processes` | running processes that have a trace |
//! | `record` | the traces of running processes become files, or are frozen |
//! | `lines` | `show`, `grep`, `range`, `rpcid`: records as text |
//! | `rpcs`, `timeline` | analyses of calls |
//! | `help` | what `--help` of an analysis ends with |
//! | `analysis` | all other analyses: their arguments, and how their reports are shown |
//! | `gaps` | threads, nodes and CPUs that stood still |
//! | `page` | one call as an HTML page |
//! | `diff` | two measurements side by side |
//! | `merge` | one file of several; a file for trace viewers |

mod analysis;
mod diff;
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
use std::path::PathBuf;

use anyhow::Result;
use apus_bench::misuse::Misuse;
use apus_trace::analysis as analyses;
use clap::Subcommand;

pub(crate) use processes::trace_of;

use analysis::{Input, Instant, Lengths, OverTime};

/// Show what happened when: the time trace of nodes and simulations
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
    /// Show how long packets live, by stage, and how long messages wait for the application
    #[command(after_help = help::DELAY)]
    Delay(Input),
    /// Show how long complete messages wait for the application, by how its thread comes to them
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
    /// Show bytes that were granted and are not there, over time
    #[command(after_help = help::GRANTS)]
    Grants(OverTime),
    Gaps(gaps::Args),
    /// Show which threads waited for the lock of an engine
    #[command(after_help = help::LOCKS)]
    Locks(Input),
    /// Show how many requests wait behind one that a thread takes
    #[command(after_help = help::SOCKQS)]
    Sockqs(Input),
    /// Show whether packets of short messages overtake those of long ones
    #[command(after_help = help::PASS)]
    Pass(Lengths),
    /// Show what each thread received, over time
    #[command(after_help = help::INCOMING)]
    Incoming(OverTime),
    /// Show bytes that are on their way from node to node, over time
    #[command(after_help = help::NET)]
    Net(OverTime),
    /// Show how many recorded calls are under way, over time
    #[command(after_help = help::ACTIVITY)]
    Activity(OverTime),
    /// Show how calls went in intervals of 20 ms, unless --interval says otherwise
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
    /// Show how much longer than the least packets take from node to node
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

/// Checks `APUS_TRACE`, which the first node of the process reads and cannot complain about.
///
/// # Errors
/// When it is neither `on`, `off` nor a directory.
pub(crate) fn check_variable(value: Option<&OsStr>) -> Result<()> {
    let Some(value) = value.filter(|value| !value.is_empty() && *value != "on" && *value != "off")
    else {
        return Ok(());
    };
    let directory = PathBuf::from(value);
    if directory.is_dir() {
        return Ok(());
    }
    let allowed = "allowed are on, off, and a directory that exists";
    Err(Misuse(format!("APUS_TRACE: '{}': {allowed}", directory.display())).into())
}
