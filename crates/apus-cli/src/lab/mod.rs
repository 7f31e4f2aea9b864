//! `apus lab`: the emulated cluster of [`apus_lab`].
//!
//! | file | contents |
//! |---|---|
//! | `run` | `apus lab run` |
//! | `up` | `apus lab up`, `down`, `exec` and `status` |
//! | `options` | arguments that override settings of a plan |

mod options;
mod run;
mod up;

use anyhow::Result;
use clap::Subcommand;

pub(crate) use options::CampaignArgs;

/// Emulate a cluster on this machine: hosts, a switch with priorities, Apus beside kernel TCP
#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    Up(up::Up),
    Down(up::Down),
    Exec(up::Exec),
    Status(up::StatusArgs),
    Run(Box<run::Args>),
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(lab: &Lab) -> Result<()> {
    match lab {
        Lab::Up(args) => up::up(args),
        Lab::Down(args) => up::down(args),
        Lab::Exec(args) => up::exec(args),
        Lab::Status(args) => up::status(args),
        Lab::Run(args) => run::run(args),
    }
}
