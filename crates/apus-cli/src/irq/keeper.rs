//! The process that `apus irq set` leaves behind: it sets a device again when its values are lost, until `apus irq restore`.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus_irq::{Device, Error, LinkEvents, ProcessId, Program, State};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Signal, pidfd_send_signal, setsid};

use super::privileges;
use super::state::StateArgs;

/// The hidden subcommand of the keeper.
pub(super) const KEEPER_COMMAND: &str = "keeper";

/// What the keeper has to know.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeeperArgs {
    /// Device that it keeps
    device: String,
    #[command(flatten)]
    state: StateArgs,
}

const READY: &str = "ready";

/// How often the values are looked at without news about links, as a driver may lose them by itself.
const LOOK: Duration = Duration::from_secs(2);

/// A device that has gone for so long does not come again.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Starts a keeper for a held device, unless it has one.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(state: &State, device: &Device) -> Result<()> {
    let held = state.held(device)?;
    if held.and_then(|held| held.keeper).is_some_and(|keeper| keeper.runs()) {
        return Ok(());
    }
    let program = env::current_exe().context("the path of this program")?;
    let directory = state.directory().canonicalize().context("the state directory")?;
    let mut keeper = Command::new(program)
        .args(["irq", KEEPER_COMMAND, &device.name, "--state"])
        .arg(directory)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the process that keeps the values")?;
    let mut line = String::new();
    let stdout = keeper.stdout.take().expect("it is a pipe");
    BufReader::new(stdout).read_line(&mut line).context("the process that keeps the values")?;
    ensure!(line.trim_end() == READY, "the process that keeps the values did not start");
    Ok(())
}

/// Keeps the values until the device is restored, or somebody else keeps it.
///
/// # Errors
/// When there is nothing to keep, or the state directory cannot be read.
pub(crate) fn keep(args: &KeeperArgs) -> Result<()> {
    // It outlives the terminal and the command that has started it.
    let _ = setsid();
    let state = args.state.open()?;
    let device = Device::named(&args.device)?;
    let own = ProcessId::own().context("/proc")?;
    let links = LinkEvents::open().context("news about links")?;
    privileges::keep_what_restoring_takes();
    ensure!(state.keep(&device, Some(own))?, "`{}` is not set", device.name);
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).context("standard output")?;
    let mut was_there = Instant::now();
    while state.held(&device)?.is_some_and(|held| held.keeper == Some(own)) {
        match state.set_device_again(&device) {
            Ok(None) => break,
            Err(Error::NoDevice(_)) if was_there.elapsed() < GONE_AFTER => {}
            Err(Error::NoDevice(_)) => break,
            // The link may be on its way down; the next look tells.
            Ok(Some(_)) | Err(_) => was_there = Instant::now(),
        }
        let mut fds = [PollFd::new(links.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LOOK).expect("it is short");
        // A signal that does not end the process ends the wait, which does no harm.
        let _ = poll(&mut fds, timeout);
        links.take();
    }
    Ok(())
}

/// Ends a keeper, and waits until it has ended. One that has ended already is left alone.
pub(super) fn end(keeper: ProcessId) {
    let Ok(program) = Program::open(keeper.pid) else { return };
    if program.id() != keeper || pidfd_send_signal(program.pidfd(), Signal::TERM).is_err() {
        return;
    }
    let mut fds = [PollFd::new(program.pidfd().as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(LOOK).expect("it is short");
    let _ = poll(&mut fds, timeout);
}
