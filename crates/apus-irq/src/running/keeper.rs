//! The process that keeps a device set: it sets lost values again until the device is restored.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Signal, pidfd_send_signal, setsid};

use super::{privileges, ready};
use crate::device::Device;
use crate::error::Error;
use crate::links::LinkEvents;
use crate::program::{ProcessId, Program};
use crate::state::StateDirectory;

/// Interval between two checks without an event of a link, as a driver may lose values by itself.
const LOOK: Duration = Duration::from_secs(2);

/// Time after which a missing device counts as gone for good.
const GONE_AFTER: Duration = Duration::from_secs(60);

/// Starts a keeper for a held device, unless it has one. `command` starts a process that calls [`keep`].
///
/// # Errors
/// When it cannot be started.
pub fn start(state: &StateDirectory, device: &Device, command: &mut Command) -> Result<(), Error> {
    let held = state.held(device)?;
    if held.and_then(|held| held.keeper).is_some_and(|keeper| keeper.runs()) {
        return Ok(());
    }
    let command = command.current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
    ready::start("keeper process", command).map(drop)
}

/// Keeps the values until the device is restored, or another process keeps it.
///
/// # Errors
/// When there is nothing to keep, or the state directory cannot be read.
pub fn keep(state: &StateDirectory, device: &str) -> Result<(), Error> {
    // The keeper outlives the terminal and the command that started it.
    let _ = setsid();
    let device = Device::named(device)?;
    let own = ProcessId::own().map_err(|error| Error::io("/proc", error))?;
    let links = LinkEvents::open().map_err(|error| Error::io("news about links", error))?;
    privileges::keep_what_restoring_takes();
    if !state.keep(&device, Some(own))? {
        return Err(Error::NotSet(device.name));
    }
    ready::report()?;
    let mut was_there = Instant::now();
    while state.held(&device)?.is_some_and(|held| held.keeper == Some(own)) {
        match state.set_device_again(&device) {
            Ok(None) => break,
            Err(Error::NoDevice(_)) if was_there.elapsed() < GONE_AFTER => {}
            Err(Error::NoDevice(_)) => break,
            // The link may be on its way down; the next check shows that.
            Ok(Some(_)) | Err(_) => was_there = Instant::now(),
        }
        let mut fds = [PollFd::new(links.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LOOK).expect("it is short");
        // A signal that does not end the process ends the wait, which is harmless.
        let _ = poll(&mut fds, timeout);
        links.take();
    }
    Ok(())
}

/// Ends a keeper, and waits for its end. Does nothing if it has ended.
pub fn end(keeper: ProcessId) {
    let Ok(program) = Program::open(keeper.pid) else { return };
    if program.id() != keeper || pidfd_send_signal(program.pidfd(), Signal::TERM).is_err() {
        return;
    }
    let mut fds = [PollFd::new(program.pidfd().as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(LOOK).expect("it is short");
    let _ = poll(&mut fds, timeout);
}
