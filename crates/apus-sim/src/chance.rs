//! Random numbers that are the same on every machine.
//!
//! The generator is `apus-load`'s. This module avoids the platform's mathematical functions, whose last digits differ, so that a
//! seed gives the same run everywhere.

use apus_load::Random;
use rand::{Rng, RngExt};

/// An exponentially distributed number with mean 1.
pub(crate) fn exponential(rng: &mut Random) -> f64 {
    -natural_log(1.0 - rng.random::<f64>())
}

/// A number below `bound`, which is not 0.
#[inline]
pub(crate) fn below(rng: &mut Random, bound: u32) -> u32 {
    ((u64::from(rng.next_u32()) * u64::from(bound)) >> 32) as u32
}

/// True `per_million` times in a million.
#[inline]
pub(crate) fn happens(rng: &mut Random, per_million: u32) -> bool {
    per_million > 0 && below(rng, 1_000_000) < per_million
}

/// ln x for normal x > 0, by additions, multiplications and divisions only; accurate to 1e-15.
fn natural_log(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for term in (0..12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * term + 1);
    }
    2.0 * s * sum + f64::from(exponent) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_load::seeded;

    #[test]
    fn the_logarithm_is_one() {
        for x in [1e-16, 0.001, 0.3, 0.99, 1.0, 1.4143, 2.0, 1e9] {
            let difference = (natural_log(x) - f64::ln(x)).abs();
            assert!(difference < 1e-13, "{x}: {difference}");
        }
    }

    #[test]
    fn gaps_have_mean_one() {
        let mut rng = seeded(7);
        let sum: f64 = (0..100_000).map(|_| exponential(&mut rng)).sum();
        assert!((sum / 1e5 - 1.0).abs() < 0.02, "{sum}");
    }

    #[test]
    fn chances_are_as_said() {
        let mut rng = seeded(1);
        let hits = (0..100_000).filter(|_| happens(&mut rng, 250_000)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| below(&mut rng, 3) < 3 && !happens(&mut rng, 0)));
    }
}
