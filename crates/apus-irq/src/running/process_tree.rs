//! The processes of a started program, including those that it leaves in the background when it ends.
//!
//! Servers that become daemons (`memcached -d`, nginx) start a child and end. This process is their *subreaper*: the kernel gives
//! it the children of ended descendants, so it sees all of them and their exit codes.

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

/// Time limit for a background process to open a socket after its program has ended without an error. memcached and redis open
/// theirs after that.
const SETTLE: Duration = Duration::from_secs(10);

/// The program's processes.
#[derive(Debug)]
pub struct ProcessTree {
    own: ProcessId,
    /// A child of this process that does not belong to the program.
    guardian: i32,
    first: Program,
    /// Exit code of the first process, and the time of its end.
    ended: Option<(i32, Instant)>,
    /// A process in the background that holds an internet socket.
    holder: Option<Program>,
    /// The children of this process since a holder was found, with their exit codes once they have ended.
    background: Vec<(i32, Option<i32>)>,
    notify: fn(&Notice),
}

/// Makes orphans of descendants children of this process. Must be called before the program is started.
///
/// # Errors
/// When the kernel refuses.
pub fn adopt_orphans() -> Result<(), Error> {
    set_child_subreaper(true)
        .map_err(|error| Error::io("cannot become a child subreaper", error.into()))
}

impl ProcessTree {
    /// The tree below a child of this process. `guardian` is another child, outside the tree; `notify` takes notices.
    ///
    /// # Errors
    /// When the child is gone.
    pub fn of(child: i32, guardian: i32, notify: fn(&Notice)) -> Result<Self, Error> {
        let own = ProcessId::own().map_err(|error| Error::io("/proc", error))?;
        let first = Program::open(child).map_err(|error| Error::io("the program", error))?;
        let (ended, holder, background) = (None, None, Vec::new());
        Ok(Self { own, guardian, first, ended, holder, background, notify })
    }

    /// The followed processes in the background.
    pub fn background(&self) -> impl Iterator<Item = i32> + '_ {
        self.background.iter().map(|(pid, _)| *pid)
    }

    /// All running processes of the tree, the first one first.
    pub fn processes(&self) -> Vec<ProcessId> {
        let mut all = self.own.with_descendants();
        all.retain(|it| *it != self.own && it.pid != self.guardian && it.runs());
        all.sort_by_key(|it| *it != self.first.id());
        all
    }

    /// Waits until a process of the tree ends or a link changes, for a bounded time.
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

    /// Updates the state of the tree. Returns the exit code when there is nothing to follow any more.
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

    /// Calls `send` with the processes that receive a signal for the program: the first one, or, in the background, the topmost
    /// process with a socket below each child of this process.
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
            (self.notify)(&Notice::Followed {
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
        (self.notify)(&Notice::NotFollowed {
            program: self.first.name().to_owned(),
            left: left.iter().map(|it| it.pid).collect(),
            seconds: SETTLE.as_secs(),
        });
    }

    /// Takes the exit codes of ended children.
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

    /// The children of this process except the guardian, including ended ones that were not reaped.
    fn children(&self) -> Vec<i32> {
        let mut children = self.own.children();
        children.retain(|pid| *pid != self.guardian);
        children
    }
}

/// Whether a process has an internet socket. An unreadable process counts as one that has: stopping without a reason would be
/// worse.
fn holds_socket(program: &Program) -> bool {
    match program.has_internet_socket() {
        Ok(has) => has,
        Err(_) => program.id().runs(),
    }
}
