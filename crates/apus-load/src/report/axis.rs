//! One axis of a plot, linear or logarithmic, with round numbers on it.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::series::Scale;

/// Decades above which only powers of ten are labelled; shorter spans also have labels at 2 and 5.
const DENSE_DECADES: f64 = 2.4;

/// Decades above which there are no thin lines between the labels.
const LINED_DECADES: f64 = 4.5;

/// The least factor between the ends of a logarithmic axis, which gives it at least two labels.
const LOG_FACTOR_MIN: f64 = 5.0;

/// Values above this, and on a logarithmic axis below its inverse, are left out: they are not measurements and would overflow the
/// axis's arithmetic.
const EXTREME: f64 = 1e200;

/// An axis from `low` to `high`.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Labelled values, rising.
    ticks: Vec<f64>,
    /// Whether the values are µs, which are labelled with a fitting unit.
    is_time: bool,
}

/// The end of the label of a time axis.
const TIME: &str = " (µs)";

/// The label of an axis, without the unit if each value has its own.
pub(super) fn without_unit(label: &str) -> &str {
    label.strip_suffix(TIME).unwrap_or(label)
}

impl Axis {
    /// An axis that shows all `values` that its scale allows.
    pub(super) fn around(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let shown = values.filter(|value| is_shown(scale, *value));
        let (low, high) = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        match scale {
            _ if low > high => Self {
                scale: Scale::Linear,
                low: 0.0,
                high: 1.0,
                ticks: vec![0.0, 1.0],
                is_time: false,
            },
            Scale::Linear => Self::linear(low, high),
            Scale::Log => Self::log(low, high),
        }
    }

    /// The same axis with a label that has its unit.
    pub(super) fn of(self, label: &str) -> Self {
        Self { is_time: label.ends_with(TIME), ..self }
    }

    /// Whether `value` can be shown on this axis.
    pub(super) fn shows(&self, value: f64) -> bool {
        is_shown(self.scale, value)
    }

    fn linear(low: f64, high: f64) -> Self {
        let low = low.min(0.0);
        let step = round_step((high - low).max(1.0 / EXTREME) / 5.0);
        let first = (low / step).floor();
        let last = (high / step).ceil().max(first + 1.0);
        let ticks: Vec<f64> =
            (0..=(last - first).min(20.0) as u32).map(|n| (first + f64::from(n)) * step).collect();
        Self { scale: Scale::Linear, low: first * step, high: last * step, ticks, is_time: false }
    }

    fn log(low: f64, high: f64) -> Self {
        // A margin on both sides, so that curves do not run along the frame.
        let air = (LOG_FACTOR_MIN / (high / low)).sqrt().max(1.15);
        let (low, high) = (low / air, high * air);
        let decades = (high / low).log10();
        let multiples: &[f64] = if decades <= DENSE_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / 9.0).ceil().max(1.0) as i32;
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let ticks = powers
            .filter(|power| power % every == 0)
            .flat_map(|power| multiples.iter().map(move |multiple| multiple * 10_f64.powi(power)))
            .filter(|tick| (low..=high).contains(tick))
            .collect();
        Self { scale: Scale::Log, low, high, ticks, is_time: false }
    }

    /// Thin lines between the ticks of a logarithmic axis.
    fn light_points(&self) -> Vec<f64> {
        if self.scale == Scale::Linear || (self.high / self.low).log10() > LINED_DECADES {
            return Vec::new();
        }
        let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        powers
            .flat_map(|power| (1..10).map(move |multiple| f64::from(multiple) * 10_f64.powi(power)))
            .filter(|value| (self.low..=self.high).contains(value))
            .collect()
    }

    /// Place of `value` between 0 (low) and 1 (high).
    fn fraction(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let length = f64::from(limit.1 - limit.0);
        limit.0 + (self.fraction(*value).clamp(0.0, 1.0) * length).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.light_points() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        match value.abs() {
            _ if !self.is_time => label(*value),
            us if us >= 0.999e6 => format!("{} s", label(value / 1e6)),
            us if us >= 0.999e3 => format!("{} ms", label(value / 1e3)),
            _ => format!("{} µs", label(*value)),
        }
    }
}

fn is_shown(scale: Scale, value: f64) -> bool {
    let is_sane = value.is_finite() && value.abs() <= EXTREME;
    is_sane && (scale == Scale::Linear || value >= 1.0 / EXTREME)
}

/// The next of 1, 2, 5 times a power of ten that is at least `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|multiple| multiple * power)
        .into_iter()
        .find(|round| *round >= step * 0.999)
        .unwrap_or(step)
}

/// The text of a tick: `200`, `10k`, `5M`, `0.1`.
fn label(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 0.999e9 => (value / 1e9, "G"),
        size if size >= 0.999e6 => (value / 1e6, "M"),
        size if size >= 9.99e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Rounding removes errors of binary fractions: 0.30000000000000004.
    let rounded = (scaled * 1e6).round() / 1e6;
    if rounded == 0.0 && scaled != 0.0 {
        format!("{value:.0e}")
    } else {
        format!("{rounded}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| label(*tick)).collect()
    }

    #[test]
    fn a_linear_axis_starts_at_zero_and_ends_on_a_round_number() {
        let axis = Axis::around(Scale::Linear, [12.0, 100.0].into_iter());
        assert_eq!(labels(&axis), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!((axis.map(&0.0, (0, 1000)), axis.map(&100.0, (0, 1000))), (0, 1000));
    }

    #[test]
    fn a_short_log_axis_has_ones_twos_and_fives_a_long_one_powers() {
        assert_eq!(
            labels(&Axis::around(Scale::Log, [4.2, 90.0].into_iter())),
            ["5", "10", "20", "50", "100"]
        );
        let long = Axis::around(Scale::Log, [1.0, 3e7].into_iter());
        assert_eq!(labels(&long), ["1", "10", "100", "1000", "10k", "100k", "1M", "10M"]);
        assert!(long.light_points().is_empty());
    }

    #[test]
    fn times_are_labelled_in_the_unit_that_suits_them() {
        let axis = Axis::around(Scale::Log, [5.0, 3e6].into_iter()).of("latency (µs)");
        let labels: Vec<String> = axis.ticks.iter().map(|tick| axis.format_ext(tick)).collect();
        assert_eq!(labels, ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert_eq!(
            (without_unit("latency (µs)"), without_unit("load (%)")),
            ("latency", "load (%)")
        );
    }

    #[test]
    fn nearly_equal_values_still_get_labels() {
        assert!(Axis::around(Scale::Log, [7.0, 7.1].into_iter()).ticks.len() >= 2);
        assert!(Axis::around(Scale::Linear, [0.0].into_iter()).ticks.len() >= 2);
        assert_eq!(Axis::around(Scale::Log, [].into_iter()).ticks, [0.0, 1.0]);
    }

    #[test]
    fn what_a_logarithm_cannot_show_is_left_out() {
        let axis = Axis::around(Scale::Log, [-1.0, 0.0, f64::NAN, 10.0].into_iter());
        assert!(!axis.shows(0.0) && axis.shows(10.0) && !axis.shows(f64::INFINITY));
    }

    proptest! {
        #[test]
        fn every_value_lies_on_the_axis_between_rising_labels(
            values in prop::collection::vec(1e-6..1e12f64, 1..20),
            is_log: bool,
        ) {
            let scale = if is_log { Scale::Log } else { Scale::Linear };
            let axis = Axis::around(scale, values.iter().copied());
            prop_assert!((2..=20).contains(&axis.ticks.len()), "{:?}", axis);
            prop_assert!(axis.ticks.is_sorted());
            for value in values {
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&axis.fraction(value)), "{} on {:?}", value, axis);
            }
        }

        #[test]
        fn no_values_break_an_axis(values in prop::collection::vec(any::<f64>(), 0..5), is_log: bool) {
            let scale = if is_log { Scale::Log } else { Scale::Linear };
            let axis = Axis::around(scale, values.iter().copied());
            prop_assert!((1..=60).contains(&axis.ticks.len()), "{:?}", axis);
            for value in values.iter().filter(|value| axis.shows(**value)) {
                prop_assert!((0..=1000).contains(&axis.map(value, (0, 1000))));
            }
        }
    }
}
