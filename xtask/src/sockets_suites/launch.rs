//! The start of a test: plain or under `apus run`, in a network namespace and a session of its own, with a time limit.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};

use crate::program::is_installed;
use crate::scratch::ScratchDirectory;

/// The way in which programs are started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Words before the program.
    prefix: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    /// Whether a root process makes a network namespace for each program.
    is_isolated: bool,
}

/// A program with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    arguments: Vec<OsString>,
    directory: PathBuf,
    variables: Vec<(String, OsString)>,
    /// Words before those of the launch.
    before: Vec<OsString>,
}

/// The end of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// The exit status, or the negative number of the signal; `None` after the time limit.
    pub(crate) status: Option<i32>,
    /// Both outputs of the program.
    pub(crate) output: String,
}

impl Launch {
    /// Starts programs as they are.
    pub(crate) fn plain() -> Self {
        Self { prefix: Vec::new(), variables: Vec::new(), is_isolated: true }
    }

    /// Starts programs under `apus run` with these variables.
    pub(crate) fn carried(apus: &Path, variables: &BTreeMap<&str, &str>) -> Self {
        let prefix = vec![apus.into(), "run".into(), "--".into()];
        let own = |(name, value): (&&str, &&str)| ((*name).to_owned(), OsString::from(value));
        Self { prefix, variables: variables.iter().map(own).collect(), is_isolated: true }
    }

    /// The same in the network namespace of this process.
    pub(crate) fn on_host_network(self) -> Self {
        Self { is_isolated: false, ..self }
    }

    /// Runs a call. Root runs it in a network namespace with a loopback interface only. Kills the processes that the program leaves
    /// behind.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn run(&self, call: &Call, limit: Duration) -> Result<Outcome> {
        let words = [&call.before[..], &self.prefix, &call.arguments].concat();
        // `setsid` makes the program the leader of a process group.
        let mut command = Command::new("setsid");
        let makes_namespaces = self.is_isolated && geteuid().is_root();
        if makes_namespaces && is_installed("unshare") && is_installed("ip") {
            let script = "ip link set lo up && exec \"$@\"";
            command.args(["unshare", "--net", "sh", "-c", script, "sh"]);
        }
        command.args(words).current_dir(&call.directory).env_remove("LD_PRELOAD");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.envs(call.variables.iter().map(|(name, value)| (name, value)));
        finished(command, limit)
    }
}

impl Call {
    pub(crate) fn new(program: impl AsRef<OsStr>, directory: impl Into<PathBuf>) -> Self {
        let arguments = vec![program.as_ref().to_owned()];
        Self { arguments, directory: directory.into(), variables: Vec::new(), before: Vec::new() }
    }

    pub(crate) fn args(mut self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Puts words before those of the launch.
    pub(crate) fn before(mut self, words: &[&str]) -> Self {
        self.before = words.iter().map(OsString::from).collect();
        self
    }
}

/// Runs a command, at most for this time.
fn finished(mut command: Command, limit: Duration) -> Result<Outcome> {
    let scratch = ScratchDirectory::new("suites-output")?;
    // A file, because a process that is left behind would keep a pipe open.
    let path = scratch.join("output");
    let mut output = File::options().read(true).append(true).create_new(true).open(&path)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.spawn().context("setsid")?;
    let group = Pid::from_raw(i32::try_from(child.id()).context("a PID")?);
    let (ended, end) = mpsc::channel::<()>();
    let (status, is_over) = thread::scope(|scope| {
        let guard = scope.spawn(move || {
            let is_over = end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_over {
                let _ = killpg(group, Signal::SIGKILL); // The program may have ended now.
            }
            is_over
        });
        let status = child.wait();
        drop(ended);
        (status, guard.join().expect("the guard does not panic"))
    });
    let _ = killpg(group, Signal::SIGKILL); // Fails if no process is left.
    let status = Some(status.context("wait for a test")?).filter(|_| !is_over).map(code);
    let mut bytes = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut bytes)?;
    Ok(Outcome { status, output: String::from_utf8_lossy(&bytes).into_owned() })
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> Outcome {
        let call = Call::new("sh", "/").args(["-c", script]).env("WORD", "a word");
        Launch::plain().run(&call, limit).unwrap()
    }

    #[test]
    fn a_test_ends_by_itself_by_a_signal_or_after_its_time() {
        let long = Duration::from_secs(60);
        let outcome = run("echo $WORD; echo error >&2; exit 3", long);
        assert_eq!((outcome.status, outcome.output.as_str()), (Some(3), "a word\nerror\n"));
        assert_eq!(run("kill -SEGV $$", long).status, Some(-11));
        let outcome = run("echo begun; exec sleep 60", Duration::from_millis(300));
        assert_eq!(outcome.status, None);
        // A process that is left behind does not keep the test from ending.
        assert_eq!(run("sleep 60 & exit 0", long).status, Some(0));
    }

    #[test]
    fn a_carried_program_stands_behind_apus_run() {
        let carried = Launch::carried(Path::new("/bin/echo"), &BTreeMap::from([("WAY", "early")]));
        let call = Call::new("program", "/").args(["1"]).before(&["env", "A=b"]);
        let outcome = carried.run(&call, Duration::from_secs(60)).unwrap();
        assert_eq!(outcome.output, "run -- program 1\n");
    }
}
