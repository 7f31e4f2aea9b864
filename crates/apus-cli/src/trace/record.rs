//! `apus trace record` and `apus trace freeze`: the traces of running processes become files, or stop.

use std::fs::File;
use std::io::{BufWriter, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus::parse_duration;
use apus_bench::misuse::Misuse;
use apus_bench::stop;
use apus_trace::{Remote, Settings, Trace};

use super::processes::Processes;
use crate::{interrupt, output};

/// How often the processes are asked whether one of them has had a slow call.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// How long the packets that freeze the other ends take at most, and those ends to stop.
const OTHERS_FREEZE: Duration = Duration::from_millis(100);

/// Write what running processes have recorded to files, one for each process
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace record
  apus trace record --pid 4711 --to /tmp/traces
  apus trace record --calls all --for 2s
  apus trace record --slower-than 5ms

Every process with a node records all the time, and keeps the last 65,536 records of each thread. Of processes of other users, \
only root sees the records. A process that was started with APUS_TRACE=DIRECTORY has its file there, even after it was killed.

With --slower-than, the command waits for a call of one of these processes that takes longer. Both ends of that call stop \
recording, wherever they are; those on this host are then written, and record again.")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    processes: Processes,
    /// Directory for the files PROGRAM.PID.trace
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    to: PathBuf,
    /// Have the processes record one call in N meanwhile, or all; needs --for or --slower-than
    #[arg(long, value_name = "N|all", value_parser = one_in)]
    calls: Option<u32>,
    /// Wait for so long before writing, as in 2s
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Wait for a call that takes longer than this, as in 5ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    slower_than: Option<Duration>,
}

/// Stop the recording of running processes, so that what they have is not overwritten
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace freeze --pid 4711
  apus trace freeze --off

`apus trace record` writes frozen traces as well, and lets their processes record again.")]
pub(crate) struct FreezeArgs {
    #[command(flatten)]
    processes: Processes,
    /// Let them record again
    #[arg(long)]
    off: bool,
}

fn one_in(text: &str) -> Result<u32, String> {
    let allowed = "allowed are all, and numbers from 1 on";
    let number = if text == "all" { Some(1) } else { text.parse().ok() };
    number.filter(|&number| number > 0).ok_or_else(|| allowed.to_owned())
}

/// Records and lists the files.
///
/// # Errors
/// When no process has a trace, or a file cannot be written.
pub(super) fn run(args: &RecordArgs) -> Result<()> {
    if !args.to.is_dir() {
        return Err(Misuse(format!("--to: '{}' is no directory", args.to.display())).into());
    }
    if args.calls.is_some() && args.time.is_none() && args.slower_than.is_none() {
        return Err(Misuse("--calls needs --for or --slower-than".to_owned()).into());
    }
    let processes = args.processes.open()?;
    if args.time.is_some() || args.slower_than.is_some() {
        interrupt::handle()?;
        let changed = Changed::new(&processes, args)?;
        wait(&processes, args)?;
        drop(changed);
    }
    let mut lines = String::new();
    for (pid, file) in &processes {
        let frozen = Remote(file).is_frozen()?;
        lines += &write(*pid, file, &args.to)?;
        if frozen {
            Remote(file).thaw()?;
        }
        lines += if frozen { "; was frozen, and records again\n" } else { "\n" };
    }
    output::print(&lines)
}

/// Freezes, or lets record again.
///
/// # Errors
/// When no process has a trace.
pub(super) fn freeze(args: &FreezeArgs) -> Result<()> {
    let mut lines = String::new();
    for (pid, file) in args.processes.open()? {
        let (done, word) = match args.off {
            true => (Remote(&file).thaw(), "records"),
            false => (Remote(&file).freeze(), "is frozen"),
        };
        done.with_context(|| format!("the time trace of process {pid}"))?;
        lines += &format!("{pid}: {word}\n");
    }
    output::print(&lines)
}

/// Writes the trace of a process. Returns a line about it, without its end.
fn write(pid: u32, file: &File, to: &Path) -> Result<String> {
    let read = Trace::read(file);
    let trace = read.with_context(|| format!("the time trace of process {pid}"))?;
    let path = to.join(format!("{}.{pid}.trace", trace.program));
    let write = || trace.write(BufWriter::new(File::create(&path)?));
    write().with_context(|| format!("cannot write '{}'", path.display()))?;
    let records: usize = trace.rings.iter().map(|ring| ring.records.len()).sum();
    Ok(format!("{}: {records} records of {} threads", path.display(), trace.rings.len()))
}

/// Waits for a slow call, and for no longer than was asked for.
fn wait(processes: &[(u32, File)], args: &RecordArgs) -> Result<()> {
    if let Some(limit) = args.slower_than {
        let count = processes.len();
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(
            stderr(),
            "waiting for a call of {count} processes that takes longer than {limit:?}"
        );
    }
    let end = args.time.map(|time| Instant::now() + time);
    loop {
        if stop::requested() || end.is_some_and(|end| Instant::now() >= end) {
            anyhow::ensure!(
                args.slower_than.is_none(),
                "no call took longer than --slower-than: nothing is written"
            );
            return Ok(());
        }
        for (_, file) in processes {
            if args.slower_than.is_some() && Remote(file).is_frozen()? {
                thread::sleep(OTHERS_FREEZE);
                return Ok(());
            }
        }
        thread::sleep(ASK_EVERY);
    }
}

/// Processes whose settings are as they were again when this is dropped.
struct Changed<'a> {
    before: Vec<(Remote<'a>, Settings)>,
}

impl<'a> Changed<'a> {
    fn new(processes: &'a [(u32, File)], args: &RecordArgs) -> Result<Self> {
        let mut changed = Self { before: Vec::new() };
        for (pid, file) in processes {
            let remote = Remote(file);
            let before = remote.settings();
            let before = before.with_context(|| format!("the time trace of process {pid}"))?;
            let one_in = args.calls.unwrap_or(before.one_in);
            let slower_than = args.slower_than.or(before.slower_than);
            remote.set(&Settings { one_in, slower_than })?;
            if args.slower_than.is_some() {
                remote.thaw()?; // It may be frozen by an older call.
            }
            changed.before.push((remote, before));
        }
        Ok(changed)
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        for (remote, before) in &self.before {
            let _ = remote.set(before);
        }
    }
}
