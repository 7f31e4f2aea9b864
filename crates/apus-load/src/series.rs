//! Curves for the plots of a report.

use serde::{Deserialize, Serialize};

use crate::latency::{BySize, Latency};

/// Points of a curve: enough to keep the shape at the size of a page.
const CDF_POINTS: usize = 200;

/// One curve of a plot. Series of the same `name` are drawn in the same plot, each with its transport in the legend. Labels and
/// scales are those of the first series.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Title of the plot: "Latency of 100 B calls".
    pub name: String,
    /// The transport of the curve, as in the rows.
    pub transport: String,
    /// Label of the horizontal axis, with its unit: "latency (µs)".
    pub x_label: String,
    /// Scale of the horizontal axis.
    #[serde(default)]
    pub x_scale: Scale,
    /// Label of the vertical axis, with its unit.
    pub y_label: String,
    /// Scale of the vertical axis.
    #[serde(default)]
    pub y_scale: Scale,
    /// The points, from left to right; all finite, as JSON requires.
    pub points: Vec<(f64, f64)>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal steps. Starts at 0 if no value is negative.
    #[default]
    Linear,
    /// Factors of ten. Points at or below 0 are left out.
    Log,
}

impl Series {
    /// The cumulative distribution of `latency`: the share of calls against the latency that they did not exceed, over a
    /// logarithmic axis of µs.
    #[must_use]
    pub fn latency_cdf(name: &str, transport: &str, latency: &Latency) -> Self {
        Self {
            name: name.to_owned(),
            transport: transport.to_owned(),
            x_label: "latency (µs)".to_owned(),
            x_scale: Scale::Log,
            y_label: "calls that took at most this long (%)".to_owned(),
            y_scale: Scale::Linear,
            points: latency
                .cdf(CDF_POINTS)
                .into_iter()
                .map(|(us, share)| (us, share * 100.0))
                .collect(),
        }
    }

    /// Latency at `percent` % against message size, both axes logarithmic.
    #[must_use]
    pub fn latency_by_size(name: &str, transport: &str, by_size: &BySize, percent: f64) -> Self {
        let label = format!("p{percent} latency (µs)");
        Self::by_size(name, transport, label, by_size.latency_points(percent))
    }

    /// Slowdown (latency at `percent` % over the ideal latency, `ideal_us` of this many bytes) against message size, both axes
    /// logarithmic.
    #[must_use]
    pub fn slowdown_by_size(
        name: &str,
        transport: &str,
        by_size: &BySize,
        percent: f64,
        ideal_us: impl Fn(f64) -> f64,
    ) -> Self {
        let label = format!("p{percent} slowdown (times the ideal)");
        Self::by_size(name, transport, label, by_size.slowdown_points(percent, ideal_us))
    }

    /// A figure against message size, both axes logarithmic. The points are one for each size, short to long; those that are not
    /// finite are left out.
    #[must_use]
    pub fn by_size(
        name: &str,
        transport: &str,
        y_label: String,
        mut points: Vec<(f64, f64)>,
    ) -> Self {
        points.retain(|(x, y)| x.is_finite() && y.is_finite());
        debug_assert!(points.is_sorted_by(|one, next| one.0 < next.0), "{name}: {points:?}");
        Self {
            name: name.to_owned(),
            transport: transport.to_owned(),
            x_label: "message size (bytes)".to_owned(),
            x_scale: Scale::Log,
            y_label,
            y_scale: Scale::Log,
            points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cdf_is_in_percent_over_log_microseconds() {
        let mut latency = Latency::new();
        [4000, 5000, 6000, 90_000].iter().for_each(|ns| latency.record_ns(*ns));
        let series = Series::latency_cdf("Latency", "tcp", &latency);
        assert_eq!((series.x_scale, series.y_scale), (Scale::Log, Scale::Linear));
        assert_eq!(series.points[series.points.len() - 1].1, 100.0);
    }

    #[test]
    fn size_curves_carry_their_percentile_in_the_label() {
        let mut by_size = BySize::new();
        by_size.record(1000, 20_000);
        let series = Series::slowdown_by_size("Slowdown", "apus-udp", &by_size, 99.9, |_| 10.0);
        assert_eq!(series.y_label, "p99.9 slowdown (times the ideal)");
        assert!((series.points[0].1 - 2.0).abs() < 0.01);
        assert_eq!(Series::latency_by_size("x", "y", &by_size, 50.0).y_label, "p50 latency (µs)");
    }

    #[test]
    fn scales_are_words_in_json() {
        let series = Series::latency_cdf("Latency", "tcp", &Latency::new());
        let text = serde_json::to_string(&series).unwrap();
        assert!(
            text.contains(r#""x_scale":"log""#) && text.contains(r#""y_scale":"linear""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Series>(&text).unwrap(), series);
    }
}
