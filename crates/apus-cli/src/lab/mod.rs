//! `apus lab`: a cluster on one machine, with an emulated switch between network namespaces.
//!
//! * [`network`]: namespaces and links, made with iproute2 ([`iproute`]); [`switch`]: their queues, which [`queues`] looks into;
//! * [`up`]: a lab to work in by hand;
//! * [`plan`]: what to measure; [`run`]: the command that does;
//! * [`host`]: the process on each host; [`crew`]: the leader's hold on all of them;
//! * [`processor`]: processors that are made slow;
//! * [`campaign`]: all settings of a plan, one after the other; [`ideal`]: the best possible times;
//! * [`figures`]: rows and curves from what the hosts measured;
//! * [`kernel`]: what the kernel counts; [`privilege`]: what an ordinary user can do.

pub(crate) mod campaign;
pub(crate) mod crew;
pub(crate) mod figures;
pub(crate) mod host;
pub(crate) mod ideal;
mod iproute;
pub(crate) mod kernel;
mod network;
pub(crate) mod plan;
mod privilege;
mod processor;
pub(crate) mod queues;
pub(crate) mod run;
mod switch;
mod up;

use anyhow::Result;
use clap::Subcommand;

/// Emulate a cluster on this machine: hosts, a switch with priority queues, Apus beside kernel TCP
#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    Up(up::Up),
    Down(up::Down),
    Exec(up::Exec),
    Status(up::Status),
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
