//! `apus completions`: completion scripts for shells.

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use crate::output;

/// Print a completion script for a shell
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus completions bash > ~/.local/share/bash-completion/completions/apus
  apus completions fish > ~/.config/fish/completions/apus.fish")]
pub(crate) struct Args {
    /// Shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "apus", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
