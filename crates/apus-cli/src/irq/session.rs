//! The start of a session for `attach` and `run`: its guardian, and its notices.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};
use apus_irq::{Error, Mode, Notice, ProcessId, Session, StateDirectory, guardian};

use super::state::StateArgs;
use crate::failure;

/// The hidden subcommand that restores the values of a killed process.
pub(super) const GUARDIAN_COMMAND: &str = "guardian";

/// Arguments of the guardian.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GuardianArgs {
    /// Process that is guarded
    pid: i32,
    /// When it started
    started: u64,
    #[command(flatten)]
    state: StateArgs,
}

/// Guards a process.
///
/// # Errors
/// When a value cannot be restored.
pub(crate) fn guard(args: &GuardianArgs) -> Result<()> {
    let owner = ProcessId { pid: args.pid, started: args.started };
    Ok(guardian::guard(owner, &args.state.open()?)?)
}

/// Starts a session with its guardian. No value is set yet.
///
/// # Errors
/// When the guardian cannot be started.
pub(super) fn start(state: StateDirectory, mode: Mode) -> Result<Session> {
    let own = ProcessId::own().context("/proc")?;
    let program = env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.args(["irq", GUARDIAN_COMMAND, &own.pid.to_string(), &own.started.to_string()]);
    command.arg("--state").arg(state.directory());
    Ok(Session::start(state, mode, &mut command, report)?)
}

/// Writes a notice as a line to standard error.
pub(super) fn report(notice: &Notice) {
    failure::note(&words(notice));
}

/// The errors of steering, with the name of the option.
pub(super) fn of_steering(error: Error) -> anyhow::Error {
    match error {
        Error::NoListeners | Error::Misfit { .. } | Error::Io { .. } => {
            anyhow::Error::from(error).context("'--steer'")
        }
        error => error.into(),
    }
}

fn words(notice: &Notice) -> String {
    match notice {
        Notice::NotSet(error) | Notice::NotRestored(error) => error.to_string(),
        Notice::NotSteered(error @ Error::Misfit { .. }) => format!("'--steer': {error}"),
        Notice::NotSteered(error) => error.to_string(),
        Notice::SetAgain { device, lost, new } => format!(
            "{device}: set {lost} NAPI instances again that had lost their values, and {new} new ones"
        ),
        Notice::Steered { address, listeners, queues, spread } => {
            let several = match (spread.modulus < *queues, spread.each) {
                (true, _) => {
                    "; several queues share a listener, which then receives packets from more than one NAPI instance"
                }
                (false, 1) => "",
                (false, _) => "; a queue with several listeners selects one at random",
            };
            format!(
                "{address}: {listeners} listeners receive the connections of {queues} receive queues by the number of the \
                 queue{several}"
            )
        }
        Notice::Followed { program, holder, pid } => format!(
            "{program} went to the background; following {holder} (pid {pid}), which has its sockets, until it ends"
        ),
        Notice::NotFollowed { program, left, seconds } => {
            let pids = left.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
            format!(
                "{program} ended, and no process that it left behind ({pids}) opened an internet socket within {seconds} s: the \
                 values are restored. Keep the server in the foreground (memcached without -d, nginx -g 'daemon off;', \
                 redis-server --daemonize no), or use `apus irq attach PID` once it listens"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use apus_irq::Spread;

    use super::*;

    #[test]
    fn a_notice_says_what_steering_means() {
        let steered = |listeners, queues| {
            let spread = Spread::of(listeners, queues).unwrap();
            let address = "10.0.0.1:80".parse().unwrap();
            words(&Notice::Steered { address, listeners, queues, spread })
        };
        assert!(steered(2, 2).ends_with("by the number of the queue"), "{}", steered(2, 2));
        assert!(steered(2, 4).contains("several queues share a listener"));
        assert!(steered(4, 2).contains("one at random"));
        let error = of_steering(Error::NoListeners);
        assert!(failure::message(&error).starts_with("'--steer': the program has no TCP"));
    }
}
