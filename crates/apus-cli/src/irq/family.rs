//! The processes of a program that `apus irq run` has started, also those that it leaves in the background when it ends.
//!
//! Servers that become daemons (`memcached -d`, nginx) start a child and end. This process is their *subreaper*: the kernel gives it the
//! children of ended descendants, so that it sees all of them, and their exit codes.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus_irq::{LinkEvents, ProcessId, Program};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::attach::RESCAN;
use super::signals::Came;
use crate::failure;

/// How long a program that has ended without an error may take until a process that it has left opens a socket. memcached and redis open
/// theirs after that.
const SETTLE: Duration = Duration::from_secs(10);

/// The program's processes.
#[derive(Debug)]
pub(super) struct Family {
    own: ProcessId,
    /// A child that is not of the program.
    guardian: i32,
    first: Program,
    /// Exit code of the first process, and when it ended.
    ended: Option<(i32, Instant)>,
    /// A process in the background that holds an internet socket.
    holder: Option<Program>,
    /// The children of this process that held one, with their exit codes once they have ended.
    background: Vec<(i32, Option<i32>)>,
}

/// Has orphans of descendants become children of this process. To be called before the program is started.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(true).context("cannot become the parent of orphans")
}

impl Family {
    /// The family of a child of this process.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn of(child: i32, guardian: i32) -> Result<Self> {
        let own = ProcessId::own().context("/proc")?;
        let first = Program::open(child).context("the program")?;
        Ok(Self { own, guardian, first, ended: None, holder: None, background: Vec::new() })
    }

    /// The processes in the background that were followed.
    pub(super) fn background(&self) -> impl Iterator<Item = i32> + '_ {
        self.background.iter().map(|(pid, _)| *pid)
    }

    /// All its processes that run, the first one first.
    pub(super) fn processes(&self) -> Vec<ProcessId> {
        let mut all = self.own.with_descendants();
        all.retain(|it| *it != self.own && it.pid != self.guardian && it.runs());
        all.sort_by_key(|it| *it != self.first.id());
        all
    }

    /// Waits until a process of it ends or a link changes, but not long.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub(super) fn wait(&self, links: &LinkEvents) -> Result<()> {
        let process = match (&self.ended, &self.holder) {
            (None, _) => Some(&self.first),
            (Some(_), holder) => holder.as_ref(),
        };
        let fds = [Some(links.as_fd()), process.map(|it| it.pidfd().as_fd())];
        let mut fds: Vec<_> =
            fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(RESCAN).expect("it is short");
        match poll(&mut fds, timeout) {
            Ok(_) => _ = links.take(),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("wait for the program"),
        }
        Ok(())
    }

    /// Looks at what has become of it. Returns the exit code when there is nothing to follow any more.
    pub(super) fn look(&mut self) -> Option<i32> {
        self.reap();
        let (code, ended) = self.ended?;
        if self.holder.as_ref().is_some_and(|holder| holder.id().runs()) {
            return None;
        }
        let left = self.processes();
        let holder = left.iter().filter_map(|it| Program::open(it.pid).ok()).find(holds_socket);
        if let Some(holder) = holder {
            self.follow(holder, &left);
            return None;
        }
        if self.holder.is_none() && code == 0 && !left.is_empty() {
            if ended.elapsed() < SETTLE {
                return None;
            }
            self.refuse(&left);
        }
        let later = self.background.iter().rev().find_map(|(_, code)| *code);
        Some(if code == 0 { later.unwrap_or(0) } else { code })
    }

    /// Gives a signal to the first process, or, in the background, to the topmost process with a socket below each child of this process.
    pub(super) fn pass_on(&self, came: Came) {
        if self.ended.is_none() {
            return came.pass_on(&self.first);
        }
        for child in self.children().into_iter().filter_map(|pid| ProcessId::of(pid).ok()) {
            let below = child.with_descendants();
            let programs = below.iter().filter_map(|it| Program::open(it.pid).ok());
            let top = programs.into_iter().find(|it| it.id().runs() && holds_socket(it));
            if let Some(program) = top.or_else(|| Program::open(child.pid).ok()) {
                came.pass_on(&program);
            }
        }
    }

    fn follow(&mut self, holder: Program, left: &[ProcessId]) {
        if self.holder.is_none() {
            failure::note(&format!(
                "{} has gone to the background; {} (pid {}) has its sockets and is followed until it ends",
                self.first.name(),
                holder.name(),
                holder.id().pid
            ));
        }
        self.holder = Some(holder);
        for child in self.children() {
            let is_new = self.background.iter().all(|(pid, _)| *pid != child);
            if is_new && left.iter().any(|it| it.pid == child) {
                self.background.push((child, None));
            }
        }
    }

    fn refuse(&self, left: &[ProcessId]) {
        let pids = left.iter().map(|it| it.pid.to_string()).collect::<Vec<_>>().join(", ");
        failure::note(&format!(
            "{} has ended, and within {} s no process that it left ({pids}) has opened an internet socket: the values are restored. Keep the \
             server in the foreground (memcached without -d, nginx -g 'daemon off;', redis-server --daemonize no), or use `apus irq attach \
             PID` when it listens",
            self.first.name(),
            SETTLE.as_secs()
        ));
    }

    /// Takes the exit codes of children that have ended.
    fn reap(&mut self) {
        for child in self.children() {
            let code = match waitpid(Pid::from_raw(child), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => code,
                Ok(WaitStatus::Signaled(_, signal, _)) => 128 + signal as i32,
                _ => continue,
            };
            if child == self.first.id().pid {
                self.ended = Some((code, Instant::now()));
            }
            if let Some(known) = self.background.iter_mut().find(|(pid, _)| *pid == child) {
                known.1 = Some(code);
            }
        }
    }

    /// The children of this process but for the guardian, also those that have ended and were not reaped.
    fn children(&self) -> Vec<i32> {
        let mut children = self.own.children();
        children.retain(|pid| *pid != self.guardian);
        children
    }
}

/// Whether a process has an internet socket; also if it may not be looked into, since stopping without a reason would be worse.
fn holds_socket(program: &Program) -> bool {
    match program.has_internet_socket() {
        Ok(has) => has,
        Err(_) => program.id().runs(),
    }
}
