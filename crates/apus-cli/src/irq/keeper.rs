//! The start of the process that keeps a device set for `set` and `tune`, until `apus irq restore`.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};
use apus_irq::{Device, StateDirectory, keeper};

use super::state::StateArgs;

/// The hidden subcommand of the keeper.
pub(super) const KEEPER_COMMAND: &str = "keeper";

/// Arguments of the keeper.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeeperArgs {
    /// Device that it keeps
    device: String,
    #[command(flatten)]
    state: StateArgs,
}

/// Starts a keeper for a held device, unless it has one.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(state: &StateDirectory, device: &Device) -> Result<()> {
    let program = env::current_exe().context("the path of this program")?;
    let directory = state.directory().canonicalize().context("the state directory")?;
    let mut command = Command::new(program);
    command.args(["irq", KEEPER_COMMAND, &device.name, "--state"]).arg(directory);
    Ok(keeper::start(state, device, &mut command)?)
}

/// Keeps the values.
///
/// # Errors
/// When there is nothing to keep, or the state directory cannot be read.
pub(crate) fn keep(args: &KeeperArgs) -> Result<()> {
    Ok(keeper::keep(&args.state.open()?, &args.device)?)
}
