//! Which CPUs the two sides of a measurement are kept on.

use std::thread;

use anyhow::{Context, Result};
use apus_net::cpu;
use strum::IntoStaticStr;

/// Which CPUs the two sides are kept on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Pin {
    /// Client on the first CPU, server on the second
    #[default]
    Split,
    /// Both on the first CPU
    Same,
    /// Not pinned
    None,
}

impl Pin {
    /// The name in arguments and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// CPU of the client and of the server, of those this process may use. With one CPU both get that.
    #[must_use]
    pub fn cpus(self) -> (Option<usize>, Option<usize>) {
        let allowed = cpu::allowed();
        let (first, second) =
            (allowed.first().copied(), allowed.get(1).or_else(|| allowed.first()).copied());
        match self {
            Self::Split => (first, second),
            Self::Same => (first, first),
            Self::None => (None, None),
        }
    }

    /// Whether client and server share one CPU.
    #[must_use]
    pub fn shares_cpu(self) -> bool {
        self == Self::Same || cpu::allowed().len() == 1
    }
}

/// Keeps this thread, and those that it starts, on a CPU when one is named.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn stay_on(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    cpu::pin_current_thread(cpu).with_context(|| format!("cannot stay on CPU {cpu}"))
}

/// Has `work` done by a thread that [stays](stay_on) on a CPU.
///
/// # Errors
/// As `stay_on` and `work`.
pub(crate) fn on_cpu<T: Send>(
    cpu: Option<usize>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| stay_on(cpu).and_then(|()| work()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
