//! `apus irq`: IRQ suspension of the kernel for programs that know nothing of it.

mod attach;
mod programs;
mod session;
mod set;
mod show;

use std::env;
use std::path::PathBuf;

use anyhow::Result;
use apus_bench::misuse::Misuse;
use apus_irq::State;
use clap::Subcommand;
use nix::unistd::geteuid;

/// The hidden subcommand that restores what a killed process has set.
pub(crate) const GUARDIAN_COMMAND: &str = "guardian";

/// Suspend the interrupts of a network device while programs are busy, and restore them
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Irq {
    Show(show::Args),
    Set(set::SetArgs),
    Restore(set::RestoreArgs),
    Attach(attach::AttachArgs),
    Run(attach::RunArgs),
    /// Restore what a process has set once standard input ends
    #[command(hide = true, name = GUARDIAN_COMMAND)]
    Guardian(session::GuardianArgs),
}

/// Where the values before a change are kept.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StateArgs {
    /// Directory in which the values before are kept [default: /run/apus/irq for root, else $XDG_RUNTIME_DIR/apus/irq]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl StateArgs {
    /// # Errors
    /// When no directory is given, and this user has none.
    fn open(&self) -> Result<State> {
        if let Some(directory) = &self.state {
            return Ok(State::at(directory));
        }
        if geteuid().is_root() {
            return Ok(State::at(State::DEFAULT));
        }
        let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty());
        let runtime = runtime.ok_or_else(|| {
            Misuse(
                "XDG_RUNTIME_DIR is not set: give '--state DIR', a directory of this user"
                    .to_owned(),
            )
        })?;
        Ok(State::at(PathBuf::from(runtime).join("apus/irq")))
    }
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(irq: &Irq) -> Result<()> {
    match irq {
        Irq::Show(args) => show::run(args),
        Irq::Set(args) => set::set(args),
        Irq::Restore(args) => set::restore(args),
        Irq::Attach(args) => attach::attach(args),
        Irq::Run(args) => attach::run(args),
        Irq::Guardian(args) => session::guard(args),
    }
}
