//! The comparison of two adjacent figures, in words.
//!
//! Tables, cards and the demo use one rule, so that no sentence contradicts the numbers beside it:
//!
//! 1. The ratio is computed from the two figures *as shown*, rounded.
//! 2. Figures at most 2 % apart are the "same".
//! 3. If the ratios of single runs contradict the figures shown, no direction is stated: "runs disagree".
//! 4. A refused measurement is not compared: "refused".
//! 5. Runs whose floors differ by more than a fifth are not compared; if these are most of the runs, nothing is: "other pace".
//! 6. Without two figures above zero there is no comparison: "—".

use std::ops::RangeInclusive;

use super::column::{Column, figure};
use super::table::Standing;

/// Ratios of figures that are the same to a reader.
const SAME: RangeInclusive<f64> = 0.98..=1.02;

/// The result of a comparison of a figure with its reference.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Comparison {
    /// There is no figure or no reference.
    Missing,
    /// One of the two measurements was refused.
    Refused,
    /// The machine had another pace in most of the runs.
    OtherPace,
    /// The difference is insignificant.
    Same,
    /// The single runs contradict the figures.
    RunsDisagree,
    /// The figure divided by the reference.
    Ratio(f64),
}

impl Comparison {
    /// Compares two shown figures of a column. `by_run` is the median ratio of single runs, if there are several.
    pub(crate) fn of(column: &Column, ours: f64, reference: f64, by_run: Option<f64>) -> Self {
        let ratio = column.shown(ours) / column.shown(reference);
        let by_run = by_run.unwrap_or(ratio);
        match ratio {
            ratio if !(ratio.is_finite() && ratio > 0.0) => Self::Missing,
            ratio if SAME.contains(&ratio) => Self::Same,
            ratio if (ratio > 1.0) != (by_run > 1.0) => Self::RunsDisagree,
            ratio => Self::Ratio(ratio),
        }
    }

    /// The standing of the first figure according to the words.
    pub(crate) fn standing(self, column: &Column) -> Standing {
        match self {
            Self::Missing | Self::Refused | Self::OtherPace | Self::RunsDisagree => {
                Standing::Unclear
            }
            Self::Same => Standing::Level,
            Self::Ratio(ratio) if column.beats(ratio, 1.0) => Standing::Ahead,
            Self::Ratio(_) => Standing::Behind,
        }
    }

    /// A sentence about two transports: "Apus is 15× faster than kernel TCP".
    pub(crate) fn sentence(self, column: &Column, ours: &str, reference: &str) -> String {
        match (self, self.in_words(column)) {
            (Self::Ratio(_), words) if column.is_time() => {
                format!("{ours} is {words} than {reference}")
            }
            (Self::Ratio(_), words) => {
                let figure =
                    column.heading(Some(column.unit).filter(|unit| unit.starts_with("per ")));
                format!("{ours} has {words} {figure} than {reference}")
            }
            (Self::Same, _) => format!("{ours} and {reference} are level"),
            (Self::RunsDisagree, _) => format!("{ours} or {reference}: the runs disagree"),
            (Self::Refused, _) => "The machine was too busy to compare".to_owned(),
            (Self::OtherPace, _) => "The machine changed its pace between the runs".to_owned(),
            (Self::Missing, _) => "Nothing to compare".to_owned(),
        }
    }

    /// "15× faster", "1.2× more", "5 % less", "same".
    pub(crate) fn in_words(self, column: &Column) -> String {
        let ratio = match self {
            Self::Missing => return "—".to_owned(),
            Self::Refused => return "refused".to_owned(),
            Self::OtherPace => return "other pace".to_owned(),
            Self::Same => return "same".to_owned(),
            Self::RunsDisagree => return "runs disagree".to_owned(),
            Self::Ratio(ratio) => ratio,
        };
        let (word, times) = match (column.is_time(), ratio > 1.0) {
            (true, true) => ("slower", ratio),
            (true, false) => ("faster", 1.0 / ratio),
            (false, true) => ("more", ratio),
            (false, false) => ("less", 1.0 / ratio),
        };
        match times {
            t if t < 1.095 => format!("{:.0} % {word}", (ratio - 1.0).abs() * 100.0),
            t if t < 9.95 => format!("{t:.1}× {word}"),
            t => format!("{}× {word}", figure(t.round())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(key: &str, ours: f64, reference: f64) -> String {
        let column = Column::of(key);
        Comparison::of(&column, ours, reference, None).in_words(&column)
    }

    #[test]
    fn ratios_are_shown_in_words() {
        for (key, ours, reference, expected) in [
            ("p50_us", 5.0, 75.0, "15× faster"),
            ("p50_us", 1.3, 1.0, "1.3× slower"),
            ("p50_us", 1.05, 1.0, "5 % slower"),
            ("p50_us", 0.95, 1.0, "5 % faster"),
            ("goodput_gbps", 50.0, 40.0, "1.2× more"),
            ("goodput_gbps", 20.0, 40.0, "2.0× less"),
            ("cpu_s", 1.0, 2.0, "2.0× less"),
            ("p50_us", 22_020.0, 13_042.0, "1.7× slower"),
        ] {
            assert_eq!(words(key, ours, reference), expected, "{ours} against {reference}");
        }
    }

    #[test]
    fn figures_that_read_alike_are_the_same() {
        // Both are shown as 0.001, as 9.00, and as 100.
        for (ours, reference) in [(0.001_4, 0.000_6), (9.004, 8.996), (99.96, 100.4)] {
            assert_eq!(words("p50_us", ours, reference), "same");
        }
        assert_eq!(words("p50_us", 1.02, 1.0), "same");
        assert_eq!(words("p50_us", 1.03, 1.0), "3 % slower");
    }

    #[test]
    fn runs_that_say_the_opposite_take_the_direction_away() {
        let column = Column::of("p50_us");
        let opposite = Comparison::of(&column, 22_020.0, 13_042.0, Some(0.94));
        assert_eq!(opposite.in_words(&column), "runs disagree");
        assert_eq!(
            Comparison::of(&column, 5.0, 10.0, Some(1.2)).standing(&column),
            Standing::Unclear
        );
        assert_eq!(
            Comparison::of(&column, 5.0, 10.0, Some(0.9)).standing(&column),
            Standing::Ahead
        );
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        for (ours, reference) in
            [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0)]
        {
            assert_eq!(words("p50_us", ours, reference), "—", "{ours} against {reference}");
        }
        assert_eq!(Comparison::Refused.standing(&Column::of("p50_us")), Standing::Unclear);
    }

    proptest! {
        #[test]
        fn no_direction_is_stated_that_the_shown_figures_deny(
            ours in 1e-6..1e9f64,
            reference in 1e-6..1e9f64,
            by_run in prop::option::of(0.1..10.0f64),
        ) {
            let column = Column::of("p99_us");
            let comparison = Comparison::of(&column, ours, reference, by_run);
            let text = comparison.in_words(&column);
            let (ours, reference) = (column.shown(ours), column.shown(reference));
            prop_assert!(!text.contains("faster") || ours < reference, "{text}: {ours}, {reference}");
            prop_assert!(!text.contains("slower") || ours > reference, "{text}: {ours}, {reference}");
            prop_assert_eq!(comparison.standing(&column) == Standing::Ahead, text.contains("faster"));
            prop_assert!(!text.starts_with("0 %") && !text.starts_with("1.0×"), "{text}");
        }
    }
}
