//! `apus stat`: the counters of processes, while they run and after they have died.

mod names;
mod prometheus;
mod show;

use std::io::{IsTerminal, Write, stdout};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_load::report::Style;
use apus_shm::CounterDirectory;

use self::show::OutputForm;
use crate::counters::{Change, Snapshot, Unreadable};
use crate::failure;
use crate::output;

/// Show the counters of processes that use Apus, running or ended
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each process with a node publishes its counters in a file (setting `metrics`), which remains for an hour after \
the process has ended or was killed. Without PID, the command lists the running processes of this user with their main rates, and \
with --ended also the ended ones. With PID, it shows all counters that are not zero. Warnings name counters that should not move: \
resends, timeouts, drops, exhausted budgets. docs/metrics.md explains every counter.

Examples:
  apus stat
  apus stat --ended
  apus stat 4711 --watch
  apus stat 4711 --diff --interval 10s
  apus stat --json before.json; sleep 60; apus stat --json after.json
  apus stat --diff before.json after.json
  apus stat --prometheus 127.0.0.1:9146"
)]
pub(crate) struct Args {
    /// Process to show; all processes with this PID if there were several
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Show rates again after every interval, until Ctrl-C
    #[arg(long, conflicts_with_all = ["diff", "json", "prometheus"])]
    watch: bool,
    /// End --watch after this number of intervals
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
    /// Show only the changes in an interval, or between two files of --json
    #[arg(long, value_name = "FILE", num_args = 0..=2, conflicts_with_all = ["json", "prometheus"])]
    diff: Option<Vec<PathBuf>>,
    /// Time between the two readings of a rate
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Write the counters as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Serve the counters of all processes of this user to Prometheus at this address
    #[arg(long, value_name = "IP:PORT", conflicts_with_all = ["pid", "json"])]
    prometheus: Option<SocketAddr>,
    /// Serve a series for each process, with its PID, instead of one for each program
    #[arg(long, requires = "prometheus")]
    per_process: bool,
    /// Also list ended processes, and processes of other pid namespaces
    #[arg(long, conflicts_with_all = ["pid", "prometheus"])]
    ended: bool,
    /// Directory of the files [default: /dev/shm/apus-UID of this user]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = apus::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(10)..=Duration::from_secs(86_400);
    if allowed.contains(&time) {
        Ok(time)
    } else {
        Err("expected a time from 10 ms to 1 day".to_owned())
    }
}

/// Shows the counters that the arguments name.
///
/// # Errors
/// When no process shows counters, the process does not exist, or a file or an address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    let directory =
        args.dir.as_deref().map_or_else(CounterDirectory::of_user, CounterDirectory::at);
    if let Some(address) = args.prometheus {
        return prometheus::serve(address, directory, args.per_process);
    }
    match args.diff.as_deref() {
        Some([before, after]) => {
            let read = |path: &PathBuf| Snapshot::from_file(path);
            return show_change(args, &Change::between(&read(before)?, &read(after)?), true);
        }
        Some([file]) => {
            let file = file.display();
            return Err(
                Misuse(format!("'--diff {file}': expected two files of --json, or none")).into()
            );
        }
        _ => {}
    }
    let (first, unreadable) = take(args, &directory)?;
    for (process, why) in unreadable {
        failure::note(&format!("the counters of process {} are omitted: {why}", process.pid));
    }
    if let Some(path) = &args.json {
        return output::write_json(path, &first);
    }
    let mut before = first;
    for turn in 1.. {
        if before.processes.iter().any(|process| process.alive != Some(false)) {
            thread::sleep(args.interval);
        }
        let (after, _) = take(args, &directory)?;
        let change = Change::between(&before, &after);
        if !args.watch {
            return show_change(args, &change, args.diff.is_some());
        }
        if !show_again(&show::text(&change, shown(args, false), Style::for_stdout())) {
            return Ok(());
        }
        if args.count.is_some_and(|count| turn >= count) {
            return Ok(());
        }
        if after.processes.iter().all(|process| process.alive == Some(false)) {
            thread::sleep(args.interval);
        }
        before = after;
    }
    Ok(())
}

fn show_change(args: &Args, change: &Change, changed_only: bool) -> Result<()> {
    output::print(&show::text(change, shown(args, changed_only), Style::for_stdout()))
}

fn shown(args: &Args, changed_only: bool) -> OutputForm {
    match (args.pid, changed_only) {
        (_, true) => OutputForm::Changed,
        (Some(_), false) => OutputForm::Counters,
        (None, false) if args.ended => OutputForm::All,
        (None, false) => OutputForm::Running,
    }
}

/// Returns false when standard output is closed.
fn show_again(text: &str) -> bool {
    let mut stdout = stdout().lock();
    let clear = if stdout.is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    stdout.write_all(format!("{clear}{text}\n").as_bytes()).and_then(|()| stdout.flush()).is_ok()
}

/// The counters as they are now, of the process asked for.
fn take(args: &Args, directory: &CounterDirectory) -> Result<(Snapshot, Unreadable)> {
    let path = directory.path().display();
    let (mut snapshot, mut unreadable) =
        Snapshot::take(directory).with_context(|| {
            format!("no process of this user publishes counters; a process publishes none with APUS_METRICS=off, or if it cannot \
                     write to '{path}'")
        })?;
    if let Some(pid) = args.pid {
        snapshot.processes.retain(|process| process.pid == pid);
        if snapshot.processes.is_empty() {
            let why = unreadable.iter().find(|(process, _)| process.pid == pid);
            let why = why.map_or_else(String::new, |(_, why)| format!(": {why}"));
            anyhow::bail!("process {pid} publishes no counters in '{path}'{why}");
        }
        unreadable.clear(); // Only the named process was asked for.
    }
    Ok((snapshot, unreadable))
}
