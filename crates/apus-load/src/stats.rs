//! Statistics of values: percentiles of measurements, and medians, spread and ratios of several runs.
//!
//! A percentile is always a measured value, by nearest rank ([`rank`]). The histograms of [`Latency`](crate::Latency) follow the
//! same rule. Medians and quartiles of runs, which are few, are interpolated.

/// The rank of a percentile among `count` values in rising order, counted from 1: the rank of the smallest value that at least
/// `percent` % (0 to 100) of the values do not exceed. 1 without values.
#[must_use]
pub fn rank(count: u64, percent: f64) -> u64 {
    ((count as f64 * (percent / 100.0)).ceil() as u64).clamp(1, count.max(1))
}

/// The percentile of values in rising order; `None` without values.
#[must_use]
pub fn percentile<T: Copy>(ordered: &[T], percent: f64) -> Option<T> {
    ordered.get(rank(ordered.len() as u64, percent) as usize - 1).copied()
}

/// The middle value, or the mean of the two middle values. `None` without values. Values that are not numbers are left out.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&ordered(values), 0.5)
}

/// Lower and upper quartile, interpolated linearly between neighbours. `None` without values.
fn quartiles(values: &[f64]) -> Option<(f64, f64)> {
    let ordered = ordered(values);
    Some((quantile(&ordered, 0.25)?, quantile(&ordered, 0.75)?))
}

/// The spread of runs: half the distance between the quartiles, as a share of the median, so 0.03 reads "± 3 %". `None` for fewer
/// than two values or a median of 0.
#[must_use]
pub fn spread(values: &[f64]) -> Option<f64> {
    let (low, high) = quartiles(values).filter(|_| values.len() > 1)?;
    let middle = median(values).filter(|middle| *middle != 0.0)?;
    Some((high - low) / 2.0 / middle.abs())
}

/// `value` divided by `reference`. `None` if the reference is 0 or either is not finite.
#[must_use]
pub fn ratio(value: f64, reference: f64) -> Option<f64> {
    let ratio = value / reference;
    (reference.is_finite() && ratio.is_finite()).then_some(ratio)
}

/// The median of the ratios of single runs: `values[i]` against `references[i]`, both of run `i`. Fairer than the ratio of the
/// medians, because a disturbance affects both sides of a run. `None` if no run has both.
#[must_use]
pub fn paired_ratio(values: &[f64], references: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> =
        values.iter().zip(references).filter_map(|(v, r)| ratio(*v, *r)).collect();
    median(&ratios)
}

fn ordered(values: &[f64]) -> Vec<f64> {
    let mut ordered: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    ordered.sort_by(f64::total_cmp);
    ordered
}

/// The value at `fraction` (0 to 1) of `ordered`, which is rising.
fn quantile(ordered: &[f64], fraction: f64) -> Option<f64> {
    let place = fraction * (ordered.len().checked_sub(1)?) as f64;
    let (below, above) = (ordered[place.floor() as usize], ordered[place.ceil() as usize]);
    Some(if below == above { below } else { below + (above - below) * place.fract() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(
            [0.0, 50.0, 99.0, 100.0].map(|p| percentile(&values, p)),
            [1, 500, 990, 1000].map(Some)
        );
        assert_eq!(
            (percentile(&values[..1], 99.0), percentile(&values[..0], 99.0)),
            (Some(1), None)
        );
    }

    #[test]
    fn histograms_have_the_same_percentiles() {
        for count in [1, 2, 3, 10, 99, 100, 101, 1000] {
            let values: Vec<u64> = (1..=count).collect();
            let mut latency = crate::Latency::new();
            values.iter().for_each(|ns| latency.record_ns(*ns));
            for percent in [0.0, 10.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0] {
                assert_eq!(
                    Some(latency.p_ns(percent)),
                    percentile(&values, percent),
                    "{percent} of {count}"
                );
            }
        }
    }

    #[test]
    fn odd_and_even_numbers_of_runs() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN, 1.0]), Some(1.0));
    }

    #[test]
    fn spread_is_half_the_quartile_distance() {
        assert_eq!(quartiles(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some((2.0, 4.0)));
        assert_eq!(spread(&[9.0, 10.0, 11.0]), Some(0.05));
        assert_eq!(spread(&[10.0]), None);
        assert_eq!(spread(&[0.0, 0.0]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_run() {
        // The second run was twice as slow for both transports.
        assert_eq!(paired_ratio(&[1.0, 2.0, 1.0], &[2.0, 4.0, 2.0]), Some(0.5));
        assert_eq!(paired_ratio(&[1.0, 3.0], &[0.0, 2.0]), Some(1.5));
        assert_eq!(paired_ratio(&[], &[1.0]), None);
        assert_eq!(
            (ratio(1.0, 0.0), ratio(f64::NAN, 1.0), ratio(1.0, f64::INFINITY)),
            (None, None, None)
        );
    }

    proptest! {
        #[test]
        fn the_median_lies_between_the_quartiles(values in prop::collection::vec(-1e9..1e9f64, 1..50)) {
            let (low, high) = quartiles(&values).unwrap();
            let middle = median(&values).unwrap();
            prop_assert!(low <= middle && middle <= high);
        }
    }
}
