//! Tokens that bound repeated calls while many calls fail.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::retry::Tokens;

/// Tokens of a channel, in thousandths (gRPC's proposal A6).
#[derive(Debug)]
pub(crate) struct Throttle {
    left: AtomicU32,
    max: u32,
    ratio: u32,
}

const TOKEN: u32 = 1_000;

impl Throttle {
    pub(crate) fn new(tokens: Tokens) -> Self {
        // Limited by `Retry::throttle`, and the cast saturates.
        let thousandths = |number: f64| (number * f64::from(TOKEN)) as u32;
        let (max, ratio) = (thousandths(tokens.max), thousandths(tokens.ratio));
        Self { left: AtomicU32::new(max), max, ratio }
    }

    /// A call has failed so that it could be repeated. Returns whether it may be.
    pub(crate) fn charge(&self) -> bool {
        let taken = |left: u32| Some(left.saturating_sub(TOKEN));
        let update = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        update.unwrap_or_else(|left| left).saturating_sub(TOKEN) > self.max / 2
    }

    /// Whether calls may be repeated.
    pub(crate) fn allows(&self) -> bool {
        self.left.load(Ordering::Relaxed) > self.max / 2
    }

    /// A call has succeeded.
    pub(crate) fn succeed(&self) {
        // The line stays shared between threads while all goes well.
        if self.left.load(Ordering::Relaxed) < self.max {
            let given = |left: u32| Some(left.saturating_add(self.ratio).min(self.max));
            let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_repeated_while_more_than_half_of_the_tokens_are_left() {
        let throttle = Throttle::new(Tokens { max: 10.0, ratio: 0.1 });
        let charged: Vec<_> = (0..6).map(|_| throttle.charge()).collect();
        assert_eq!(charged, [true, true, true, true, false, false]);
        for _ in 0..10 {
            assert!(!throttle.allows());
            throttle.succeed();
        }
        assert!(!throttle.allows(), "five are not more than half of ten");
        throttle.succeed();
        assert!(throttle.allows());
        (0..1_000).for_each(|_| throttle.succeed());
        assert_eq!(throttle.left.load(Ordering::Relaxed), 10_000);
        assert!((0..100).filter(|_| throttle.charge()).count() == 4);
        assert_eq!(throttle.left.load(Ordering::Relaxed), 0);
    }
}
