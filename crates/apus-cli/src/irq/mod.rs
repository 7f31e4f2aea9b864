//! `apus irq`: IRQ suspension of the kernel for programs that are not made for it.
//!
//! | file | contents |
//! |---|---|
//! | `show`, `set`, `attach`, `run`, `tune`, `doctor` | the subcommand of that name; `set` has `restore` as well |
//! | `session`, `keeper` | the start of the processes that restore values or set them again |
//! | `signals` | signals to `attach` and `run` |
//! | `user` | `--user` |
//! | `preset`, `state` | the files of presets; the directory of earlier values |
//! | `programs` | epoll sets as a table and as JSON |

mod attach;
mod doctor;
mod keeper;
mod preset;
mod programs;
mod run;
mod session;
mod set;
mod show;
mod signals;
mod state;
mod tune;
mod user;

use anyhow::Result;
use clap::Subcommand;

/// Suspend the interrupts of a network device while programs are busy, and restore them
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Irq {
    Show(show::Args),
    Set(set::SetArgs),
    Restore(set::RestoreArgs),
    Attach(attach::AttachArgs),
    Run(run::RunArgs),
    Doctor(doctor::Args),
    Tune(tune::TuneArgs),
    /// Restore the values that a process has set, at the end of standard input
    #[command(hide = true, name = session::GUARDIAN_COMMAND)]
    Guardian(session::GuardianArgs),
    /// Become a user and then a program
    #[command(hide = true, name = user::BECOME_COMMAND)]
    Become(user::BecomeArgs),
    /// Set a device again when it loses its values
    #[command(hide = true, name = keeper::KEEPER_COMMAND)]
    Keeper(keeper::KeeperArgs),
}

/// Runs the chosen subcommand.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(irq: &Irq) -> Result<()> {
    match irq {
        Irq::Show(args) => show::run(args),
        Irq::Set(args) => set::set(args),
        Irq::Restore(args) => set::restore(args),
        Irq::Attach(args) => attach::attach(args),
        Irq::Run(args) => run::run(args),
        Irq::Doctor(args) => doctor::run(args),
        Irq::Tune(args) => tune::run(args),
        Irq::Guardian(args) => session::guard(args),
        Irq::Become(args) => user::become_program(args),
        Irq::Keeper(args) => keeper::keep(args),
    }
}
