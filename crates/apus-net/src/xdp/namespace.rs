//! Network namespaces for tests, which end with them.

use std::io;
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
