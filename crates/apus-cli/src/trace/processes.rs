//! Running processes that have a time trace.
//!
//! A process decides about the files that it has open, their names and their contents. So a file is examined before it is opened,
//! and read before it is written, always through the same inode: it must be a regular file of the process's user, and begin as a
//! trace of that process does.

use std::fs::{self, File};
use std::io::{self, Read, Write as _, stderr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_trace::Trace;
use rustix::fs::{Mode, OFlags, open, openat};

/// Which processes are meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Processes {
    /// Process [default: all that this user may read]
    #[arg(long)]
    pid: Vec<u32>,
}

impl Processes {
    /// Each process and its trace. Processes whose traces cannot be read are [left out](LeftOut).
    ///
    /// # Errors
    /// When a process that was named has no trace, or none has.
    pub(super) fn open(&self, left_out: &mut LeftOut) -> Result<Vec<(u32, LiveTrace)>> {
        let pids = if self.pid.is_empty() { all_pids()? } else { self.pid.clone() };
        let mut found = Vec::new();
        for pid in pids {
            match trace_of(pid) {
                Ok(Some(file)) => found.push((pid, file)),
                Ok(None) if self.pid.is_empty() => {}
                Ok(None) => anyhow::bail!("process {pid} has no time trace, or does not exist"),
                Err(error) => left_out.add(pid, &error.into()),
            }
        }
        anyhow::ensure!(
            left_out.count > 0 || !found.is_empty(),
            "no process that this user may read has a time trace"
        );
        Ok(found)
    }

    /// Ends a command.
    ///
    /// # Errors
    /// When a process that was named was left out, or all were.
    pub(super) fn check(&self, left_out: &LeftOut, done: usize) -> Result<()> {
        let suffices = if self.pid.is_empty() { done > 0 } else { left_out.count == 0 };
        anyhow::ensure!(suffices, "{} processes were omitted", left_out.count);
        Ok(())
    }
}

/// Processes that a command does without: each of them may have made its trace unusable, and must not keep the others from theirs.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    count: usize,
}

impl LeftOut {
    /// Notes a process whose trace was left out.
    pub(super) fn add(&mut self, pid: u32, error: &anyhow::Error) {
        self.count += 1;
        // An error of standard error itself cannot be reported.
        let _ = writeln!(stderr(), "omitted: the time trace of process {pid}: {error:#}");
    }
}

fn all_pids() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = names.filter(|&pid| pid != std::process::id()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The trace of a running process, which was looked at.
#[derive(Debug)]
pub(crate) struct LiveTrace {
    file: File,
}

impl LiveTrace {
    /// For reading.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Opens the same file for writing.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn writable(&self) -> io::Result<File> {
        File::options().read(true).write(true).open(path_of(self.file.as_raw_fd()))
    }
}

fn path_of(fd: i32) -> PathBuf {
    format!("/proc/self/fd/{fd}").into()
}

/// The file of a process, by its descriptors; none if it has no trace, or may not be looked at.
///
/// # Errors
/// When it has something by that name that is no trace of its own.
pub(crate) fn trace_of(pid: u32) -> io::Result<Option<LiveTrace>> {
    // All names below are of this very process, although another one may get its number.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(process) = open(format!("/proc/{pid}"), flags, Mode::empty()) else { return Ok(None) };
    let Some(identity) = Identity::of(&process) else { return Ok(None) };
    let base = path_of(process.as_raw_fd());
    let Ok(descriptors) = fs::read_dir(base.join("fd")) else { return Ok(None) };
    let mut refused = None;
    for descriptor in descriptors.flatten() {
        let path = descriptor.path();
        if !fs::read_link(&path).is_ok_and(|target| identity.is_trace(&target)) {
            continue;
        }
        match identity.open(&path) {
            Ok(file) => return Ok(Some(LiveTrace { file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = Some(error),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// A process, as its traces name it.
struct Identity {
    /// The user that its files belong to.
    user: u32,
    /// Its number, from that in this pid namespace to that in its own.
    numbers: Vec<u32>,
}

impl Identity {
    fn of(process: &OwnedFd) -> Option<Self> {
        let file = openat(process, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut status = String::new();
        File::from(file.ok()?).read_to_string(&mut status).ok()?;
        let field = |name| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
        };
        let users = field("Uid:")?;
        Some(Self { user: *users.last()?, numbers: field("NSpid:")? })
    }

    fn is_trace(&self, target: &Path) -> bool {
        let name = target.to_string_lossy();
        let ends = |number: &u32| name.ends_with(&format!(".{number}.trace"));
        name.starts_with("/memfd:time-trace.apus") || self.numbers.iter().any(ends)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        // Neither a device nor a pipe notices this, and a file of a user's own file system is not asked.
        let found = File::from(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
        let metadata = found.metadata()?;
        let refuse = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if !metadata.is_file() || metadata.uid() != self.user {
            return refuse("the file does not belong to the user of the process");
        }
        let file = File::options()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path_of(found.as_raw_fd()))?;
        match Trace::process_of(&file) {
            Ok(number) if self.numbers.contains(&number) => Ok(file),
            Ok(_) => refuse("the file belongs to another process"),
            Err(error) => refuse(&error.to_string()),
        }
    }
}
