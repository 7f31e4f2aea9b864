//! Message lengths: the workloads W1–W5 of the Homa papers, a fixed size, or a mix of sizes.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use rand::{Rng, RngExt};
use thiserror::Error;

use crate::quantile_table::{self, Quantile};
use crate::size::{Size, SizeError};

/// A distribution of message lengths.
///
/// Text forms: `w1` to `w5`; a [`Size`] such as `100` or `10kB`; `mix` (90 % 100 B, 9 % 10 kB, 1 % 1 MB); or another mix as
/// `weight:size` pairs, `50:100,50:1kB`.
///
/// The methods take `clip`, the largest message that the transport carries (1,000,000 bytes towards the Linux module). Longer
/// lengths are cut to it, as by the Homa authors' `cp_node`, and means account for that. `None` cuts nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Workload {
    /// Memcached at Facebook: mean 189 bytes, longest 100,000.
    W1,
    /// A search application at Google: mean 442 bytes, longest 3.5 MB.
    W2,
    /// All applications of a Google data centre: mean 2.9 kB, longest 15 MB.
    W3,
    /// Hadoop at Facebook: mean 128 kB, longest 10 MB.
    W4,
    /// Web search (DCTCP paper): mean 2.6 MB, longest 29 MB.
    W5,
    /// One length for all messages, in bytes; at least 1 if read from text.
    Fixed(u32),
    /// Several sizes, each with a weight.
    Mix(Mix),
}

impl Workload {
    /// The length of the next message, in bytes.
    ///
    /// W1–W5 take one draw from `rng` and interpolate linearly between quantiles (rounded); costs about 20 ns.
    pub fn sample<R: Rng + ?Sized>(&self, rng: &mut R, clip: Option<u32>) -> u32 {
        let bytes = match self {
            Self::Fixed(bytes) => *bytes,
            Self::Mix(mix) => mix.sample(rng),
            published => published.quantile(rng.random::<f64>()).round() as u32,
        };
        bytes.min(clip.unwrap_or(u32::MAX))
    }

    /// The exact mean length in bytes: the integral of [`quantile`](Self::quantile), cut at `clip`.
    ///
    /// For W1–W5 it is within 0.52 % of the mean of the table to which the quantiles were fitted (0.50 % if clipped at 1,000,000).
    #[must_use]
    pub fn mean(&self, clip: Option<u32>) -> f64 {
        let clip = f64::from(clip.unwrap_or(u32::MAX));
        match self {
            Self::Fixed(bytes) => f64::from(*bytes).min(clip),
            Self::Mix(mix) => mix.mean(clip),
            published => {
                published.quantiles().windows(2).map(|pair| area(pair[0], pair[1], clip)).sum()
            }
        }
    }

    /// The length that a fraction `u` (0 to 1, clamped) of all messages does not exceed, in bytes, not rounded.
    #[must_use]
    pub fn quantile(&self, u: f64) -> f64 {
        match self {
            Self::Fixed(bytes) => f64::from(*bytes),
            Self::Mix(mix) => f64::from(mix.quantile(u)),
            published => interpolate(published.quantiles(), u.clamp(0.0, 1.0)),
        }
    }

    /// The [quantiles](Self::quantile) at these places and the longest length, in whole bytes within `bounds`, in rising order
    /// without duplicates.
    #[must_use]
    pub fn lengths_at(
        &self,
        places: impl Iterator<Item = f64>,
        bounds: RangeInclusive<u32>,
    ) -> Vec<u32> {
        let lengths = places.map(|place| self.quantile(place).round() as u32);
        let within = |length: u32| length.clamp(*bounds.start(), *bounds.end());
        lengths.chain([self.longest()]).map(within).collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// The longest possible length, before clipping.
    #[must_use]
    pub fn longest(&self) -> u32 {
        match self {
            Self::Fixed(bytes) => *bytes,
            Self::Mix(mix) => mix.shares.iter().map(|share| share.bytes).max().unwrap_or(1),
            published => published.quantiles()[published.quantiles().len() - 1].bytes,
        }
    }

    /// All possible lengths in rising order; `None` for W1–W5.
    #[must_use]
    pub fn lengths(&self) -> Option<Vec<u32>> {
        match self {
            Self::Fixed(bytes) => Some(vec![*bytes]),
            Self::Mix(mix) => {
                let lengths: BTreeSet<u32> = mix.shares.iter().map(|share| share.bytes).collect();
                Some(lengths.into_iter().collect())
            }
            _ => None,
        }
    }

    /// The quantiles of W1–W5; empty for the others.
    fn quantiles(&self) -> &'static [Quantile] {
        match self {
            Self::W1 => &quantile_table::W1,
            Self::W2 => &quantile_table::W2,
            Self::W3 => &quantile_table::W3,
            Self::W4 => &quantile_table::W4,
            Self::W5 => &quantile_table::W5,
            Self::Fixed(_) | Self::Mix(_) => &[],
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::W1 => f.write_str("w1"),
            Self::W2 => f.write_str("w2"),
            Self::W3 => f.write_str("w3"),
            Self::W4 => f.write_str("w4"),
            Self::W5 => f.write_str("w5"),
            Self::Fixed(bytes) => write_size(f, *bytes),
            Self::Mix(mix) => write!(f, "{mix}"),
        }
    }
}

impl FromStr for Workload {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        Ok(match text.trim().to_ascii_lowercase().as_str() {
            "w1" => Self::W1,
            "w2" => Self::W2,
            "w3" => Self::W3,
            "w4" => Self::W4,
            "w5" => Self::W5,
            "mix" => Self::Mix(Mix::default()),
            pairs if pairs.contains(':') => Self::Mix(pairs.parse()?),
            size => match size.parse::<Size>() {
                Ok(size) => Self::Fixed(size.bytes()),
                Err(SizeError::NotASize { .. }) => {
                    return Err(WorkloadError::Unknown { value: text.to_owned() });
                }
                Err(error) => return Err(error.into()),
            },
        })
    }
}

/// A mix of message sizes. The default is 90 % 100 B, 9 % 10 kB, 1 % 1 MB.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mix {
    /// At least one share, each with a weight and bytes of at least 1.
    shares: Vec<Share>,
    /// Sum of all weights.
    total: u64,
}

/// One size of a [`Mix`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Share {
    /// Weight relative to the other shares; at least 1.
    pub weight: u32,
    /// Message length; at least 1.
    pub bytes: u32,
}

impl Mix {
    /// A mix of `shares`. Refused if there is no share, or one has no weight or no bytes.
    pub fn new(shares: Vec<Share>) -> Result<Self, WorkloadError> {
        if shares.is_empty() || shares.iter().any(|share| share.weight == 0 || share.bytes == 0) {
            let spelled: Vec<String> =
                shares.iter().map(|share| format!("{}:{}", share.weight, share.bytes)).collect();
            return Err(WorkloadError::BadMix { value: spelled.join(",") });
        }
        let total = shares.iter().map(|share| u64::from(share.weight)).sum();
        Ok(Self { shares, total })
    }

    /// The sizes and their weights, as given.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    fn sample<R: Rng + ?Sized>(&self, rng: &mut R) -> u32 {
        let mut ticket = rng.random_range(0..self.total);
        for share in &self.shares {
            match ticket.checked_sub(u64::from(share.weight)) {
                Some(left) => ticket = left,
                None => return share.bytes,
            }
        }
        unreachable!("the ticket is below the sum of the weights")
    }

    fn mean(&self, clip: f64) -> f64 {
        let weighted = |share: &Share| f64::from(share.weight) * f64::from(share.bytes).min(clip);
        self.shares.iter().map(weighted).sum::<f64>() / self.total as f64
    }

    fn quantile(&self, u: f64) -> u32 {
        let mut ordered = self.shares.clone();
        ordered.sort_by_key(|share| share.bytes);
        let mut left = u.clamp(0.0, 1.0) * self.total as f64;
        for share in &ordered {
            left -= f64::from(share.weight);
            if left <= 0.0 {
                return share.bytes;
            }
        }
        ordered[ordered.len() - 1].bytes
    }
}

impl Default for Mix {
    fn default() -> Self {
        let share = |weight, bytes| Share { weight, bytes };
        Self { shares: vec![share(90, 100), share(9, 10_000), share(1, 1_000_000)], total: 100 }
    }
}

impl fmt::Display for Mix {
    /// `mix` for the default, `weight:size` pairs otherwise.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("mix");
        }
        for (position, share) in self.shares.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            write!(f, "{}:", share.weight)?;
            write_size(f, share.bytes)?;
        }
        Ok(())
    }
}

impl FromStr for Mix {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let bad = || WorkloadError::BadMix { value: text.to_owned() };
        let mut shares = Vec::new();
        for pair in text.split(',') {
            let (weight, size) = pair.trim().split_once(':').ok_or_else(bad)?;
            let weight = weight.trim().parse::<u32>().map_err(|_| bad())?;
            let bytes = size.parse::<Size>().map_err(|_| bad())?.bytes();
            shares.push(Share { weight, bytes });
        }
        Self::new(shares).map_err(|_| bad())
    }
}

/// An error of parsing a [`Workload`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// Neither a name nor a size.
    #[error(
        "workload `{value}`: expected w1 to w5, mix, a size such as 100, 10kB or 1MB, or weight:size pairs such as 90:100,10:10kB"
    )]
    Unknown {
        /// The given text.
        value: String,
    },
    /// An impossible size.
    #[error("invalid workload: {0}")]
    Size(#[from] SizeError),
    /// Pairs that do not make a mix.
    #[error(
        "workload `{value}`: expected weight:size pairs such as 90:100,9:10kB,1:1MB, with weights from 1 to {max} and sizes of at \
         least 1 byte",
        max = u32::MAX
    )]
    BadMix {
        /// The given text.
        value: String,
    },
}

fn write_size(f: &mut fmt::Formatter<'_>, bytes: u32) -> fmt::Result {
    match Size::new(bytes) {
        Some(size) => write!(f, "{size}"),
        None => f.write_str("0"),
    }
}

/// The quantile function at `u`, interpolated linearly between the neighbouring quantiles.
fn interpolate(quantiles: &[Quantile], u: f64) -> f64 {
    let above =
        quantiles.partition_point(|quantile| quantile.at <= u).clamp(1, quantiles.len() - 1);
    let (low, high) = (quantiles[above - 1], quantiles[above]);
    let (from, to) = (f64::from(low.bytes), f64::from(high.bytes));
    from + (to - from) * (u - low.at) / (high.at - low.at)
}

/// The integral of the quantile function between two quantiles, with lengths above `clip` cut to it.
fn area(low: Quantile, high: Quantile, clip: f64) -> f64 {
    let width = high.at - low.at;
    let (from, to) = (f64::from(low.bytes), f64::from(high.bytes));
    if to <= clip {
        return width * (from + to) / 2.0;
    }
    if from >= clip {
        return width * clip;
    }
    let below = (clip - from) / (to - from);
    width * (below * (from + clip) / 2.0 + (1.0 - below) * clip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::seeded;
    use proptest::prelude::*;

    const PUBLISHED: [Workload; 5] =
        [Workload::W1, Workload::W2, Workload::W3, Workload::W4, Workload::W5];

    #[test]
    fn means_are_those_of_the_published_tables_within_the_error_of_the_fit() {
        // Exact means of the tables, and the errors of the quantiles in thousandths of a percent.
        let exact = [189.17, 441.60, 2927.68, 127_796.64, 2_564_689.68];
        let errors = [32.0, 50.0, 519.0, 318.0, -1.0];
        for ((workload, exact), error) in PUBLISHED.iter().zip(exact).zip(errors) {
            let off = (workload.mean(None) / exact - 1.0) * 1e5;
            // Both sides are rounded: the error to 1, the mean to 0.01 bytes.
            assert!((off - error).abs() < 3.2, "{workload}: {off}");
        }
    }

    #[test]
    fn clipped_means_are_those_of_the_published_tables_within_the_error_of_the_fit() {
        let exact = [189.17, 433.32, 2423.11, 60_175.12, 385_315.51];
        let errors = [32.0, 78.0, 499.0, 118.0, -9.0];
        for ((workload, exact), error) in PUBLISHED.iter().zip(exact).zip(errors) {
            let off = (workload.mean(Some(1_000_000)) / exact - 1.0) * 1e5;
            // Both sides are rounded: the error to 1, the mean to 0.01 bytes.
            assert!((off - error).abs() < 3.2, "{workload}: {off}");
        }
    }

    #[test]
    fn quantiles_rise_from_zero_to_one() {
        for workload in PUBLISHED {
            let quantiles = workload.quantiles();
            assert_eq!((quantiles[0].at, quantiles[39].at), (0.0, 1.0), "{workload}");
            for pair in quantiles.windows(2) {
                assert!(
                    pair[0].at < pair[1].at && pair[0].bytes <= pair[1].bytes,
                    "{workload}: {pair:?}"
                );
            }
        }
    }

    #[test]
    fn sampling_agrees_with_the_integral() {
        // Clipped, so that the variance of the tail leaves the mean of 400,000 samples within 1 %.
        for workload in PUBLISHED.into_iter().chain([Workload::Mix(Mix::default())]) {
            let mut rng = seeded(7);
            let clip = Some(20_000);
            let total: f64 = (0..400_000).map(|_| f64::from(workload.sample(&mut rng, clip))).sum();
            let off = total / 400_000.0 / workload.mean(clip) - 1.0;
            assert!(off.abs() < 0.01, "{workload}: {off}");
        }
    }

    #[test]
    fn samples_keep_to_the_atoms_and_limits_of_the_table() {
        let mut rng = seeded(3);
        let samples: Vec<u32> = (0..100_000).map(|_| Workload::W1.sample(&mut rng, None)).collect();
        assert_eq!(samples.iter().min(), Some(&8));
        assert!(samples.iter().all(|bytes| *bytes <= Workload::W1.longest()));
        // 31.1 % of W1 are 8 bytes long.
        let atom = samples.iter().filter(|bytes| **bytes == 8).count() as f64 / 100_000.0;
        assert!((0.305..0.335).contains(&atom), "{atom}");
    }

    #[test]
    fn the_default_mix_is_90_9_1() {
        let mix: Workload = "mix".parse().unwrap();
        assert_eq!(mix.mean(None), 0.9 * 100.0 + 0.09 * 10_000.0 + 0.01 * 1_000_000.0);
        assert_eq!(mix, "90:100,9:10kB,1:1MB".parse().unwrap());
        assert_eq!(mix.to_string(), "mix");
        assert_eq!([0.5, 0.95, 0.995].map(|u| mix.quantile(u)), [100.0, 10_000.0, 1_000_000.0]);
        assert_eq!((mix.quantile(0.0), mix.longest()), (100.0, 1_000_000));
    }

    #[test]
    fn names_and_sizes_are_read_and_written() {
        for text in ["w1", "w2", "w3", "w4", "w5", "mix", "100", "10kB", "1MB", "1:7,2:64kB"] {
            assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
        }
        assert_eq!("W3".parse::<Workload>(), Ok(Workload::W3));
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        let error = |text: &str| text.parse::<Workload>().unwrap_err().to_string();
        assert_eq!(
            error("w6"),
            "workload `w6`: expected w1 to w5, mix, a size such as 100, 10kB or 1MB, \
             or weight:size pairs such as 90:100,10:10kB"
        );
        assert_eq!(error("0"), "invalid workload: size `0`: a message has at least 1 byte");
        for text in ["0:100", "1:0", "1:", ":", "5:100,", "-1:5", "1:100;2:5"] {
            assert!(
                error(text).starts_with(&format!("workload `{text}`: expected weight:size")),
                "{}",
                error(text)
            );
        }
    }

    proptest! {
        #[test]
        fn quantiles_never_fall(which in 0..5usize, a in 0.0..=1.0f64, b in 0.0..=1.0f64) {
            let (low, high) = (a.min(b), a.max(b));
            let workload = &PUBLISHED[which];
            prop_assert!(workload.quantile(low) <= workload.quantile(high));
            prop_assert!(workload.quantile(low) >= workload.quantile(0.0));
            prop_assert!(workload.quantile(high) <= f64::from(workload.longest()));
        }

        #[test]
        fn the_clipped_mean_rises_with_the_clip_to_the_full_mean(which in 0..5usize, a: u32, b: u32) {
            let workload = &PUBLISHED[which];
            let (low, high) = (workload.mean(Some(a.min(b))), workload.mean(Some(a.max(b))));
            prop_assert!(low <= high && high <= workload.mean(None) * (1.0 + 1e-12));
        }

        #[test]
        fn a_mix_is_read_as_it_is_written(pairs in prop::collection::vec((1..1000u32, 1..u32::MAX), 1..6)) {
            let shares = pairs.into_iter().map(|(weight, bytes)| Share { weight, bytes }).collect();
            let workload = Workload::Mix(Mix::new(shares).unwrap());
            prop_assert_eq!(workload.to_string().parse::<Workload>(), Ok(workload));
        }

        #[test]
        fn reading_never_panics(text in ".{0,20}") {
            let _ = text.parse::<Workload>();
        }
    }
}
