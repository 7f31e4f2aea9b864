//! Network namespaces for tests, which end with them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;

use super::socket;
use crate::skipped::skipped;

/// Runs `ip` in this thread's namespace.
pub(super) fn ip(arguments: &str) -> io::Result<()> {
    let done = Command::new("ip").args(arguments.split(' ')).status()?;
    if done.success() { Ok(()) } else { Err(io::Error::other(format!("ip {arguments}: {done}"))) }
}

/// Moves this thread into a new network namespace whose loopback is up.
pub(super) fn unshare() -> io::Result<()> {
    // SAFETY: takes an integer and touches no memory of this process; only this thread moves.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    drop(socket::open()?);
    ip("link set lo up")
}

/// Moves this thread as [`unshare`] does. Returns `false`, with a message, if that is not allowed.
pub(super) fn in_a_namespace() -> bool {
    let moved = unshare();
    moved.inspect_err(|error| skipped(format_args!("no namespace with XSKs: {error}"))).is_ok()
}

/// Returns the number of this thread, and its namespace.
pub(super) fn here() -> io::Result<(i32, File)> {
    // SAFETY: takes nothing.
    let thread = unsafe { libc::gettid() };
    Ok((thread, File::open(format!("/proc/self/task/{thread}/ns/net"))?))
}

/// Moves this thread into a namespace.
pub(super) fn enter(namespace: &File) {
    // SAFETY: takes integers; only this thread moves.
    let done = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}
