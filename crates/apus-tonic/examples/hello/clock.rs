//! The time by which calls are measured: of a clock, or of the CPU.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use apus::net::cpu;

/// The moment from which a [`Time::OfClock`] counts.
static BEGIN: OnceLock<Instant> = OnceLock::new();

/// The kind of time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    OfClock,
    /// That of the calling thread. Other work of the machine does not count.
    OfCpu,
}

impl Time {
    pub(crate) fn now(self) -> Duration {
        match self {
            Self::OfClock => BEGIN.get_or_init(Instant::now).elapsed(),
            Self::OfCpu => cpu::thread_time(),
        }
    }
}
