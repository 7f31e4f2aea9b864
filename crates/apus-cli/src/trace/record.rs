//! `apus trace record` and `apus trace freeze`: the traces of running processes become files, or stop.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _, stderr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus::parse_duration;
use apus_load::misuse::Misuse;
use apus_load::stop;
use apus_trace::{Remote, Settings, Trace};

use super::processes::{LeftOut, Processes};
use crate::{interrupt, output};

/// Interval at which the traces are checked for a slow call.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Upper bound on the time in which FREEZE reaches the other ends and they stop.
const OTHERS_FREEZE: Duration = Duration::from_millis(100);

/// Write the records of running processes to files, one for each process
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace record
  apus trace record --pid 4711 --to /tmp/traces
  apus trace record --calls all --for 2s
  apus trace record --slower-than 5ms

Every process with a node always records, and keeps the last 65,536 records of each thread. Only root can read the records of \
other users' processes. A process with APUS_TRACE=DIRECTORY has its file in that directory, even after it was killed.

With --slower-than, the command waits for a call of one of these processes that takes longer. Both ends of that call stop \
recording, on whichever hosts they run. The command writes the traces of ends on this host, which then record again.

The changes of --calls and --slower-than end with the command; if the command is killed, after five seconds.")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    processes: Processes,
    /// Directory for the files PROGRAM.PID.trace
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    to: PathBuf,
    /// Record one call in N meanwhile, or all; needs --for or --slower-than
    #[arg(long, value_name = "N|all", value_parser = one_in)]
    calls: Option<u32>,
    /// Wait for this time before writing, as in 2s
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Wait for a call that takes longer than this, as in 5ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    slower_than: Option<Duration>,
}

/// Stop the recording of running processes, so that their records are not overwritten
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace freeze --pid 4711
  apus trace freeze --off

`apus trace record` also writes frozen traces, and lets their processes record again.")]
pub(crate) struct FreezeArgs {
    #[command(flatten)]
    processes: Processes,
    /// Let the processes record again
    #[arg(long)]
    off: bool,
}

fn one_in(text: &str) -> Result<u32, String> {
    let allowed = "expected all, or a number of at least 1";
    let number = if text == "all" { Some(1) } else { text.parse().ok() };
    number.filter(|&number| number > 0).ok_or_else(|| allowed.to_owned())
}

/// Records and lists the files.
///
/// # Errors
/// When no process has a trace, or a file cannot be written.
pub(super) fn run(args: &RecordArgs) -> Result<()> {
    if !args.to.is_dir() {
        return Err(Misuse(format!("'--to {}': not a directory", args.to.display())).into());
    }
    if args.calls.is_some() && args.time.is_none() && args.slower_than.is_none() {
        return Err(Misuse("--calls needs --for or --slower-than".to_owned()).into());
    }
    let mut left_out = LeftOut::default();
    let traces = args.processes.open(&mut left_out)?;
    let changes = args.calls.is_some() || args.slower_than.is_some();
    let mut processes = Vec::new();
    for (pid, trace) in &traces {
        // Only files to be changed are opened for writing.
        let file = match Remote(trace.file()).is_frozen() {
            Ok(frozen) if changes || frozen => trace.writable(),
            Ok(_) => trace.file().try_clone(),
            Err(error) => Err(error),
        };
        match file {
            Ok(file) => processes.push((*pid, file)),
            Err(error) => left_out.add(*pid, &error.into()),
        }
    }
    if args.time.is_some() || args.slower_than.is_some() {
        interrupt::handle()?;
        let changed = changes.then(|| Changed::new(&processes, args, &mut left_out));
        wait(&processes, args, changed.as_ref())?;
        drop(changed);
    }
    let mut lines = Vec::new();
    for (pid, file) in &processes {
        match record(*pid, file, &args.to) {
            Ok(line) => lines.push(line),
            Err(error) => left_out.add(*pid, &error),
        }
    }
    output::print(&lines.concat())?;
    args.processes.check(&left_out, lines.len())
}

/// Writes the trace of a process, which records from now on. Returns a line about it.
fn record(pid: u32, file: &File, to: &Path) -> Result<String> {
    let frozen = Remote(file).is_frozen()?;
    let mut line = write(pid, file, to)?;
    // It may have been frozen since its file was opened for reading alone.
    let thaws = frozen && Remote(file).thaw().is_ok();
    line += if thaws { "; was frozen, and records again\n" } else { "\n" };
    Ok(line)
}

/// Freezes, or lets record again.
///
/// # Errors
/// When no process has a trace.
pub(super) fn freeze(args: &FreezeArgs) -> Result<()> {
    let (mut lines, mut left_out) = (Vec::new(), LeftOut::default());
    for (pid, trace) in args.processes.open(&mut left_out)? {
        let change = || {
            let file = trace.writable()?;
            match args.off {
                true => Remote(&file).thaw(),
                false => Remote(&file).freeze(),
            }
        };
        let word = if args.off { "records" } else { "is frozen" };
        match change() {
            Ok(()) => lines.push(format!("{pid}: {word}\n")),
            Err(error) => left_out.add(pid, &error.into()),
        }
    }
    output::print(&lines.concat())?;
    args.processes.check(&left_out, lines.len())
}

/// Writes the trace of a process. Returns a line about it, without its end.
fn write(pid: u32, file: &File, to: &Path) -> Result<String> {
    let trace = Trace::read(file)?;
    let name = format!("{}.{pid}.trace", plain(&trace.program));
    let path = to.join(&name);
    // A file that is there may be a link, and belong to another user: it is replaced, and not followed.
    let begun = to.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&begun)?;
        let written = trace.write(BufWriter::new(file)).and_then(|()| fs::rename(&begun, &path));
        written.inspect_err(|_| drop(fs::remove_file(&begun)))
    };
    write().with_context(|| format!("cannot write '{}'", path.display()))?;
    let records: usize = trace.rings.iter().map(|ring| ring.records.len()).sum();
    Ok(format!("{}: {records} records of {} threads", path.display(), trace.rings.len()))
}

/// A part of a file's name, of text that a process has chosen.
fn plain(program: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.+".contains(it);
    let replaced = program.chars().map(|it| if is_plain(it) { it } else { '_' });
    let name: String = replaced.skip_while(|&it| it == '.').collect();
    if name.is_empty() { "program".to_owned() } else { name }
}

/// Waits for a slow call, and for no longer than was asked for.
fn wait(processes: &[(u32, File)], args: &RecordArgs, changed: Option<&Changed<'_>>) -> Result<()> {
    if let Some(limit) = args.slower_than {
        let count = processes.len();
        // An error of standard error itself cannot be reported.
        let _ = writeln!(
            stderr(),
            "waiting for a call of {count} processes that takes longer than {limit:?}"
        );
    }
    let end = args.time.map(|time| Instant::now() + time);
    for number in 1.. {
        changed.into_iter().for_each(|changed| changed.show_life(number));
        if stop::requested() || end.is_some_and(|end| Instant::now() >= end) {
            anyhow::ensure!(
                args.slower_than.is_none(),
                "no call took longer than --slower-than: no trace is written"
            );
            return Ok(());
        }
        for (_, file) in processes {
            if args.slower_than.is_some() && Remote(file).is_frozen().unwrap_or(false) {
                thread::sleep(OTHERS_FREEZE);
                return Ok(());
            }
        }
        thread::sleep(ASK_EVERY);
    }
    Ok(())
}

/// Processes whose settings are as they were again when this is dropped.
struct Changed<'a> {
    before: Vec<(Remote<'a>, Settings)>,
}

impl<'a> Changed<'a> {
    fn new(processes: &'a [(u32, File)], args: &RecordArgs, left_out: &mut LeftOut) -> Self {
        let mut changed = Self { before: Vec::new() };
        for (pid, file) in processes {
            match Self::change(file, args) {
                Ok(before) => changed.before.push((Remote(file), before)),
                Err(error) => left_out.add(*pid, &error.into()),
            }
        }
        changed
    }

    /// The settings are still wanted.
    fn show_life(&self, number: u64) {
        for (remote, _) in &self.before {
            let _ = remote.show_life(number); // The process may have ended.
        }
    }

    /// Changes the settings of a process. Returns the settings before.
    fn change(file: &File, args: &RecordArgs) -> io::Result<Settings> {
        let remote = Remote(file);
        let before = remote.settings()?;
        let one_in = args.calls.unwrap_or(before.one_in);
        let slower_than = args.slower_than.or(before.slower_than);
        // Before the settings, so that they never stay without it.
        remote.show_life(u64::MAX)?;
        remote.set(&Settings { one_in, slower_than })?;
        if args.slower_than.is_some() {
            remote.thaw()?; // It may be frozen by an older call.
        }
        Ok(before)
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        for (remote, before) in &self.before {
            let _ = remote.set(before).and_then(|()| remote.show_life(0));
        }
    }
}
