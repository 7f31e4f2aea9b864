//! The server of a run: any program, with the parameters of a case on its epoll sets.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use anyhow::{Context, Result, bail};
use apus_irq::{EpollParameters, Mode, ProcessId, Program};
use nix::sched::sched_setaffinity;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::device_under_test::{DeviceUnderTest, cpu_set};
use apus_load::stop;

/// Time within which a server must listen; under valgrind it takes some seconds.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(2);

/// Time after which a server that does not exit on request is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Finds the value of `LD_PRELOAD` for a server by its name or path.
pub type Preload = fn(&str) -> Result<OsString>;

/// A running server. Dropping it kills it and its child processes.
#[derive(Debug)]
pub(super) struct ServerUnderTest {
    child: Child,
    id: ProcessId,
    /// Its output.
    output: File,
}

/// The start of a server.
pub(super) struct Start<'a> {
    /// The program and its arguments.
    pub(super) command: &'a [String],
    /// CPUs that it may use.
    pub(super) cpus: &'a [usize],
    /// Value of `LD_PRELOAD`, and the case that needs the library.
    pub(super) preload: Option<(&'a OsStr, Mode)>,
    /// The port on which it listens.
    pub(super) port: u16,
}

impl ServerUnderTest {
    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot start, exits by itself or does not listen: with the last line of its output.
    pub(super) fn start(under_test: &DeviceUnderTest, start: &Start<'_>) -> Result<Self> {
        let (name, arguments) = start.command.split_first().context("no program")?;
        let output = scratch().context("cannot make a temporary file")?;
        let cpus = cpu_set(start.cpus)?;
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null()).process_group(0);
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        if let Some((library, mode)) = start.preload {
            let EpollParameters { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } =
                mode.epoll();
            let prefer = u8::from(prefer_busy_poll);
            command.env("LD_PRELOAD", library).env("APUS_SOCKETS", "off");
            command.env("APUS_EPOLL", format!("{busy_poll_usecs},{busy_poll_budget},{prefer}"));
            command.env("APUS_EPOLL_REPEAT", "1");
        }
        // The child inherits the CPUs and the network namespace of the thread that starts it.
        let child = under_test.at_server(|| {
            let spawn = || {
                sched_setaffinity(Pid::from_raw(0), &cpus).context("the server's CPUs")?;
                command.spawn().with_context(|| format!("cannot start the server `{name}`"))
            };
            thread::scope(|scope| scope.spawn(spawn).join().expect("it does not panic"))
        })?;
        let pid = i32::try_from(child.id()).expect("the kernel's numbers are smaller");
        let id = ProcessId::of(pid).context("the server")?;
        let mut server = Self { child, id, output };
        let address = (under_test.address.as_str(), start.port);
        under_test.at_server(|| server.wait_until_it_listens(address))?;
        Ok(server)
    }

    fn wait_until_it_listens(&mut self, address: (&str, u16)) -> Result<()> {
        let since = Instant::now();
        while TcpStream::connect(address).is_err() {
            stop::check()?;
            if let Some(status) = self.child.try_wait().context("the server")? {
                bail!("the server ended by itself ({status}): {}", self.last_words());
            }
            if since.elapsed() > LISTENS_WITHIN {
                let (host, port) = address;
                bail!(
                    "the server does not listen on {host}:{port} after {LISTENS_WITHIN:?}: `server` of the plan needs {{address}} \
                     and {{port}}. Its last output: {}",
                    self.last_words()
                );
            }
            thread::sleep(RETRY);
        }
        Ok(())
    }

    /// The last line of its output, without valgrind's lines, which begin with `==`.
    fn last_words(&self) -> String {
        let words = self.words().unwrap_or_default();
        let is_its_own = |line: &&str| !line.trim().is_empty() && !line.starts_with("==");
        words.lines().rev().find(is_its_own).unwrap_or("none").to_owned()
    }

    /// All its output.
    fn words(&self) -> Result<String> {
        let mut text = Vec::new();
        let mut output = &self.output;
        output.seek(SeekFrom::Start(0))?;
        output.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// PID of its first process.
    pub(super) fn pid(&self) -> i32 {
        self.id.pid
    }

    /// The server and its descendants.
    pub(super) fn processes(&self) -> Vec<ProcessId> {
        self.id.with_descendants()
    }

    /// Sets a mode's parameters on all its epoll sets. Returns their number.
    ///
    /// # Errors
    /// If the sets cannot be accessed.
    pub(super) fn set(&self, mode: Mode) -> Result<usize> {
        let mut sets = 0;
        for process in self.processes() {
            let what = || format!("the epoll sets of process {}", process.pid);
            let program = Program::open(process.pid).with_context(what)?;
            for fd in program.epoll_fds().with_context(what)? {
                program.set_epoll_parameters(fd, &mode.epoll()).with_context(what)?;
                sets += 1;
            }
        }
        Ok(sets)
    }

    /// Whether a preloaded library has set a mode's parameters on an epoll set.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set).
    pub(super) fn has(&self, mode: Mode) -> Result<bool> {
        for process in self.processes() {
            let program = Program::open(process.pid).context("the server")?;
            for set in program.epoll_sets().context("the epoll sets of the server")? {
                if set.parameters == mode.epoll() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Asks it to exit. Returns all its output.
    ///
    /// # Errors
    /// If it does not exit.
    pub(super) fn finish(mut self) -> Result<String> {
        kill(Pid::from_raw(self.id.pid), Signal::SIGTERM).context("the server")?;
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("the server")? {
                if status.signal() == Some(Signal::SIGKILL as i32) {
                    bail!("the server was killed");
                }
                return self.words();
            }
            if since.elapsed() > ENDS_WITHIN {
                bail!("the server did not end within {ENDS_WITHIN:?}");
            }
            thread::sleep(RETRY);
        }
    }
}

impl Drop for ServerUnderTest {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        let _ = killpg(Pid::from_raw(self.id.pid), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// An unlinked temporary file.
fn scratch() -> std::io::Result<File> {
    let path = env::temp_dir().join(format!("apus-bench-irq-{}", process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}
