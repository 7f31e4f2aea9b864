//! A number that changes over time, such as bytes in flight.

use crate::report::{Cell, Table};

/// Upper bound on intervals of a table. A shorter interval is lengthened.
const INTERVALS_MAX: u64 = 10_000;

/// The changes of a number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Level(Vec<(u64, i64)>);

/// The mean and the maximum of a number in an interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct During {
    pub(crate) mean: f64,
    pub(crate) most: i64,
}

impl During {
    pub(crate) const NOTHING: Self = Self { mean: 0.0, most: 0 };
}

impl Level {
    /// Adds `by` at this time.
    pub(crate) fn change(&mut self, at: u64, by: i64) {
        self.0.push((at, by));
    }

    /// Adds `by` from one time until another.
    pub(crate) fn raise(&mut self, from: u64, until: u64, by: u64) {
        self.change(from, by as i64);
        self.change(until.max(from), -(by as i64));
    }

    /// Adds the changes of another number.
    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The mean and the maximum from 0 to `end`.
    pub(crate) fn overall(&self, end: u64) -> During {
        let all = self.over(end.max(1), end.max(1));
        all.first().copied().unwrap_or(During::NOTHING)
    }

    /// The mean and the maximum in each interval of this length, up to `end`.
    pub(crate) fn over(&self, interval: u64, end: u64) -> Vec<During> {
        let mut changes = self.0.clone();
        // Decreases come before increases of the same time, so that they do not add up.
        changes.sort_unstable();
        let (mut changes, mut level, mut at) = (changes.into_iter().peekable(), 0_i64, 0);
        let mut intervals = Vec::new();
        while at < end {
            let until = at.saturating_add(interval).min(end);
            while let Some((_, by)) = changes.next_if(|(time, _)| *time <= at) {
                level = level.saturating_add(by);
            }
            let (from, mut sum, mut most) = (at, 0.0, level);
            while let Some((time, by)) = changes.next_if(|(time, _)| *time < until) {
                sum += level as f64 * time.saturating_sub(at) as f64;
                (at, level) = (time.max(at), level.saturating_add(by));
                most = most.max(level);
            }
            sum += level as f64 * (until - at) as f64;
            intervals.push(During { mean: sum / (until - from) as f64, most });
            at = until;
        }
        intervals
    }
}

/// The wanted interval, or a longer one if a trace that ends at `end` would have too many intervals.
pub(crate) fn interval(wanted: u64, end: u64) -> u64 {
    wanted.max(end.div_ceil(INTERVALS_MAX)).max(1)
}

/// Fills a table whose first column is the start of an interval, followed by the mean and the maximum of each level. Intervals in
/// which all levels are 0 have no row.
pub(crate) fn fill(table: &mut Table, levels: &[&Level], wanted: u64, end: u64) {
    let interval = interval(wanted, end);
    let levels: Vec<_> = levels.iter().map(|level| level.over(interval, end)).collect();
    for index in 0..levels.first().map_or(0, Vec::len) {
        if levels.iter().all(|level| level[index] == During::NOTHING) {
            continue;
        }
        let cells = levels.iter().flat_map(|level| {
            [level[index].mean.into(), Cell::Count(level[index].most.max(0) as u64)]
        });
        table.row([Cell::nanos(index as u64 * interval)].into_iter().chain(cells));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_by_time() {
        let mut level = Level::default();
        level.raise(5, 15, 100);
        level.raise(15, 20, 40);
        let of = |mean, most| During { mean, most };
        assert_eq!(level.over(10, 30), [of(50.0, 100), of(70.0, 100), of(0.0, 0)]);
        assert_eq!(level.overall(20), of(60.0, 100));
        assert_eq!(Level::default().over(10, 0), []);
    }
}
