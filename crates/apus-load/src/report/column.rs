//! Properties of a row's key: heading, unit and better direction.

/// The better direction of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Better {
    /// Latencies, CPU time, errors.
    Lower,
    /// Rates and throughput.
    Higher,
    /// Settings and plain counts.
    Neither,
}

/// One measured quantity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Column {
    /// Key in the rows.
    pub(crate) key: String,
    /// Name in headings: `p99.9`, `goodput`.
    pub(crate) name: String,
    /// Unit: `µs`, `Gb/s`; empty for counts.
    pub(crate) unit: &'static str,
    /// Better direction.
    pub(crate) better: Better,
}

/// Endings of keys, longer ones before their own endings, with the unit and the better direction.
const UNITS: [(&str, &str, Better); 16] = [
    ("_ms_per_gb", "ms/GB", Better::Lower),
    ("_ns_per_call", "ns/call", Better::Lower),
    ("_us_per_call", "µs/call", Better::Lower),
    ("_per_call", "per call", Better::Lower),
    ("_per_s", "per s", Better::Higher),
    ("_gbps", "Gb/s", Better::Higher),
    ("_mbps", "Mb/s", Better::Higher),
    ("_ns", "ns", Better::Lower),
    ("_us", "µs", Better::Lower),
    ("_ms", "ms", Better::Lower),
    ("_s", "s", Better::Lower),
    ("_bytes", "B", Better::Neither),
    ("_kb", "kB", Better::Neither),
    ("_mb", "MB", Better::Neither),
    ("_pct", "%", Better::Neither),
    ("_mhz", "MHz", Better::Neither),
];

/// Units of time with the next longer one, which is a thousand times as long.
const LONGER: [(&str, &str); 3] = [("ns", "µs"), ("µs", "ms"), ("ms", "s")];

/// A value in a fitting unit.
struct Scaled {
    value: f64,
    unit: &'static str,
    /// Number of the column's own units in this unit.
    factor: f64,
}

/// Figures that were requested, not achieved, or describe the machine.
const ASKED: [&str; 11] = [
    "offered", "duration", "seconds", "elapsed", "interval", "deadline", "timeout", "warmup",
    "delay", "target", "floor",
];

/// Figures that are better when lower, in any unit.
const TROUBLES: [&str; 10] = [
    "error",
    "drop",
    "lost",
    "late",
    "retransmit",
    "resend",
    "timed out",
    "failed",
    "refused",
    "outlier",
];

impl Column {
    pub(crate) fn of(key: &str) -> Self {
        let found = UNITS
            .iter()
            .find_map(|(end, unit, better)| Some((key.strip_suffix(end)?, *unit, *better)));
        let (stem, unit, better) = found.unwrap_or((key, "", Better::Neither));
        let name = name_of(stem);
        let better = match better {
            _ if ASKED.iter().any(|word| name.starts_with(word)) => Better::Neither,
            _ if TROUBLES.iter().any(|word| name.starts_with(word)) => Better::Lower,
            usual => usual,
        };
        Self { key: key.to_owned(), name, unit, better }
    }

    /// Name and unit: "p50 µs". The name alone if the values have different units.
    pub(crate) fn heading(&self, unit: Option<&str>) -> String {
        spaced(&self.name, unit.unwrap_or_default())
    }

    /// The unit that fits all `values`; `None` if they need different units of time.
    pub(crate) fn common_unit(&self, values: impl Iterator<Item = f64>) -> Option<&'static str> {
        let mut units = values.filter(|value| *value != 0.0).map(|value| self.scaled(value).unit);
        let first = units.next().unwrap_or(self.unit);
        units.all(|unit| unit == first).then_some(first)
    }

    /// A value with its unit: "4.92 µs", "22.0 ms".
    pub(crate) fn with_unit(&self, value: f64) -> String {
        let scaled = self.scaled(value);
        spaced(&figure(scaled.value), scaled.unit)
    }

    /// A value without its unit, which is in the heading.
    pub(crate) fn without_unit(&self, value: f64) -> String {
        figure(self.scaled(value).value)
    }

    /// A value, rounded as shown, in the column's own unit.
    pub(crate) fn shown(&self, value: f64) -> f64 {
        let scaled = self.scaled(value);
        let rounded: f64 = figure(scaled.value).replace(',', "").parse().unwrap_or(f64::NAN);
        rounded * scaled.factor
    }

    /// The value in the longest unit of time in which it is at least one. Other units stay.
    fn scaled(&self, value: f64) -> Scaled {
        let mut scaled = Scaled { value, unit: self.unit, factor: 1.0 };
        for (unit, longer) in LONGER {
            // Larger values would have four digits.
            if scaled.unit == unit && scaled.value.abs() >= 999.5 {
                let factor = scaled.factor * 1e3;
                scaled = Scaled { value: value / factor, unit: longer, factor };
            }
        }
        scaled
    }

    /// Whether lower values are faster.
    pub(crate) fn is_time(&self) -> bool {
        matches!(self.unit, "ns" | "µs" | "ms") && self.better == Better::Lower
    }

    /// Whether `value` is better than `other`.
    pub(crate) fn beats(&self, value: f64, other: f64) -> bool {
        match self.better {
            Better::Lower => value < other,
            Better::Higher => value > other,
            Better::Neither => false,
        }
    }
}

fn spaced(text: &str, unit: &str) -> String {
    format!("{text} {unit}").trim_end().to_owned()
}

/// `p99_9` and `p999` are percentiles, other underscores are spaces, and abbreviations are capitals.
fn name_of(stem: &str) -> String {
    let is_percentile =
        |digits: &str| digits.len() >= 2 && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if let Some(digits) = stem.strip_prefix('p').filter(|digits| is_percentile(digits)) {
        let digits = digits.replace('_', "");
        let (whole, fraction) = digits.split_at(2);
        return if fraction.is_empty() || digits == "100" {
            format!("p{digits}")
        } else {
            format!("p{whole}.{fraction}")
        };
    }
    let stem = stem.replace("p99_9_", "p99.9_");
    let words = stem.split('_').map(|word| match word {
        "cpu" => "CPU".to_owned(),
        "rpc" | "rpcs" | "tcp" | "udp" => word.to_ascii_uppercase(),
        word => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A number as text: three significant digits, with separated thousands. Whole numbers stay whole.
#[must_use]
pub fn figure(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => thousands(value),
        size if size >= 99.95 => thousands(value.round()),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        size if size >= 0.0005 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

fn thousands(whole: f64) -> String {
    let digits = format!("{:.0}", whole.abs());
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if whole < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_explain_themselves() {
        for (key, heading, better) in [
            ("p50_us", "p50 µs", Better::Lower),
            ("p99_9_us", "p99.9 µs", Better::Lower),
            ("p999_us", "p99.9 µs", Better::Lower),
            ("p100_us", "p100 µs", Better::Lower),
            ("goodput_gbps", "goodput Gb/s", Better::Higher),
            ("calls_per_s", "calls per s", Better::Higher),
            ("cpu_s", "CPU s", Better::Lower),
            ("cpu_ns_per_call", "CPU ns/call", Better::Lower),
            ("offered_gbps", "offered Gb/s", Better::Neither),
            ("duration_s", "duration s", Better::Neither),
            ("drops_per_s", "drops per s", Better::Lower),
            ("errors", "errors", Better::Lower),
            ("calls", "calls", Better::Neither),
            ("packet_bytes", "packet B", Better::Neither),
            ("paused_us", "paused µs", Better::Lower),
            ("p_us", "p µs", Better::Lower),
            ("pé1_us", "pé1 µs", Better::Lower),
        ] {
            let column = Column::of(key);
            let shown = column.heading(Some(column.unit));
            assert_eq!((shown.as_str(), column.better), (heading, better), "{key}");
        }
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (4.916, "4.92"),
            (9.996, "10.0"),
            (74.12, "74.1"),
            (99.96, "100"),
            (816.4, "816"),
            (1_234_567.8, "1,234,568"),
            (0.01234, "0.012"),
            (0.00001, "1.0e-5"),
            (1000.0, "1,000"),
            (-12_345.0, "-12,345"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn a_time_is_shown_in_the_unit_that_suits_it() {
        for (key, value, text) in [
            ("p50_us", 4.916, "4.92 µs"),
            ("p99_us", 999.4, "999 µs"),
            ("p99_us", 999.6, "1.00 ms"),
            ("p99_us", 1_234_567.8, "1.23 s"),
            ("gap_ns", 1500.0, "1.50 µs"),
            ("elapsed_s", 5_000.0, "5,000 s"),
            ("calls", 5_000.0, "5,000"),
            ("goodput_mbps", 5_000.0, "5,000 Mb/s"),
        ] {
            assert_eq!(Column::of(key).with_unit(value), text);
        }
        let p99 = Column::of("p99_us");
        assert_eq!(p99.common_unit([22_020.0, 0.0, 130_420.0].into_iter()), Some("ms"));
        assert_eq!(p99.common_unit([50.0, 130_420.0].into_iter()), None);
        assert_eq!(p99.common_unit([0.0].into_iter()), Some("µs"));
        assert_eq!(p99.shown(22_020.4), 22_000.0);
    }

    #[test]
    fn less_time_and_more_throughput_are_better() {
        let (latency, throughput) = (Column::of("p50_us"), Column::of("goodput_gbps"));
        assert!(latency.beats(1.0, 2.0) && throughput.beats(2.0, 1.0));
        assert!(!latency.beats(1.0, 1.0) && !throughput.beats(1.0, 1.0));
    }

    proptest! {
        #[test]
        fn any_key_has_a_heading(key in ".{0,12}") {
            let _ = Column::of(&key).heading(None);
        }

        #[test]
        fn figures_are_near_the_value(value in -1e12..1e12f64) {
            let back: f64 = figure(value).replace(',', "").parse().unwrap();
            prop_assert!((back - value).abs() <= value.abs() * 0.006 + 1e-9, "{} {}", back, value);
        }
    }
}
