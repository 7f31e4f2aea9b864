//! Percentiles of numbers, such as times in nanoseconds.

use crate::report::Cell;

/// Sorted numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Distribution(Vec<u64>);

impl FromIterator<u64> for Distribution {
    fn from_iter<T: IntoIterator<Item = u64>>(values: T) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        Self(values)
    }
}

impl Distribution {
    /// The columns that [`times`](Self::times) fills.
    pub(crate) const TIMES: [&str; 6] =
        ["count", "least_us", "p50_us", "p90_us", "p99_us", "most_us"];

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The percentile by nearest rank, as in benchmark results; 0 without numbers.
    pub(crate) fn percentile(&self, percent: usize) -> u64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or(0)
    }

    pub(crate) fn median(&self) -> u64 {
        self.percentile(50)
    }

    pub(crate) fn least(&self) -> u64 {
        self.0.first().copied().unwrap_or(0)
    }

    pub(crate) fn most(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// The mean; 0 without numbers.
    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().map(|&value| value as f64).sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Cells for [`TIMES`](Self::TIMES), from nanoseconds. Without numbers, the times are missing.
    pub(crate) fn times(&self) -> [Cell; 6] {
        let of = |nanos| if self.0.is_empty() { Cell::Missing } else { Cell::nanos(nanos) };
        let count = Cell::from(self.count());
        let [p50, p90, p99] = [50, 90, 99].map(|percent| of(self.percentile(percent)));
        [count, of(self.least()), p50, p90, p99, of(self.most())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_numbers() {
        let hundred: Distribution = (0..100).rev().collect();
        assert_eq!((hundred.least(), hundred.median(), hundred.percentile(99)), (0, 49, 98));
        let two: Distribution = [1, 9].into_iter().collect();
        assert_eq!([0, 50, 51, 100].map(|percent| two.percentile(percent)), [1, 1, 9, 9]);
        assert_eq!((hundred.most(), hundred.mean()), (99, 49.5));
        let none = Distribution::default();
        assert_eq!((none.median(), none.mean(), none.times()[1].clone()), (0, 0.0, Cell::Missing));
    }
}
