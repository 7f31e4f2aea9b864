//! The Homa paper's measurements, for comparison.

mod tables;

pub use self::tables::{Bin, Deciles};

use apus_load::Random;
use rand::RngExt;

/// One of the paper's workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaperWorkload {
    /// Its number, 1 to 5.
    number: u8,
}

impl PaperWorkload {
    /// W1 to W5; `None` for other numbers.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (1..=5).contains(&number).then_some(Self { number })
    }

    /// Its number, 1 to 5.
    #[must_use]
    pub fn number(self) -> u8 {
        self.number
    }

    /// Its sizes and the paper's results for them, shortest first.
    #[must_use]
    pub fn bins(self) -> &'static [Bin] {
        match self.number {
            1 => &tables::W1,
            2 => &tables::W2,
            3 => &tables::W3,
            4 => &tables::W4,
            _ => &tables::W5,
        }
    }

    /// Priority levels for scheduled packets in the paper's runs, which is also the number of messages granted at a time.
    #[must_use]
    pub fn scheduled_levels(self) -> u8 {
        [1, 3, 4, 7, 7][usize::from(self.number) - 1]
    }

    /// Share of message bytes in all bytes of a link at the paper's nominal load, which includes packets' headers and grants: the
    /// factors of `loadFactor` in the authors' `homaTransportConfig.ini`.
    #[must_use]
    pub fn payload_share(self) -> f64 {
        [0.657, 0.796, 0.887, 0.898, 0.898][usize::from(self.number) - 1]
    }

    /// The paper's Homa at 80 % load.
    #[must_use]
    pub fn homa(self) -> Deciles {
        let bins = self.bins();
        let column = |value: fn(&Bin) -> f64| {
            deciles(bins.iter().map(|bin| (bin.percent, value(bin))).collect())
        };
        let (p50, p99) = (column(|bin| bin.p50), column(|bin| bin.p99));
        std::array::from_fn(|decile| (p50[decile], p99[decile]))
    }

    /// The paper's pFabric at 80 % load, computed in the same way from the same data.
    #[must_use]
    pub fn pfabric(self) -> Deciles {
        tables::PFABRIC[usize::from(self.number) - 1]
    }

    /// The paper's oracle at 80 % load. Values below 1 show that its baseline leaves out some time at the hosts.
    #[must_use]
    pub fn oracle(self) -> Deciles {
        tables::ORACLE[usize::from(self.number) - 1]
    }

    /// A random size: a bin by its share, then a uniform size from the part of the bin that has the bin's mean.
    pub(crate) fn sample(self, rng: &mut Random) -> u32 {
        let bins = self.bins();
        let mut left = rng.random::<f64>() * 100.0;
        let mut index = 0;
        while index + 1 < bins.len() && left >= bins[index].percent {
            left -= bins[index].percent;
            index += 1;
        }
        let (low, high) = self.span(index);
        self.whole_packets(low + (rng.random::<f64>() * f64::from(high - low + 1)) as u32)
    }

    /// The range of sizes drawn from a bin.
    fn span(self, index: usize) -> (u32, u32) {
        let bins = self.bins();
        let Bin { bytes: high, mean, .. } = bins[index];
        let low = index.checked_sub(1).map_or(1, |before| bins[before].bytes + 1);
        if mean - low < high - mean { (low, 2 * mean - low) } else { (mean - (high - mean), high) }
    }

    /// Rounds W5's sizes up to whole packets.
    fn whole_packets(self, bytes: u32) -> u32 {
        if self.number == 5 { bytes.div_ceil(1442) * 1442 } else { bytes }
    }

    /// Calls `visit` with 64 representative sizes of each bin and their shares of the messages.
    pub(crate) fn each_size(self, mut visit: impl FnMut(u32, f64)) {
        const POINTS: u32 = 64;
        for (index, bin) in self.bins().iter().enumerate() {
            let (low, high) = self.span(index);
            let points = POINTS.min(high - low + 1);
            for point in 0..points {
                let at = (f64::from(point) + 0.5) / f64::from(points) * f64::from(high - low + 1);
                let bytes = self.whole_packets(low + at as u32);
                visit(bytes, bin.percent / 100.0 / f64::from(points));
            }
        }
    }
}

/// The mean of a value in each decile of the messages, from each size's share and value. A size that spans two deciles counts in
/// both in proportion.
#[must_use]
pub fn deciles(sizes: Vec<(f64, f64)>) -> [f64; 10] {
    let total: f64 = sizes.iter().map(|(share, _)| share).sum();
    let mut sums = [0.0; 10];
    let mut weights = [0.0; 10];
    let mut before = 0.0;
    for (share, value) in sizes {
        let after = before + share / total;
        for decile in 0..10 {
            let (from, to) = (decile as f64 / 10.0, (decile + 1) as f64 / 10.0);
            let part: f64 = after.min(to) - before.max(from);
            if part > 1e-12 {
                sums[decile] += part * value;
                weights[decile] += part;
            }
        }
        before = after;
    }
    std::array::from_fn(|decile| sums[decile] / weights[decile].max(1e-12))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_load::seeded;

    const MEANS: [f64; 5] = [187.8, 440.8, 2_927.0, 127_797.0, 2_515_857.0];

    fn all() -> impl Iterator<Item = PaperWorkload> {
        (1..=5).filter_map(PaperWorkload::new)
    }

    #[test]
    fn means_are_the_papers() {
        for (workload, mean) in all().zip(MEANS) {
            let mut computed = 0.0;
            workload.each_size(|bytes, share| computed += f64::from(bytes) * share);
            assert!((computed / mean - 1.0).abs() < 0.01, "{workload:?}: {computed}");
        }
    }

    #[test]
    fn samples_have_the_mean_and_stay_in_their_bins() {
        let mut rng = seeded(3);
        for (workload, mean) in all().zip(MEANS) {
            let n = 400_000;
            let sum: f64 = (0..n).map(|_| f64::from(workload.sample(&mut rng))).sum();
            assert!((sum / f64::from(n) / mean - 1.0).abs() < 0.05, "{workload:?}");
            let small = workload.bins()[0].bytes;
            let share = (0..n).filter(|_| workload.sample(&mut rng) <= small).count();
            let wanted = workload.bins()[0].percent / 100.0;
            assert!((share as f64 / f64::from(n) - wanted).abs() < 0.002, "{workload:?}");
        }
    }

    #[test]
    fn deciles_are_those_of_the_data() {
        // Computed independently from the paper's data (anchors: W4, first and last decile).
        let w4 = PaperWorkload::new(4).unwrap().homa();
        assert!((w4[0].0 - 1.44).abs() < 0.01 && (w4[0].1 - 2.11).abs() < 0.01, "{:?}", w4[0]);
        assert!((w4[9].0 - 2.11).abs() < 0.01 && (w4[9].1 - 5.94).abs() < 0.01, "{:?}", w4[9]);
    }
}
