//! What the lab needs of its user, and what it does for one who has no privilege.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Error, Result, bail};
use nix::unistd::geteuid;

/// Set in the program that runs inside a user namespace.
const INSIDE: &str = "APUS_LAB_UNSHARED";

/// What to do in the new namespaces before the program starts again: places that belong to root outside.
const PREPARE: &str = "mount -t tmpfs tmpfs /run && mkdir /run/netns && exec \"$@\"";

/// Whether the user may do everything.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Refuses who may not make network namespaces.
///
/// # Errors
/// When the user is not root.
pub(crate) fn demand(command: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    bail!(
        "'apus lab {command}' makes network namespaces that stay, which needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN): \
         use sudo; 'apus lab run' works without where the system allows user namespaces"
    )
}

/// What a lab is made of, tried in namespaces that end with the trial.
const TRIAL: &str = "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add trial && \
    ip link add p type veth peer name q && ip link add sw type bridge && tc qdisc add dev p root htb";

/// Why `apus lab run` cannot make a lab here, as a clause; `None` when it can. Leaves nothing behind.
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
    Some(format!("network namespaces with links cannot be made here ({said})"))
}

/// Who is not root gets namespaces in which it is: the program starts again inside them, and they end with it.
/// Returns when nothing of the kind is needed.
///
/// # Errors
/// When the system allows no user namespaces.
pub fn acquire() -> Result<()> {
    if is_root() {
        return Ok(());
    }
    if env::var_os(INSIDE).is_some() {
        bail!("root of a user namespace is not enough here: use sudo");
    }
    let probe = Command::new("unshare").args(["-Urnm", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        bail!(
            "'apus lab run' makes network namespaces, which needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) or a system \
             that allows user namespaces ('unshare -Urnm true' fails here): use sudo, or measure on loopback with \
             'apus bench mix'"
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
