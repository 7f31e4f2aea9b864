//! Slowdowns: times of messages relative to the least possible time, by size.

use hdrhistogram::Histogram;

use crate::paper::deciles;

/// Slowdowns are recorded in thousandths, with three digits.
const PER_ONE: f64 = 1e3;

#[derive(Clone, Debug)]
struct Slowdown {
    histogram: Histogram<u32>,
    sum: f64,
}

impl Slowdown {
    fn new() -> Self {
        Self { histogram: Histogram::new(3).expect("three digits are possible"), sum: 0.0 }
    }

    fn record(&mut self, slowdown: f64) {
        self.histogram
            .record((slowdown * PER_ONE).round() as u64)
            .expect("it grows with its values");
        self.sum += slowdown;
    }

    fn percentile(&self, percent: f64) -> f64 {
        let value = self.histogram.value_at_percentile(percent);
        self.histogram.median_equivalent(value) as f64 / PER_ONE
    }
}

/// Messages of one class of sizes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SizeClass {
    /// The largest size, in bytes.
    pub bytes: u32,
    /// Messages, including unfinished ones, which count with their age at the end of the run.
    pub messages: u64,
    /// Messages that had not ended at the end of the run.
    pub unfinished: u64,
    /// Mean slowdown.
    pub mean: f64,
    /// Median slowdown.
    pub p50: f64,
    /// 99th percentile of the slowdown.
    pub p99: f64,
    /// 99.9th percentile of the slowdown.
    pub p999: f64,
}

/// A decile of the messages, shortest first.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decile {
    /// Its largest size, in bytes.
    pub bytes: u32,
    /// Number of its messages. A size that spans two deciles counts in proportion.
    pub messages: f64,
    /// Mean of the sizes' median slowdowns, by number of messages.
    pub p50: f64,
    /// Mean of the sizes' 99th percentiles, by number of messages.
    pub p99: f64,
    /// Mean of the sizes' 99.9th percentiles, by number of messages.
    pub p999: f64,
    /// Half the 95 % confidence interval of `p50`, from the [`BATCHES`] parts of the run.
    pub p50_interval: f64,
    /// Half the 95 % confidence interval of `p99`.
    pub p99_interval: f64,
}

/// Parts of the measured time that are evaluated separately, which gives confidence intervals.
pub const BATCHES: usize = 5;
/// Student's t for 95 % and `BATCHES - 1` degrees of freedom.
const STUDENT_T: f64 = 2.776;

/// Slowdowns by class of sizes, in the whole run and in each part of it.
#[derive(Clone, Debug)]
pub(crate) struct Slowdowns {
    classes: Vec<u32>,
    whole: Vec<Slowdown>,
    /// Number of the recorded messages of each class that had not ended.
    unfinished: Vec<u64>,
    parts: [Vec<Slowdown>; BATCHES],
}

impl Slowdowns {
    pub(crate) fn new(classes: Vec<u32>) -> Self {
        let empty = vec![Slowdown::new(); classes.len()];
        let unfinished = vec![0; classes.len()];
        Self { parts: std::array::from_fn(|_| empty.clone()), whole: empty, unfinished, classes }
    }

    /// The class of a size.
    #[inline]
    pub(crate) fn class(&self, bytes: u32) -> usize {
        self.classes.partition_point(|&end| end < bytes).min(self.classes.len() - 1)
    }

    #[inline]
    pub(crate) fn record(&mut self, class: usize, part: usize, slowdown: f64) {
        self.whole[class].record(slowdown);
        self.parts[part.min(BATCHES - 1)][class].record(slowdown);
    }

    /// Records a message that has not ended, with its age as its time.
    pub(crate) fn record_unfinished(&mut self, class: usize, part: usize, slowdown: f64) {
        self.record(class, part, slowdown);
        self.unfinished[class] += 1;
    }

    /// Classes with recorded messages.
    pub(crate) fn sizes(&self) -> Vec<SizeClass> {
        self.sizes_of(&self.whole)
    }

    /// Deciles of the messages, with intervals from the parts. `share` is the share of a class: the paper's deciles follow the
    /// workload's shares, not the drawn messages.
    pub(crate) fn deciles(&self, share: impl Fn(&SizeClass) -> f64) -> Vec<Decile> {
        let mut deciles = in_deciles(&self.sizes(), &share);
        let parts: Vec<Vec<Decile>> =
            self.parts.iter().map(|part| in_deciles(&self.sizes_of(part), &share)).collect();
        if parts.iter().all(|part| part.len() == deciles.len()) {
            for (index, decile) in deciles.iter_mut().enumerate() {
                let interval = |value: fn(&Decile) -> f64| {
                    half_interval(parts.iter().map(|part| value(&part[index])))
                };
                decile.p50_interval = interval(|decile| decile.p50);
                decile.p99_interval = interval(|decile| decile.p99);
            }
        }
        deciles
    }

    fn sizes_of(&self, slowdowns: &[Slowdown]) -> Vec<SizeClass> {
        let row = |((&bytes, slowdown), &unfinished): ((&u32, &Slowdown), &u64)| SizeClass {
            bytes,
            messages: slowdown.histogram.len(),
            unfinished,
            mean: slowdown.sum / slowdown.histogram.len() as f64,
            p50: slowdown.percentile(50.0),
            p99: slowdown.percentile(99.0),
            p999: slowdown.percentile(99.9),
        };
        let all = self.classes.iter().zip(slowdowns).zip(&self.unfinished);
        all.filter(|((_, slowdown), _)| slowdown.sum > 0.0).map(row).collect()
    }
}

/// Half the 95 % confidence interval of the mean of independent values.
fn half_interval(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = BATCHES as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean) * (value - mean)).sum::<f64>() / (count - 1.0);
    STUDENT_T * (variance / count).sqrt()
}

/// Gathers sizes into deciles of the messages.
fn in_deciles(sizes: &[SizeClass], share: impl Fn(&SizeClass) -> f64) -> Vec<Decile> {
    if sizes.is_empty() {
        return Vec::new();
    }
    let shares: Vec<f64> = sizes.iter().map(share).collect();
    let total: f64 = shares.iter().sum();
    let column = |value: fn(&SizeClass) -> f64| {
        deciles(shares.iter().copied().zip(sizes.iter().map(value)).collect())
    };
    let (p50, p99, p999) = (column(|s| s.p50), column(|s| s.p99), column(|s| s.p999));
    let messages = sizes.iter().map(|size| size.messages as f64).sum::<f64>() / 10.0;
    let end = |decile: usize| {
        let mut sum = 0.0;
        let reached = |share: &f64| {
            sum += share;
            sum >= total * (decile + 1) as f64 / 10.0 - 1e-9 * total
        };
        shares.iter().position(reached).unwrap_or(sizes.len() - 1)
    };
    let row = |decile: usize| Decile {
        bytes: sizes[end(decile)].bytes,
        messages,
        p50: p50[decile],
        p99: p99[decile],
        p999: p999[decile],
        p50_interval: 0.0,
        p99_interval: 0.0,
    };
    (0..10).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_good_to_a_quarter_percent() {
        let mut slowdowns = Slowdowns::new(vec![10, 100]);
        let class = slowdowns.class(50);
        for step in 0..10_000 {
            slowdowns.record(class, step as usize % BATCHES, 1.0 + f64::from(step) / 1_000.0);
        }
        let sizes = slowdowns.sizes();
        assert_eq!((sizes.len(), sizes[0].bytes, sizes[0].messages), (1, 100, 10_000));
        assert!((sizes[0].p50 / 6.0 - 1.0).abs() < 0.003, "{}", sizes[0].p50);
        assert!((sizes[0].p99 / 10.9 - 1.0).abs() < 0.003, "{}", sizes[0].p99);
        // The parts have the same slowdowns, to a bucket.
        let decile = slowdowns.deciles(|size| size.messages as f64)[0];
        assert!(decile.p99_interval < 0.05, "{decile:?}");
    }

    #[test]
    fn intervals_grow_with_what_the_parts_differ() {
        let half = half_interval([1.0, 2.0, 3.0, 4.0, 5.0].into_iter());
        assert!((half - 2.776 * 0.5f64.sqrt()).abs() < 1e-9, "{half}");
    }

    #[test]
    fn tenths_share_a_size_between_them() {
        let size = |bytes, messages, p50| SizeClass {
            bytes,
            messages,
            unfinished: 0,
            mean: 1.0,
            p50,
            p99: 2.0,
            p999: 3.0,
        };
        let sizes = [size(1, 15, 1.0), size(2, 85, 3.0)];
        let deciles = in_deciles(&sizes, |size| size.messages as f64);
        assert_eq!((deciles[0].bytes, deciles[0].p50), (1, 1.0));
        assert!((deciles[1].p50 - 2.0).abs() < 1e-9 && deciles[1].bytes == 2);
        assert!((deciles[9].p50 - 3.0).abs() < 1e-9);
    }
}
