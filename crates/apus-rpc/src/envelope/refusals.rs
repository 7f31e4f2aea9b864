//! Counters of refused messages.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::envelope::error::EnvelopeError;

/// A counter for each reason of an [`EnvelopeError`].
#[derive(Default, Debug)]
pub struct Refusals {
    counts: [AtomicU64; EnvelopeError::REASONS.len()],
}

impl Refusals {
    #[cold]
    pub(crate) fn count(&self, error: &EnvelopeError) {
        self.counts[error.place()].fetch_add(1, Ordering::Relaxed);
    }

    /// The reasons with their counts, also those that are zero.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        EnvelopeError::REASONS.into_iter().zip(counts)
    }

    /// Number of all refused messages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}
