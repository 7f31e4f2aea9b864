//! Signals to `attach` and `run`, each delivered once.

use std::io;

use anyhow::{Context, Result};
use apus_irq::Program;
use nix::unistd::{Pid, getpgid};
use rustix::process::{Signal, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

/// Signals that end a command with set values.
pub(super) const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Signals that servers handle, and that are passed on to them.
pub(super) const PASSED_ON: [i32; 7] =
    [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH];

/// Signals of a terminal's keys and window. The kernel sends them to all processes of the foreground group.
const OF_TERMINAL: [i32; 3] = [SIGINT, SIGQUIT, SIGWINCH];

/// `si_code` of a signal that was sent by the kernel rather than by a process.
const SI_KERNEL: i32 = 0x80;

/// A queue of received signals. Equal ones are not merged, except by the kernel while they wait for this process to run.
#[derive(Debug)]
pub(super) struct Signals(SignalsInfo<WithRawSiginfo>);

/// A received signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    number: i32,
    /// Whether the kernel sent it to the processes of the terminal.
    by_terminal: bool,
}

impl Signals {
    /// Takes these signals from now on, so that they do not end the command themselves.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn handle(numbers: &[i32]) -> Result<Self> {
        let signals: io::Result<_> = SignalsInfo::new(numbers);
        Ok(Self(signals.context("cannot handle signals")?))
    }

    /// The signals received since the last call.
    pub(super) fn take(&mut self) -> Vec<Came> {
        let came = self.0.pending();
        came.map(|info| Came {
            number: info.si_signo,
            by_terminal: info.si_code == SI_KERNEL && OF_TERMINAL.contains(&info.si_signo),
        })
        .collect()
    }
}

impl Came {
    /// Sends the signal to a process, unless the terminal has done so.
    pub(super) fn pass_on(self, program: &Program) {
        let group = getpgid(Some(Pid::from_raw(program.id().pid)));
        if self.by_terminal && group == getpgid(None) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(self.number) {
            // The process may have ended, or have become a program of another user.
            let _ = pidfd_send_signal(program.pidfd(), signal);
        }
    }
}
