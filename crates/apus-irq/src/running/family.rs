//! The processes of a program that was started, also those that it leaves in the background when it ends.
//!
//! Servers that become daemons (`memcached -d`, nginx) start a child and end. This process is their *subreaper*: the kernel gives it the
//! children of ended descendants, so that it sees all of them, and their exit codes.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::RESCAN;
use super::notice::Notice;
use crate::error::Error;
use crate::links::LinkEvents;
use crate::program::{ProcessId, Program};

/// How long a program that has ended without an error may take until a process that it has left opens a socket. memcached and redis open
/// theirs after that.
const SETTLE: Duration = Duration::from_secs(10);

/// The program's processes.
#[derive(Debug)]
pub struct Family {
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
    tell: fn(&Notice),
}

/// Has orphans of descendants become children of this process. To be called before the program is started.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt_orphans() -> Result<(), Error> {
    set_child_subreaper(true)
        .map_err(|error| Error::io("cannot become the parent of orphans", error.into()))
}

impl Family {
    /// The family of a child of this process. `guardian`: another child, which is not of it. `tell`: takes notices.
    ///
    /// # Errors
    /// When it is not there.
    pub fn of(child: i32, guardian: i32, tell: fn(&Notice)) -> Result<Self, Error> {
        let own = ProcessId::own().map_err(|error| Error::io("/proc", error))?;
        let first = Program::open(child).map_err(|error| Error::io("the program", error))?;
        let (ended, holder, background) = (None, None, Vec::new());
        Ok(Self { own, guardian, first, ended, holder, background, tell })
    }

    /// The processes in the background that were followed.
    pub fn background(&self) -> impl Iterator<Item = i32> + '_ {
        self.background.iter().map(|(pid, _)| *pid)
    }

    /// All its processes that run, the first one first.
    pub fn processes(&self) -> Vec<ProcessId> {
        let mut all = self.own.with_descendants();
        all.retain(|it| *it != self.own && it.pid != self.guardian && it.runs());
        all.sort_by_key(|it| *it != self.first.id());
        all
    }

    /// Waits until a process of it ends or a link changes, but not long.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait(&self, links: &LinkEvents) -> Result<(), Error> {
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
            Err(error) => return Err(Error::io("wait for the program", error.into())),
        }
        Ok(())
    }

    /// Looks at what has become of it. Returns the exit code when there is nothing to follow any more.
    pub fn look(&mut self) -> Option<i32> {
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

    /// Calls `send` with the process that a signal for the program is for: the first one, or, in the background, the topmost process with
    /// a socket below each child of this process.
    pub fn pass_on(&self, send: impl Fn(&Program)) {
        if self.ended.is_none() {
            return send(&self.first);
        }
        for child in self.children().into_iter().filter_map(|pid| ProcessId::of(pid).ok()) {
            let below = child.with_descendants();
            let programs = below.iter().filter_map(|it| Program::open(it.pid).ok());
            let top = programs.into_iter().find(|it| it.id().runs() && holds_socket(it));
            if let Some(program) = top.or_else(|| Program::open(child.pid).ok()) {
                send(&program);
            }
        }
    }

    fn follow(&mut self, holder: Program, left: &[ProcessId]) {
        if self.holder.is_none() {
            (self.tell)(&Notice::Followed {
                program: self.first.name().to_owned(),
                holder: holder.name().to_owned(),
                pid: holder.id().pid,
            });
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
        (self.tell)(&Notice::NotFollowed {
            program: self.first.name().to_owned(),
            left: left.iter().map(|it| it.pid).collect(),
            seconds: SETTLE.as_secs(),
        });
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
