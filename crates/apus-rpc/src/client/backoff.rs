//! Pauses between attempts, which grow.

use std::time::Duration;

/// Pauses that grow from one attempt to the next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) factor: f64,
    pub(crate) longest: Duration,
}

/// Largest share by which a pause differs from its mean, so that clients do not repeat at the same time.
const JITTER: f64 = 0.2;

impl Backoff {
    /// 50 ms, 80 ms, and so on up to 1 s.
    pub(crate) const DEFAULT: Self =
        Self { first: Duration::from_millis(50), factor: 1.6, longest: Duration::from_secs(1) };

    /// The pause after this many others.
    pub(crate) fn pause(&self, others: u32, random: u64) -> Duration {
        let grown = self.factor.powi(i32::try_from(others).unwrap_or(i32::MAX));
        let seconds = (self.first.as_secs_f64() * grown).min(self.longest.as_secs_f64());
        // 53 bits are a fraction from 0 to 1.
        let fraction = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let jittered = seconds * (1.0 + JITTER * (2.0 * fraction - 1.0));
        Duration::try_from_secs_f64(jittered).unwrap_or(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_differ_by_a_fifth() {
        let pauses = [0, 1, 2, 7, 1_000_000].map(|others| {
            let pause = |random| Backoff::DEFAULT.pause(others, random);
            let (low, high) = (pause(0).as_secs_f64(), pause(u64::MAX).as_secs_f64());
            assert!((high / low - 1.5).abs() < 0.001, "{low} {high}");
            pause(1 << 63).as_millis()
        });
        assert_eq!(pauses, [50, 80, 128, 1_000, 1_000]);
    }
}
