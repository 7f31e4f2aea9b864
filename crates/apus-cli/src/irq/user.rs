//! `--user`: runs the program as another user, with all groups of that user.
//!
//! A process of its own takes the groups and becomes the program: the standard library starts programs of other users without
//! groups, and this process keeps its rights.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use apus_irq::{Error, ProgramUser};
use apus_load::misuse::Misuse;

use crate::failure::NotStarted;

/// The hidden subcommand that becomes the program of a user.
pub(super) const BECOME_COMMAND: &str = "become";

/// The user and the program.
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

/// The user of `--user`; `None` if this process runs as that user already.
///
/// # Errors
/// When there is no such user, or this process may not become one.
pub(super) fn named(name: &str) -> Result<Option<ProgramUser>> {
    match ProgramUser::named(name) {
        Err(Error::NoUser(_)) => Err(Misuse(format!("'--user {name}': no such user")).into()),
        Err(error @ Error::NotRoot) => Err(Misuse(format!("'--user {name}': {error}")).into()),
        user => Ok(user?),
    }
}

/// The command that starts a program as a user.
///
/// # Errors
/// When the path of this executable is not known.
pub(super) fn command(
    user: &ProgramUser,
    path: &Path,
    preload: Option<OsString>,
    program: &[OsString],
) -> Result<Command> {
    let own = env::current_exe().context("the path of this program")?;
    let mut command = Command::new(own);
    command.args(["irq", BECOME_COMMAND, &user.uid().to_string()]).arg(path);
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
    let user = ProgramUser::of(args.user)?;
    user.assume()?;
    let (name, arguments) = args.program.split_first().expect("clap requires one");
    let mut command = Command::new(&args.path);
    command.arg0(name).args(arguments).envs(user.variables());
    if let Some(preload) = &args.preload {
        command.env("LD_PRELOAD", preload);
    }
    Err(NotStarted::of(name, &command.exec()).into())
}
