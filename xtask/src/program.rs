//! Programs that the checks start.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs a program whose output goes to the terminal.
///
/// # Errors
/// If it cannot be started, or fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| name(command))?;
    if !status.success() {
        bail!("{}: {status}", name(command));
    }
    Ok(())
}

/// Runs a program, and returns its standard output without the newline at the end.
///
/// # Errors
/// If it cannot be started, fails, or writes other than UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(std::process::Stdio::inherit()).output().with_context(|| name(command))?;
    if !output.status.success() {
        bail!("{}: {}", name(command), output.status);
    }
    let text = String::from_utf8(output.stdout).with_context(|| name(command))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// Runs a program, and returns both of its outputs, whether it fails or not.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn both_outputs(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| name(command))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(text(&output.stdout) + &text(&output.stderr))
}

/// Returns whether a program is in one of the directories of `PATH`.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Cargo, as the one that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The directory in which cargo builds.
pub(crate) fn target() -> String {
    std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned())
}

fn name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Reads a file.
///
/// # Errors
/// With the file's name.
pub(crate) fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}
