//! The epoll sets of running programs, as a table and as JSON.

use std::collections::BTreeMap;
use std::io;

use anyhow::{Context, Result};
use apus_irq::{EpollSet, Program, processes};
use apus_load::report::{Style, Table};
use serde::Serialize;

/// The epoll sets of a process.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pid: i32,
    program: String,
    epoll_sets: Vec<EpollSet>,
}

/// Processes with epoll sets, and the number of unreadable processes.
#[derive(Debug, Default, Serialize)]
pub(super) struct Programs {
    programs: Vec<Found>,
    /// Number of processes that may not be read.
    unreadable: usize,
}

impl Programs {
    /// Reads the process of this number, or all processes.
    ///
    /// # Errors
    /// When `/proc` or the requested process cannot be read.
    pub(super) fn read(pid: Option<i32>) -> Result<Self> {
        if let Some(pid) = pid {
            let cannot = || format!("cannot read the epoll sets of process {pid}");
            let found = read(pid).map_err(explained).with_context(cannot)?;
            return Ok(Self { programs: vec![found], unreadable: 0 });
        }
        let mut all = Self::default();
        for pid in processes().context("/proc")? {
            match read(pid) {
                Ok(found) if found.epoll_sets.is_empty() => {}
                Ok(found) => all.programs.push(found),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    all.unreadable += 1;
                }
                Err(_) => {} // The process has ended meanwhile.
            }
        }
        Ok(all)
    }

    pub(super) fn text(&self, style: Style) -> String {
        let heads = [
            ("pid", true),
            ("program", false),
            ("fd", true),
            ("poll us", true),
            ("budget", true),
            ("prefer", false),
            ("members", true),
            ("NAPI: sockets", false),
        ];
        let line = |(found, set): (&Found, &EpollSet)| {
            vec![
                found.pid.to_string(),
                found.program.clone(),
                set.fd.to_string(),
                set.parameters.busy_poll_usecs.to_string(),
                set.parameters.busy_poll_budget.to_string(),
                if set.parameters.prefer_busy_poll { "yes" } else { "no" }.to_owned(),
                set.members.to_string(),
                napis(&set.napis),
            ]
        };
        let sets =
            || self.programs.iter().flat_map(|it| it.epoll_sets.iter().map(move |s| (it, s)));
        let mut text = match sets().next() {
            None => "No epoll set.\n".to_owned(),
            Some(_) => Table::of_texts("Epoll sets", "", &heads, sets().map(line)).text(style),
        };
        for (found, set) in sets().filter(|(_, set)| set.napis.len() > 1) {
            text += &format!(
                "warning: epoll set {} of process {} mixes {} NAPI instances; the kernel polls one of them at a time\n",
                set.fd,
                found.pid,
                set.napis.len()
            );
        }
        if self.unreadable > 0 {
            text += &format!(
                "{} processes of other users are omitted: reading them needs CAP_SYS_PTRACE\n",
                self.unreadable
            );
        }
        text
    }
}

fn read(pid: i32) -> io::Result<Found> {
    let program = Program::open(pid)?;
    let epoll_sets = program.epoll_sets()?;
    Ok(Found { pid, program: program.name().to_owned(), epoll_sets })
}

/// Explains an error about another process.
fn explained(error: io::Error) -> anyhow::Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "no such process",
        io::ErrorKind::PermissionDenied => {
            "tracing it needs its user or CAP_SYS_PTRACE (see /proc/sys/kernel/yama/ptrace_scope)"
        }
        _ => return error.into(),
    };
    match error.raw_os_error() {
        Some(code) if code == nix::errno::Errno::ENOTTY as i32 => {
            anyhow::anyhow!("this kernel has no parameters of epoll sets, which need Linux 6.9")
        }
        _ => anyhow::anyhow!(why),
    }
}

fn napis(napis: &BTreeMap<u32, usize>) -> String {
    let text: Vec<_> = napis.iter().map(|(id, sockets)| format!("{id}: {sockets}")).collect();
    text.join(", ")
}
