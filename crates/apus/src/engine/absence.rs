//! The absence of threads that stop waiting. If they come back sooner than a wake-up takes, no other thread is woken for the lead.

use std::time::Duration;

use apus_net::cpu;
use apus_proto::Time;

use crate::delivery::parker::WaiterId;

pub(super) struct Absence {
    /// The thread that stopped waiting last, unless it is back.
    left: Option<Left>,
    /// A moving mean of the last eight or so.
    mean: Duration,
}

/// A thread that stopped waiting.
#[derive(Clone, Copy)]
struct Left {
    id: WaiterId,
    at: Time,
    cpu: u32,
}

/// Less than it takes to wake another thread.
const SHORT: Duration = Duration::from_micros(20);

/// An absence counts as this much at most, so that one that was long is forgotten in 30 short ones.
const COUNTED_MAX: Duration = Duration::from_millis(1);

impl Default for Absence {
    fn default() -> Self {
        Self { left: None, mean: COUNTED_MAX }
    }
}

impl Absence {
    /// Whether threads come back sooner than a wake-up takes.
    pub(super) fn is_short(&self) -> bool {
        self.mean < SHORT
    }

    /// Thread `id` stops waiting.
    #[inline]
    pub(super) fn begin(&mut self, id: WaiterId, now: Time) {
        self.left = Some(Left { id, at: now, cpu: cpu::current() });
    }

    /// Thread `id` begins to wait. True if it runs on the core that the thread which left last runs on.
    #[inline]
    pub(super) fn end(&mut self, id: WaiterId, now: Time) -> bool {
        match self.left {
            Some(left) if left.id == id => {
                let absence = now.saturating_since(left.at).min(COUNTED_MAX);
                self.mean = (self.mean * 7 + absence) / 8;
                self.left = None;
                false
            }
            Some(left) => left.cpu == cpu::current(),
            None => false,
        }
    }
}
