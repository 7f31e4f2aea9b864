//! The lab's privileges, and user namespaces as a replacement.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Error, Result, bail};
use nix::unistd::geteuid;

/// Environment variable of the program inside a user namespace.
const INSIDE: &str = "APUS_LAB_UNSHARED";

/// Prepares new namespaces before the program starts again: mounts directories that belong to root outside.
const PREPARE: &str = "mount -t tmpfs tmpfs /run && mkdir /run/netns && exec \"$@\"";

/// Whether the user is root.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Refuses a user who lacks the privilege to create network namespaces.
///
/// # Errors
/// If the user is not root.
pub(crate) fn demand(command: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!(
        "'apus lab {command}' creates permanent network namespaces, which needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): use sudo; \
         'apus lab run' needs no root where the system allows user namespaces"
    )
}

/// A trial of the lab's parts, in namespaces that end with the trial.
const TRIAL: &str = "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add trial && \
    ip link add p type veth peer name q && ip link add sw type bridge && tc qdisc add dev p root htb";

/// The reason for which `apus lab run` cannot create a lab here, as a clause; `None` if it can. Leaves no remains.
#[must_use]
pub fn obstacle() -> Option<String> {
    let namespaces = if is_root() { "-nm" } else { "-Urnm" };
    let trial = Command::new("unshare").args([namespaces, "sh", "-c", TRIAL]).output();
    let said = match trial {
        Ok(trial) if trial.status.success() => return None,
        Ok(trial) => String::from_utf8_lossy(&trial.stderr).into_owned(),
        Err(error) => format!("cannot run `unshare`: {error}"),
    };
    let said = said.lines().last().unwrap_or_default();
    Some(format!("this process cannot create network namespaces with links ({said})"))
}

/// Gives a user other than root namespaces with a root of their own: the program starts again inside them, and they end with it.
/// Returns if they are not needed.
///
/// # Errors
/// If the system does not allow user namespaces.
pub fn acquire() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    if env::var_os(INSIDE).is_some() {
        bail!("root of a user namespace does not suffice: use sudo");
    }
    let probe = Command::new("unshare").args(["-Urnm", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        bail!(
            "'apus lab run' creates network namespaces, which needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) or user namespaces, \
             which this system does not allow ('unshare -Urnm true' fails): use sudo, or measure on loopback with 'apus bench mix'"
        );
    }
    let error = Command::new("unshare")
        .args([
            "-Urnm",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            PREPARE,
            "apus",
        ])
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(Error::new(error).context("cannot run `unshare`"))
}
