//! `apus run`: starts a program with the library that carries its sockets.
//!
//! | file | contents |
//! |---|---|
//! | `program` | the file of a program, and whether a library can be preloaded into it |
//! | `library` | the file of the library |
//! | `place` | the place to which the library is written |

mod library;
mod place;
mod program;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, bail};

use crate::carrier;
use crate::failure::{self, NotStarted};

/// Run a program with its sockets over Apus, without a change to it
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The program's connections remain TCP sockets of the kernel. Bytes between two programs under `apus run` on one \
host go through shared memory. With --net, bytes between two hosts go over Apus, shorter messages first, if both programs run under \
`apus run --net` and do not change their users; see `apus carrier --help`. docs/sockets.md lists the carried calls, and the calls \
that end carrying.

The library is part of apus, which writes it to a directory of this user: $XDG_RUNTIME_DIR/apus, /run/apus-preload for root,
~/.cache/apus, /dev/shm or /tmp, whichever comes first and is neither read-only nor noexec.

A program that is statically linked, uses musl or gains privileges when it starts cannot be preloaded. It runs plain, and one line
on standard error says so.

Environment:
  APUS_PRELOAD  path of libapus_preload.so, instead of the copy that apus contains
  APUS_EXPLAIN  as --explain, if set and not empty
  APUS_CARRIER  UDP port of the carriers, for --net [default: 20147]
  APUS_SOCKETS  off: nothing is carried
  LD_PRELOAD    existing libraries stay, in front

Exit status: that of the program; 126 if it cannot be started, 127 if it is not found.

Examples:
  apus run redis-server --port 7000
  apus run --explain -- curl -s http://localhost:8000/
  apus run --net redis-server --bind 0.0.0.0                   # and at another host
  apus run --net redis-benchmark -h 10.0.0.1
  apus run sh -c 'echo $LD_PRELOAD'                            # the library, to preload it by hand"
)]
pub(crate) struct Args {
    /// At the end of each process, print for each TCP connection whether it was carried, or the reason why not
    #[arg(long)]
    explain: bool,
    /// Also carry connections to other hosts; starts a carrier in the background if none runs
    #[arg(long)]
    net: bool,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

/// Becomes the program.
///
/// # Errors
/// When the program or the library is not found, or the program cannot be started.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (name, arguments) = args.program.split_first().expect("clap requires one");
    let path = program::find(name)?;
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    match program::why_not_preloaded(&path)? {
        Some(why) => failure::note(&format!("`{}` runs plain: {why}", path.display())),
        None => _ = command.env("LD_PRELOAD", library::preloaded()?),
    }
    if args.net {
        carry_between_hosts(&mut command)?;
    }
    if args.explain {
        command.env("APUS_EXPLAIN", "1");
    }
    let error = command.exec();
    let code = if error.kind() == ErrorKind::NotFound {
        NotStarted::NOT_FOUND
    } else {
        NotStarted::CANNOT
    };
    Err(NotStarted { code, why: format!("cannot start `{}`: {error}", path.display()) }.into())
}

/// Has the program carry connections between hosts. Without a carrier these stay with TCP.
fn carry_between_hosts(command: &mut Command) -> Result<()> {
    let port = carrier::port()?;
    match carrier::ensure(port) {
        Ok(()) => _ = command.env("APUS_CARRIER", port.to_string()),
        Err(why) => failure::note(&format!("connections between hosts stay with TCP: {why:#}")),
    }
    Ok(())
}

/// Finds the file of a program: a path, or a name that is looked up in `PATH`.
///
/// # Errors
/// When no file is found, or it may not be executed.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf> {
    program::find(name)
}

/// The value of `LD_PRELOAD` under which a program is started, for a program that must not run plain.
///
/// # Errors
/// When the library is not found, or cannot be preloaded into the program.
pub(crate) fn preload(program: &Path) -> Result<OsString> {
    if let Some(why) = program::why_not_preloaded(program)? {
        bail!("`{}` cannot be preloaded: {why}", program.display());
    }
    library::preloaded().map_err(of_a_measurement)
}

/// The same for a program by its name or path.
///
/// # Errors
/// As [`preload`], and when there is no such program.
pub(crate) fn preload_by_name(name: &str) -> Result<OsString> {
    preload(&program::find(name.as_ref()).map_err(of_a_measurement)?)
}

/// An error with an exit code of this program. Only a command that becomes a program has exit codes of a shell.
fn of_a_measurement(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<NotStarted>() {
        Ok(error) => anyhow!(error.why),
        Err(error) => error,
    }
}
