//! Running processes that have a time trace.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};

/// Which processes are meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Processes {
    /// Process that is meant; all that this user may read, if none is given
    #[arg(long)]
    pid: Vec<u32>,
}

impl Processes {
    /// Each process and the mapped file of its trace, open for reading and writing.
    ///
    /// # Errors
    /// When a process that was named has no trace, or none has.
    pub(super) fn open(&self) -> Result<Vec<(u32, File)>> {
        let pids = if self.pid.is_empty() { all_pids()? } else { self.pid.clone() };
        let mut found = Vec::new();
        for pid in pids {
            match trace_of(pid)? {
                Some(file) => found.push((pid, file)),
                None if self.pid.is_empty() => {}
                None => anyhow::bail!("process {pid} has no time trace, or does not exist"),
            }
        }
        anyhow::ensure!(!found.is_empty(), "no process that this user may read has a time trace");
        Ok(found)
    }
}

fn all_pids() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = names.filter(|&pid| pid != std::process::id()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The mapped file of a process, by its descriptors; none if it has no trace, or may not be looked at.
///
/// # Errors
/// When the file cannot be opened.
pub(crate) fn trace_of(pid: u32) -> Result<Option<File>> {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Ok(None) };
    for descriptor in descriptors.flatten() {
        let Ok(target) = fs::read_link(descriptor.path()) else { continue };
        if !is_trace(&target, pid) {
            continue;
        }
        match File::options().read(true).write(true).open(descriptor.path()) {
            Ok(file) => return Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("the time trace of process {pid}"));
            }
        }
    }
    Ok(None)
}

fn is_trace(target: &Path, pid: u32) -> bool {
    let name = target.to_string_lossy();
    name.starts_with("/memfd:time-trace.apus") || name.ends_with(&format!(".{pid}.trace"))
}
