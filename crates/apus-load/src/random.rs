//! Random numbers for load: the same sequence on every machine for one seed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The random number generator of loads: small, fast, and with the same sequence on every machine for one seed.
pub type Random = Pcg64Mcg;

/// A [`Random`] with the sequence of `seed`.
#[must_use]
pub fn seeded(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}

/// Draws from a generalized Pareto distribution with minimum 0.
pub(crate) fn pareto(scale: f64, shape: f64, rng: &mut Random) -> f64 {
    // Above 0, so that the power is finite.
    let u = 1.0 - rng.random::<f64>();
    scale * (u.powf(-shape) - 1.0) / shape
}
