//! `apus sim`: the production core in a simulated datacenter.
//!
//! | file | contents |
//! |---|---|
//! | `run`, `sweep`, `compare`, `check` | the subcommand of that name |
//! | `simulate` | the common part: arguments, results, one simulation |
//! | `record` | the record of a fault campaign |

mod check;
mod compare;
mod record;
mod run;
mod simulate;
mod sweep;

use anyhow::Result;
use clap::Subcommand;

pub(crate) use simulate::{STEPS, simulate};

/// Simulate a datacenter in which every host runs the production protocol
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    Run(run::Args),
    Compare(compare::Args),
    Check(check::Args),
    Sweep(sweep::Args),
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(sim: &Sim) -> Result<()> {
    match sim {
        Sim::Run(args) => run::run(args),
        Sim::Compare(args) => compare::run(args),
        Sim::Check(args) => check::run(args),
        Sim::Sweep(args) => sweep::run(args),
    }
}
