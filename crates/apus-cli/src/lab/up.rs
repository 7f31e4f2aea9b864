//! `apus lab up`, `down`, `exec` and `status`: a lab to work in by hand.

use anyhow::Result;
use apus_lab::up::{self, LAB};
use serde_json::json;

use crate::output::{JsonArgs, print};

/// Create a lab: hosts and a switch between them
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab up
  sudo apus lab up big --hosts 40 --link-mbps 20
  sudo apus lab exec h0 -- ping -c 3 10.213.0.2

Host hN has the address 10.213.0.N+1. The lab stays until `apus lab down`.")]
pub(crate) struct Up {
    #[command(flatten)]
    options: up::LabConfig,
}

/// Remove a lab or all labs, including those of a killed program
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab down
  sudo apus lab down big

Ends the processes in the lab's namespaces, then removes the namespaces with their links and queues.")]
pub(crate) struct Down {
    /// Name of the lab [default: all]
    #[arg(value_name = "LAB")]
    lab: Option<String>,
}

/// Run a program on a host of a lab
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab exec h0 -- apus node server --listen 0.0.0.0:20146
  sudo apus lab exec --lab big h7 -- ip -s link")]
pub(crate) struct Exec {
    /// Name of the lab
    #[arg(long, value_name = "LAB", default_value = LAB)]
    lab: String,
    /// Host: h0, h1, …, or switch
    #[arg(value_name = "HOST")]
    host: String,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    program: Vec<String>,
}

/// Show the labs of this machine
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab status
  apus lab status

  apus lab status --json -

Processes are shown only to root.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    json: JsonArgs,
}

/// Makes a lab.
///
/// # Errors
/// As [`up::up`].
pub(super) fn up(args: &Up) -> Result<()> {
    print(&up::up(&args.options)?)
}

/// Removes labs.
///
/// # Errors
/// As [`up::down`].
pub(super) fn down(args: &Down) -> Result<()> {
    print(&up::down(args.lab.as_deref())?)
}

/// Becomes the program, on the host.
///
/// # Errors
/// As [`up::exec`].
pub(super) fn exec(args: &Exec) -> Result<()> {
    match up::exec(&args.lab, &args.host, &args.program)? {}
}

/// Shows all labs.
///
/// # Errors
/// As [`up::status`].
pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let labs = up::status()?;
    let text = || match labs.is_empty() {
        true => "no lab\n".to_owned(),
        false => labs.iter().map(|lab| format!("{lab}\n")).collect(),
    };
    args.json.deliver_value(&json!({ "labs": labs }), text)
}
