//! The programs of iproute2, which every Linux host has and whose errors people know. They change network
//! namespaces, links and queues in the kernel; a library for the same needs the same privilege and gives an errno.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Error, Result, ensure};

/// Runs `ip` with these arguments and returns what it prints.
///
/// # Errors
/// When it is not installed, or says that it failed.
pub(crate) fn ip(arguments: &[&str]) -> Result<String> {
    finish("ip", arguments, Command::new("ip").args(arguments).output())
}

/// Runs `tc` with these arguments and returns what it prints.
///
/// # Errors
/// As [`ip`].
pub(crate) fn tc(arguments: &[&str]) -> Result<String> {
    finish("tc", arguments, Command::new("tc").args(arguments).output())
}

/// Has `ip` or `tc` do many commands in one network namespace, one a line.
///
/// # Errors
/// As [`ip`]; the message has the line that failed.
pub(crate) fn batch(program: &str, namespace: &str, commands: &[String]) -> Result<()> {
    let arguments = ["-n", namespace, "-batch", "-"];
    let start = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = start.map_err(|error| absent(program, error))?;
    let mut stdin = child.stdin.take().expect("the child's input is a pipe");
    let text = commands.join("\n") + "\n";
    // A child that stopped at an error does not read the rest; its status says so.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    let line = |error: &str| -> Option<&String> {
        let number: usize = error.rsplit(':').next()?.trim().parse().ok()?;
        commands.get(number.checked_sub(1)?)
    };
    let output = child.wait_with_output().with_context(|| format!("`{program}`"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let failed = error.lines().last().and_then(line).map_or("", String::as_str);
    ensure!(output.status.success(), "`{program} -n {namespace} {failed}`: {}", error.trim());
    Ok(())
}

fn finish(program: &str, arguments: &[&str], output: std::io::Result<Output>) -> Result<String> {
    let output = output.map_err(|error| absent(program, error))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{program} {}`: {}", arguments.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn absent(program: &str, error: std::io::Error) -> Error {
    Error::new(error)
        .context(format!("cannot run `{program}`: the lab needs iproute2 (package `iproute2`)"))
}
