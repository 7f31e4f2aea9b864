//! `apus man`: manual pages, made from the same text as `--help`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;

use crate::output;

/// Print the manual page, or write one page for each command
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus man | man -l -
  apus man --dir ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Write apus.1, apus-bench.1, apus-bench-rtt.1, … to DIR, which is created if missing
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints or writes the pages.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn run(args: &Args, command: Command) -> Result<()> {
    if let Some(dir) = &args.dir {
        fs::create_dir_all(dir)
            .with_context(|| format!("cannot create the directory `{}`", dir.display()))?;
        return clap_mangen::generate_to(command, dir)
            .with_context(|| format!("cannot write manual pages to `{}`", dir.display()));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    output::print(&String::from_utf8_lossy(&page))
}
