//! `apus run`: starts a program with the library that carries its sockets.

mod library;
mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use apus_bench::misuse::Misuse;

use crate::failure::{self, NotStarted};

/// Run a program with its sockets over Apus, without a change to it
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The program's connections stay TCP sockets of the kernel. In this version all calls pass through to the C library:
no connection is carried by Apus yet. docs/sockets.md lists the calls.

A program that is statically linked, uses musl or gains privileges when it starts cannot be preloaded. It runs plain, and one line
on standard error says so.

Environment:
  APUS_PRELOAD  path of libapus_preload.so, if it is neither beside apus nor in ../lib/apus
  APUS_EXPLAIN  as --explain, if set and not empty
  LD_PRELOAD    libraries that are there already stay, in front

Exit status: the program's; 126 if it cannot be started, 127 if it is not found.

Examples:
  apus run redis-server --port 7000
  apus run --explain -- curl -s http://localhost:8000/
  LD_PRELOAD=/usr/lib/apus/libapus_preload.so redis-server     # the same by hand"
)]
pub(crate) struct Args {
    /// At the end of each process, print for each TCP connection whether it was carried, and why not
    #[arg(long)]
    explain: bool,
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
        None => _ = command.env("LD_PRELOAD", preloaded(&library::find()?)?),
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

/// The value of `LD_PRELOAD` with the library behind those that are there. Tools such as sanitizers insist on being the first, and
/// calls that a library in front of ours passes on come to ours.
fn preloaded(library: &Path) -> Result<OsString> {
    let text = library.as_os_str().as_bytes();
    if text.iter().any(|byte| b": \t\n".contains(byte)) {
        let path = library.display();
        return Err(Misuse(format!(
            "`{path}` has a colon or a space, which LD_PRELOAD cannot hold"
        ))
        .into());
    }
    let before = env::var_os("LD_PRELOAD").unwrap_or_default();
    let names = before.as_bytes().split(|byte| b": ".contains(byte));
    if names.into_iter().any(|name| name == text) {
        return Ok(before);
    }
    let separator = OsStr::new(if before.is_empty() { "" } else { ":" });
    Ok([before.as_os_str(), separator, library.as_os_str()].into_iter().collect())
}
