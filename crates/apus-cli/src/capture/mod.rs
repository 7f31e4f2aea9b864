//! `apus capture`: files of captured packets.

mod open;

use anyhow::Result;
use clap::Subcommand;

/// Look into captured packets
#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    Open(open::Args),
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(command: &CaptureCommand) -> Result<()> {
    match command {
        CaptureCommand::Open(args) => open::run(args),
    }
}
