//! Latencies of calls: a histogram of nanoseconds, in total and by message size.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Upper bound on recorded latencies, 100 s. Longer ones count as 100 s.
const MAX_NS: u64 = 100_000_000_000;

/// Significant digits: a recorded value is reported within 0.1 %.
const DIGITS: u8 = 3;

/// A histogram of latencies between 1 ns and 100 s, with three digits. Takes about 230 kB. Recording does not allocate and costs a
/// few nanoseconds.
///
/// Its text form is a list of pairs of nanoseconds and counts.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latency {
    histogram: Histogram<u64>,
}

impl Latency {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("1 ns to 100 s is a valid range");
        Self { histogram }
    }

    /// Records one latency in nanoseconds; 0 counts as 1, and more than 100 s as 100 s.
    pub fn record_ns(&mut self, ns: u64) {
        self.record_many_ns(ns, 1);
    }

    /// Records `count` calls of `ns` nanoseconds each.
    pub fn record_many_ns(&mut self, ns: u64, count: u64) {
        self.histogram.saturating_record_n(ns.max(1), count);
    }

    /// Adds the latencies of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both histograms have the same bounds");
    }

    /// Number of recorded latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether no latency was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// The latency in µs that `percent` % (0 to 100) of the calls did not exceed: `p(50.0)` is the median. 0 if empty.
    #[must_use]
    pub fn p(&self, percent: f64) -> f64 {
        self.p_ns(percent) as f64 / 1e3
    }

    /// As [`p`](Self::p), in nanoseconds.
    #[must_use]
    pub fn p_ns(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent)
    }

    /// The shortest latency, in µs. 0 if empty.
    #[must_use]
    pub fn min_us(&self) -> f64 {
        if self.is_empty() { 0.0 } else { self.histogram.min() as f64 / 1e3 }
    }

    /// The longest latency, in µs. 0 if empty.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        self.histogram.max() as f64 / 1e3
    }

    /// The mean latency, in µs. 0 if empty.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.histogram.mean() / 1e3
    }

    /// The cumulative distribution for a plot, as (latency in µs, fraction of calls that took at most this long), both rising, with
    /// a last fraction of 1. Has at most about `points` points (at least two), placed where the curve moves in either direction of
    /// a plot with a logarithmic latency axis, so that the body and the tail keep their shape.
    #[must_use]
    pub fn cdf(&self, points: usize) -> Vec<(f64, f64)> {
        let (Some(first), total) = (self.first_ns(), self.count() as f64) else {
            return Vec::new();
        };
        let decades = (self.histogram.max() as f64 / first as f64).log10().max(f64::MIN_POSITIVE);
        let step = 2.0 / points.max(4) as f64;
        let mut curve: Vec<(f64, f64)> = vec![(first as f64 / 1e3, 0.0)];
        let (mut seen, mut last) = (0, curve[0]);
        for bin in self.histogram.iter_recorded() {
            seen += bin.count_at_value();
            let here = (bin.value_iterated_to() as f64 / 1e3, seen as f64 / total);
            let moved = (here.1 - last.1) + (here.0 / last.0).log10() / decades;
            if moved >= step || seen == self.count() {
                curve.push(here);
                last = here;
            }
        }
        curve
    }

    fn first_ns(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.histogram.min().max(1))
    }
}

impl From<Latency> for Vec<(u64, u64)> {
    fn from(latency: Latency) -> Self {
        let bins = latency.histogram.iter_recorded();
        bins.map(|bin| (bin.value_iterated_to(), bin.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for Latency {
    fn from(bins: Vec<(u64, u64)>) -> Self {
        let mut latency = Self::new();
        bins.into_iter().for_each(|(ns, count)| latency.record_many_ns(ns, count));
        latency
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latency")
            .field("count", &self.count())
            .field("p50_us", &self.p(50.0))
            .field("p99_us", &self.p(99.0))
            .field("max_us", &self.max_us())
            .finish()
    }
}

/// Size classes per factor of ten: neighbours are 26 % apart, which suits a plot.
const CLASSES_PER_DECADE: f64 = 10.0;

/// Latency by message size: one histogram per size class. The classes are equally wide on a logarithmic scale.
///
/// A class keeps the mean of its recorded sizes, so a workload of few sizes is reported at exactly those sizes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct BySize {
    classes: BTreeMap<u32, SizeClass>,
}

/// The calls of one size class.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SizeClass {
    bytes_total: u64,
    latency: Latency,
}

impl SizeClass {
    /// The mean size of the messages in this class, in bytes.
    #[must_use]
    pub fn bytes_mean(&self) -> f64 {
        self.bytes_total as f64 / self.latency.count().max(1) as f64
    }

    /// The latencies of the calls in this class.
    #[must_use]
    pub fn latency(&self) -> &Latency {
        &self.latency
    }
}

impl BySize {
    /// Empty, without classes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a call with a message of `bytes` bytes that took `ns` nanoseconds. The first call of a class allocates its
    /// histogram.
    pub fn record(&mut self, bytes: u32, ns: u64) {
        let class = self.classes.entry(class_of(bytes)).or_default();
        class.bytes_total = class.bytes_total.saturating_add(u64::from(bytes));
        class.latency.record_ns(ns);
    }

    /// Adds the latencies of another record.
    pub fn merge(&mut self, other: &Self) {
        for (number, theirs) in &other.classes {
            let ours = self.classes.entry(*number).or_default();
            ours.bytes_total = ours.bytes_total.saturating_add(theirs.bytes_total);
            ours.latency.merge(&theirs.latency);
        }
    }

    /// The classes with calls, from short to long messages.
    pub fn classes(&self) -> impl Iterator<Item = &SizeClass> {
        self.classes.values()
    }

    /// The latencies of all sizes.
    #[must_use]
    pub fn total(&self) -> Latency {
        self.classes().fold(Latency::new(), |mut total, class| {
            total.merge(&class.latency);
            total
        })
    }

    /// Points for a plot of latency against size: (mean bytes, µs at `percent` %), one per class.
    #[must_use]
    pub fn latency_points(&self, percent: f64) -> Vec<(f64, f64)> {
        self.classes().map(|class| (class.bytes_mean(), class.latency.p(percent))).collect()
    }

    /// Points for a plot of slowdown against size: (mean bytes, latency at `percent` % over the ideal latency of the size), one per
    /// class. `ideal_us` gives the least possible latency of a message of this many bytes, in µs.
    #[must_use]
    pub fn slowdown_points(&self, percent: f64, ideal_us: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        self.classes()
            .map(|class| {
                (class.bytes_mean(), class.latency.p(percent) / ideal_us(class.bytes_mean()))
            })
            .collect()
    }
}

fn class_of(bytes: u32) -> u32 {
    (f64::from(bytes.max(1)).log10() * CLASSES_PER_DECADE) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recorded(values: &[u64]) -> Latency {
        let mut latency = Latency::new();
        values.iter().for_each(|ns| latency.record_ns(*ns));
        latency
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let latency = recorded(&(1..=1000).map(|us| us * 1000).collect::<Vec<_>>());
        for (percent, us) in
            [(0.0, 1.0), (50.0, 500.0), (99.0, 990.0), (99.9, 999.0), (100.0, 1000.0)]
        {
            assert!(
                (latency.p(percent) / us - 1.0).abs() < 0.002,
                "p{percent}: {}",
                latency.p(percent)
            );
        }
        assert!((latency.mean_us() / 500.5 - 1.0).abs() < 0.001);
        assert_eq!(latency.count(), 1000);
    }

    #[test]
    fn empty_gives_zeros_and_no_curve() {
        let latency = Latency::new();
        assert_eq!(
            (latency.p(50.0), latency.min_us(), latency.max_us(), latency.mean_us()),
            (0.0, 0.0, 0.0, 0.0)
        );
        assert!(latency.is_empty() && latency.cdf(100).is_empty());
    }

    #[test]
    fn out_of_range_is_clamped() {
        let latency = recorded(&[0, u64::MAX]);
        assert_eq!(latency.count(), 2);
        assert_eq!(latency.p_ns(0.0), 1);
        assert!((latency.max_us() / 1e8 - 1.0).abs() < 0.001, "{}", latency.max_us());
    }

    #[test]
    fn the_curve_keeps_body_and_tail_with_few_points() {
        let mut latency = Latency::new();
        (0..10_000).for_each(|n| latency.record_ns(4000 + n % 500));
        (0..10).for_each(|n| latency.record_ns(100_000 * (n + 1)));
        let curve = latency.cdf(50);
        assert!((10..=60).contains(&curve.len()), "{}", curve.len());
        assert!(curve.iter().filter(|point| point.0 < 5.0).count() >= 10);
        assert!(curve.iter().filter(|point| point.0 > 90.0).count() >= 5);
        assert_eq!(curve[curve.len() - 1].1, 1.0);
    }

    #[test]
    fn few_sizes_are_reported_at_exactly_those() {
        let mut by_size = BySize::new();
        for (bytes, ns) in [(100, 5000), (100, 7000), (10_000, 20_000), (1_000_000, 400_000)] {
            by_size.record(bytes, ns);
        }
        let sizes: Vec<f64> = by_size.classes().map(SizeClass::bytes_mean).collect();
        assert_eq!(sizes, [100.0, 10_000.0, 1_000_000.0]);
        let slowdown = by_size.slowdown_points(100.0, |bytes| 1.0 + bytes / 1e4);
        assert!((slowdown[1].1 - 10.0).abs() < 0.02, "{slowdown:?}");
        assert_eq!(by_size.total().count(), 4);
    }

    proptest! {
        #[test]
        fn every_percentile_is_within_a_thousandth(mut values in prop::collection::vec(1..MAX_NS, 1..60), percent in 0.0..=100.0f64) {
            let latency = recorded(&values);
            values.sort_unstable();
            let rank = ((percent / 100.0 * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1] as f64;
            let neighbour = values[rank.min(values.len() - 1)] as f64;
            let got = latency.p_ns(percent) as f64;
            // The histogram's rounding of the rank may select the next value.
            prop_assert!((got / exact - 1.0).abs() <= 0.001 || (got / neighbour - 1.0).abs() <= 0.001, "{} {} {}", got, exact, neighbour);
        }

        #[test]
        fn merging_is_recording_in_one(a in prop::collection::vec(0..MAX_NS, 0..40), b in prop::collection::vec(0..MAX_NS, 0..40)) {
            let mut merged = recorded(&a);
            merged.merge(&recorded(&b));
            let whole: Vec<u64> = a.iter().chain(&b).copied().collect();
            prop_assert_eq!(merged, recorded(&whole));
        }

        #[test]
        fn curves_rise_to_one(values in prop::collection::vec(0..MAX_NS, 1..200), points in 0..100usize) {
            let curve = recorded(&values).cdf(points);
            prop_assert!(curve.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
            prop_assert_eq!(curve[curve.len() - 1].1, 1.0);
            prop_assert!(curve.len() <= points.max(4) + 3);
        }

        #[test]
        fn classes_keep_every_call_in_order_of_size(calls in prop::collection::vec((1..u32::MAX, 1..MAX_NS), 1..60)) {
            let mut by_size = BySize::new();
            calls.iter().for_each(|(bytes, ns)| by_size.record(*bytes, *ns));
            prop_assert_eq!(by_size.total().count(), calls.len() as u64);
            let sizes: Vec<f64> = by_size.classes().map(SizeClass::bytes_mean).collect();
            prop_assert!(sizes.is_sorted());
        }
    }
}
