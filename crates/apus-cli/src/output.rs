//! Where results go: standard output, JSON and HTML files.
//!
//! A reader that closes our standard output early (`apus … | head`) is content with what it got: that is no error.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::ResultFile;
use apus_load::report::{self, Style};
use serde::Serialize;

/// Where the result of a command goes besides its table.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the result as JSON to FILE; - is standard output, which then has nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a self-contained HTML report with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

impl OutputArgs {
    /// Whether standard output belongs to the JSON.
    pub(crate) fn json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Shows the result as tables and writes the files asked for.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn deliver(&self, result: &ResultFile) -> Result<()> {
        if !self.json_on_stdout() {
            print(&report::text(result, Style::for_stdout()))?;
        }
        self.write_json(result)?;
        match &self.html {
            Some(path) => write_html(path, std::slice::from_ref(result)),
            None => Ok(()),
        }
    }

    /// Writes the JSON file if one was asked for.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_json(&self, result: &ResultFile) -> Result<()> {
        match &self.json {
            Some(path) => Ok(result.write(path)?),
            None => Ok(()),
        }
    }
}

/// Writes the HTML report of some results; `-` is standard output.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_html(path: &Path, results: &[ResultFile]) -> Result<()> {
    write_text(path, &report::html(results)?)
}

/// Writes something as indented JSON; `-` is standard output.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write as JSON")?;
    text.push('\n');
    write_text(path, &text)
}

/// Writes text to a file; `-` is standard output.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Writes a line for people: to standard output, or to standard error when standard output belongs to the JSON.
///
/// # Errors
/// When it cannot be written, for another reason than a reader that left.
pub(crate) fn say(output: &OutputArgs, line: &str) -> Result<()> {
    if !output.json_on_stdout() {
        return print(&format!("{line}\n"));
    }
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "{line}");
    Ok(())
}

/// Writes text to standard output.
///
/// # Errors
/// When it cannot be written, for another reason than a reader that left.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
