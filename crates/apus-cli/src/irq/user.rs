//! `--user`: runs the program as another user, with all groups of that user.
//!
//! A process of its own takes the groups and becomes the program: the standard library starts programs of other users without
//! groups, and this process keeps its rights.

use std::env;
use std::ffi::{CString, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use nix::unistd::{Uid, User, geteuid, initgroups, setgid, setuid};

use crate::failure::NotStarted;

/// The hidden subcommand that becomes the program of a user.
pub(super) const BECOME_COMMAND: &str = "become";

/// Who and what to become.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BecomeArgs {
    /// Number of the user
    user: u32,
    /// File of the program
    path: PathBuf,
    /// Libraries to preload
    #[arg(long)]
    preload: Option<OsString>,
    /// Name of the program and its arguments
    #[arg(required = true, last = true)]
    program: Vec<OsString>,
}

/// The user of this name or number; `None` if this process runs as that user already.
///
/// # Errors
/// When there is no such user, or this process may not become one.
pub(super) fn named(name: &str) -> Result<Option<User>> {
    let by_name = User::from_name(name).context("the table of users")?;
    let by_number =
        || name.parse().ok().map(Uid::from_raw).and_then(|uid| User::from_uid(uid).ok()?);
    let Some(user) = by_name.or_else(by_number) else {
        return Err(Misuse(format!("'--user {name}': no such user")).into());
    };
    if user.uid == geteuid() {
        return Ok(None);
    }
    if !geteuid().is_root() {
        return Err(Misuse(format!(
            "'--user {name}': only root can run a program as another user"
        ))
        .into());
    }
    Ok(Some(user))
}

/// The command that starts a program as a user.
///
/// # Errors
/// When the path of this executable is not known.
pub(super) fn command(
    user: &User,
    path: &Path,
    preload: Option<OsString>,
    program: &[OsString],
) -> Result<Command> {
    let own = env::current_exe().context("the path of this program")?;
    let mut command = Command::new(own);
    command.args(["irq", BECOME_COMMAND, &user.uid.to_string()]).arg(path);
    if let Some(preload) = preload {
        command.arg("--preload").arg(preload);
    }
    command.arg("--").args(program);
    Ok(command)
}

/// Becomes the program, with the user's groups, home directory and names.
///
/// # Errors
/// When the kernel refuses, or the program cannot be executed.
pub(crate) fn become_program(args: &BecomeArgs) -> Result<()> {
    let user = User::from_uid(Uid::from_raw(args.user)).context("the table of users")?;
    let user = user.with_context(|| format!("no user {}", args.user))?;
    let name = CString::new(user.name.as_str()).context("the name of the user")?;
    let groups = || format!("cannot set the groups of {}", user.name);
    initgroups(&name, user.gid).with_context(groups)?;
    setgid(user.gid).with_context(groups)?;
    setuid(user.uid).with_context(|| format!("cannot become {}", user.name))?;
    let (name, arguments) = args.program.split_first().expect("clap requires one");
    let mut command = Command::new(&args.path);
    command.arg0(name).args(arguments);
    command.env("HOME", user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
    if let Some(preload) = &args.preload {
        command.env("LD_PRELOAD", preload);
    }
    Err(NotStarted::of(name, &command.exec()).into())
}
