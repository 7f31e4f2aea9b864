//! A session sets the epoll sets of a process as long as it is there; its guardian has to be ready before anything is set.

use std::path::PathBuf;
use std::process::Command;

use apus_irq::{EpollParameters, Error, Mode, Notice, ProcessId, Program, Session, StateDirectory};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use rustix::fd::AsRawFd;

#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;
use skipped::skipped;

/// A directory that is removed at the end.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new(test: &str) -> Self {
        Self(std::env::temp_dir().join(format!("apus-irq-{test}-{}", std::process::id())))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Stands for the guardian, which restores nothing here: it is ready, and ends with its input.
fn guardian() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; cat >/dev/null"]);
    command
}

fn unexpected(notice: &Notice) {
    panic!("{notice:?}");
}

fn mode() -> Mode {
    "suspend:20".parse().expect("it is a mode")
}

fn start(scratch: &ScratchDirectory) -> Session {
    let state = StateDirectory::at(&scratch.0);
    Session::start(state, mode(), &mut guardian(), unexpected).expect("the guardian is ready")
}

/// An epoll set of this process and a function that reads its parameters; `None` where the kernel has no parameters.
fn epoll_set() -> Option<(Epoll, impl Fn() -> EpollParameters)> {
    let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("the kernel has epoll");
    let own = Program::open(std::process::id() as i32).expect("it runs");
    let fd = set.0.as_raw_fd();
    if let Err(error) = own.epoll_parameters(fd) {
        skipped(format!("this kernel has no parameters of epoll sets: {error}"));
        return None;
    }
    Some((set, move || own.epoll_parameters(fd).expect("it was read before")))
}

#[test]
fn a_session_sets_what_is_new_and_restores_it_when_it_ends_or_is_dropped() {
    let scratch = ScratchDirectory::new("session");
    let Some((_set, parameters)) = epoll_set() else { return };
    let own = [ProcessId::own().expect("/proc is there")];
    let before = parameters();
    let mut session = start(&scratch);
    assert!(session.refresh(&own).expect("it may reach itself") > 0);
    assert_eq!(parameters(), mode().epoll());
    assert_eq!(session.refresh(&own).expect("it may reach itself"), 0, "all is set already");
    let Some((_later, later)) = epoll_set() else { return };
    assert_eq!(session.refresh(&own).expect("it may reach itself"), 1);
    assert_eq!((later(), session.done().epoll_sets > 1), (mode().epoll(), true));
    session.restore().expect("nothing else has changed it");
    assert_eq!((parameters(), later()), (before, before));
    let mut session = start(&scratch);
    session.refresh(&own).expect("it may reach itself");
    assert_eq!(parameters(), mode().epoll());
    drop(session);
    assert_eq!(parameters(), before);
}

#[test]
fn a_guardian_that_is_not_ready_ends_the_session_before_it_begins() {
    let scratch = ScratchDirectory::new("not-ready");
    for script in ["exit 0", "echo later; cat >/dev/null"] {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let session =
            Session::start(StateDirectory::at(&scratch.0), mode(), &mut command, unexpected);
        let error = session.expect_err("it did not say that it is ready");
        assert!(matches!(error, Error::NotStarted(_)), "{error}");
        assert_eq!(error.to_string(), "the guardian did not start");
    }
    let missing = &mut Command::new("/nowhere/at/all");
    let error =
        Session::start(StateDirectory::at(&scratch.0), mode(), missing, unexpected).unwrap_err();
    assert!(error.to_string().starts_with("cannot start the guardian: "), "{error}");
    assert!(!scratch.0.exists(), "nothing was set");
}
