//! ETC, the general-purpose memcached pool of Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value Store" (SIGMETRICS
//! 2012): lengths of keys and values. The gaps between its requests are [`Pareto`](crate::Pareto)'s.
//!
//! The distributions are the load generator mutilate's, under the names `fb_key`, `fb_value` and `fb_ia`, and so the ones behind
//! the published figures of the kernel's IRQ suspension.

use rand::RngExt;

use crate::random::{Random, pareto};

/// Upper bound on the length of a key, in bytes: memcached's limit.
pub const KEY_MAX: u32 = 250;

/// Upper bound on the length of a value, in bytes: memcached's usual limit.
pub const VALUE_MAX: u32 = 1 << 20;

/// Location, scale and shape of the generalized extreme value distribution of key lengths.
const KEY: (f64, f64, f64) = (30.7984, 8.20449, 0.078_688);

/// Location, scale and shape of the generalized Pareto distribution of the lengths of longer values.
const VALUE: (f64, f64, f64) = (15.0, 214.476, 0.348_238);

/// Probabilities of values of 0, 1, 2, … 14 bytes.
const SHORT_VALUES: [f64; 15] = [
    0.005_36, 0.000_47, 0.178_20, 0.092_39, 0.000_18, 0.027_40, 0.000_65, 0.006_06, 0.000_23,
    0.008_37, 0.008_37, 0.089_89, 0.000_92, 0.003_26, 0.019_80,
];

/// Draws the length of a key in bytes, 1 to [`KEY_MAX`]; about 36 on average.
pub fn key_length(rng: &mut Random) -> u32 {
    let (location, scale, shape) = KEY;
    // Above 0, so that the logarithm is finite.
    let u = 1.0 - rng.random::<f64>();
    let length = location + scale * ((-u.ln()).powf(-shape) - 1.0) / shape;
    (length.round() as u32).clamp(1, KEY_MAX)
}

/// Draws the length of a value in bytes, 0 to [`VALUE_MAX`]; 195 on average.
pub fn value_length(rng: &mut Random) -> u32 {
    let mut place = rng.random::<f64>();
    for (length, probability) in (0..).zip(SHORT_VALUES) {
        if place < probability {
            return length;
        }
        place -= probability;
    }
    let (location, scale, shape) = VALUE;
    ((location + pareto(scale, shape, rng)).round() as u32).min(VALUE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeded;

    const DRAWS: usize = 200_000;

    fn draws(draw: fn(&mut Random) -> u32) -> Vec<f64> {
        let mut rng = seeded(7);
        (0..DRAWS).map(|_| f64::from(draw(&mut rng))).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn keys_have_the_mean_of_their_distribution() {
        // location + scale (gamma(1 - shape) - 1) / shape, with gamma(0.921312) = 1.0521.
        let keys = draws(key_length);
        assert!((mean(&keys) - 36.2).abs() < 0.3, "{}", mean(&keys));
        assert!(keys.iter().all(|key| (1.0..=250.0).contains(key)));
    }

    #[test]
    fn short_values_have_their_shares() {
        let values = draws(value_length);
        let share =
            |length: f64| values.iter().filter(|v| **v == length).count() as f64 / DRAWS as f64;
        for (length, probability) in [(2.0, 0.178_20), (3.0, 0.092_39), (11.0, 0.089_89)] {
            assert!((share(length) - probability).abs() < 0.005, "{length}: {}", share(length));
        }
    }

    #[test]
    fn longer_values_have_the_mean_of_their_distribution() {
        let long: Vec<f64> = draws(value_length).into_iter().filter(|v| *v > 14.0).collect();
        assert!((long.len() as f64 / DRAWS as f64 - 0.558_45).abs() < 0.005);
        // location + scale / (1 - shape)
        assert!((mean(&long) - 344.1).abs() < 10.0, "{}", mean(&long));
    }
}
