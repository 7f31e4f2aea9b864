//! The start of a process that reports when it is ready.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::error::Error;

const READY: &str = "ready";

/// Starts a process that calls [`report`], and waits for that report. `name` is its name in errors.
///
/// # Errors
/// When it cannot be started, or ends before it is ready.
pub(super) fn start(name: &'static str, command: &mut Command) -> Result<Child, Error> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Error::io(format!("cannot start the {name}"), error))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it is a pipe");
    let read = BufReader::new(stdout).read_line(&mut line);
    match read {
        Ok(_) if line.trim_end() == READY => Ok(child),
        read => {
            // The process holds nothing yet, and the caller must not wait for a process that does not answer.
            let _ = child.kill();
            let _ = child.wait();
            Err(read.map_or_else(
                |error| Error::io(format!("the {name}"), error),
                |_| Error::NotStarted(name),
            ))
        }
    }
}

/// Reports to the parent process that this one is ready.
///
/// # Errors
/// When standard output is closed.
pub(super) fn report() -> Result<(), Error> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}")
        .and_then(|()| stdout.flush())
        .map_err(|error| Error::io("standard output", error))
}
