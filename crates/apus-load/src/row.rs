//! One row of results: a flat object whose keys keep their order.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The `verdict` of a row that measured the machine rather than the network.
pub const REFUSED: &str = "the machine, not the network";

/// The `verdict` of a row that measured a late generator rather than the server.
pub const REFUSED_LATE: &str = "the generator, not the server";

/// The key of the floor of a row: the round trip of 100 bytes through shared memory without a protocol, between the CPUs of the run
/// and in the same second. It names the machine's phase.
pub const FLOOR: &str = "floor_us";

/// Ratio of the floors of runs that may be compared.
pub const FLOOR_SAME: RangeInclusive<f64> = 0.8..=1.25;

/// One row of results: the subject (`transport` first, then settings such as `size_bytes`) and the numbers, in the order in which
/// they were set.
///
/// A row is flat. Keys are lower case with the unit last: `p50_us`, `p99_9_us`, `goodput_gbps`, `cpu_s`, `calls_per_s`,
/// `size_bytes`. Counts have no unit (`calls`, `errors`). Reports give meaning to a few keys, see [`report`](crate::report).
///
/// Values are numbers, counts, texts, booleans, and null for missing values. A number that JSON cannot hold is null too.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Row(Map<String, Value>);

impl Row {
    /// A row of `transport` (`apus-udp`, `tcp-epoll`, `raw-udp`, …) without values.
    #[must_use]
    pub fn new(transport: &str) -> Self {
        Self(Map::new()).set("transport", transport)
    }

    /// Adds `key`, or replaces its value in place. Chains.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.put(key, value);
        self
    }

    /// As [`set`](Self::set), in place.
    pub fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// Adds the usual latency columns in µs: `p50_us`, `p99_us`, `p99_9_us`, `max_us` and `calls`. The latencies are missing if
    /// nothing was recorded.
    #[must_use]
    pub fn set_latency(mut self, latency: &crate::Latency) -> Self {
        for (key, us) in [
            ("p50_us", latency.p(50.0)),
            ("p99_us", latency.p(99.0)),
            ("p99_9_us", latency.p(99.9)),
            ("max_us", latency.max_us()),
        ] {
            self.put(key, (!latency.is_empty()).then_some(us));
        }
        self.set("calls", latency.count())
    }

    /// The row of a run with a late generator: keeps offered loads and counts, and removes times and rates.
    #[must_use]
    pub fn refused_as_late(mut self) -> Self {
        const FIGURES: [&str; 4] = ["_us", "_gbps", "_mbps", "_per_s"];
        for (key, value) in &mut self.0 {
            let is_figure = FIGURES.iter().any(|end| key.ends_with(end));
            if is_figure && !key.starts_with("offered") && !key.starts_with("late") {
                *value = Value::Null;
            }
        }
        self.set("verdict", REFUSED_LATE)
    }

    /// The transport of this row.
    #[must_use]
    pub fn transport(&self) -> &str {
        self.text("transport").unwrap_or_default()
    }

    /// The value under `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The number under `key`, which may be a count.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    /// The text under `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }

    /// Whether its `verdict` refuses the measurement.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.text("verdict"), Some(REFUSED | REFUSED_LATE))
    }

    /// All keys and values, in order.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl TryFrom<Map<String, Value>> for Row {
    type Error = String;

    fn try_from(values: Map<String, Value>) -> Result<Self, String> {
        let nested = |value: &Value| value.is_array() || value.is_object();
        if let Some((key, _)) = values.iter().find(|(_, value)| nested(value)) {
            return Err(format!(
                "`{key}` of a row is not a number, text, true or false; rows are flat"
            ));
        }
        match values.get("transport") {
            Some(Value::String(_)) => Ok(Self(values)),
            _ => Err("missing field `transport`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latency;
    use proptest::prelude::*;

    #[test]
    fn keys_keep_their_order_and_a_second_set_replaces() {
        let row = Row::new("apus-udp")
            .set("size_bytes", 100_u32)
            .set("p50_us", 4.25)
            .set("size_bytes", 200_u32);
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, r#"{"transport":"apus-udp","size_bytes":200,"p50_us":4.25}"#);
        assert_eq!(row.transport(), "apus-udp");
        assert_eq!(
            (row.number("size_bytes"), row.number("p50_us"), row.number("transport")),
            (Some(200.0), Some(4.25), None)
        );
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let row = Row::new("x")
            .set("p50_us", f64::NAN)
            .set("drops", None::<u64>)
            .set("pinned", Some(true));
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(text, r#"{"transport":"x","p50_us":null,"drops":null,"pinned":true}"#);
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }

    #[test]
    fn latency_columns() {
        let mut latency = Latency::new();
        assert_eq!(Row::new("x").set_latency(&latency).value("p50_us"), Some(&Value::Null));
        latency.record_ns(8_000);
        let row = Row::new("x").set_latency(&latency);
        let keys: Vec<&str> = row.values().map(|(key, _)| key).collect();
        assert_eq!(keys, ["transport", "p50_us", "p99_us", "p99_9_us", "max_us", "calls"]);
        assert_eq!(row.value("calls"), Some(&Value::from(1)));
    }

    #[test]
    fn a_late_run_has_no_figures() {
        let row = Row::new("x").set("offered_gbps", 2).set("p50_us", 4.5).set("calls", 9);
        let row = row.set("late_max_us", 80.0).refused_as_late();
        assert!(row.is_refused() && row.value("p50_us") == Some(&Value::Null));
        let kept = ["offered_gbps", "calls", "late_max_us"].map(|key| row.number(key));
        assert_eq!(kept, [Some(2.0), Some(9.0), Some(80.0)]);
    }

    #[test]
    fn nested_values_and_rows_without_transport_are_refused() {
        let error = |text| serde_json::from_str::<Row>(text).unwrap_err().to_string();
        assert!(error(r#"{"transport":"x","cdf":[1]}"#).contains("`cdf` of a row is not a number"));
        assert!(error(r#"{"p50_us":1}"#).contains("missing field `transport`"));
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<f64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
        ]
    }

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(values in prop::collection::vec(("[a-z_]{1,6}", value()), 0..8)) {
            let row = values.into_iter().fold(Row::new("t"), |row, (key, value)| row.set(&key, value));
            let text = serde_json::to_string(&row).unwrap();
            prop_assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        }
    }
}
