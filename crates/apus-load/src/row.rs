//! One row of results: a flat object whose keys keep their order.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// The `verdict` of a row that measured the machine instead of the network.
pub const REFUSED: &str = "the machine, not the network";

/// The `verdict` of a row that measured a late generator instead of the server.
pub const REFUSED_LATE: &str = "the generator, not the server";

/// One row of results: what was measured (`transport` first, then settings such as `size_bytes`) and the
/// numbers, in the order they were set.
///
/// A row is flat. Keys are lower case with the unit last: `p50_us`, `p99_9_us`, `goodput_gbps`, `cpu_s`,
/// `calls_per_s`, `size_bytes`; counts have no unit (`calls`, `errors`). Reports give meaning to a few keys,
/// see [`report`](crate::report).
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    cells: Vec<(String, Cell)>,
}

/// A value in a [`Row`].
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// A measured number; never NaN or infinite, see `From<f64>`.
    Number(f64),
    /// A count or a setting.
    Count(u64),
    /// A name.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// Not measured; `null` in JSON, a dash in tables.
    Missing,
}

impl Row {
    /// A row of `transport` (`apus-udp`, `tcp-epoll`, `raw-udp`, …) with nothing else yet.
    #[must_use]
    pub fn new(transport: &str) -> Self {
        Self { cells: vec![("transport".to_owned(), transport.into())] }
    }

    /// Adds `key`, or replaces its value where it stands. Chains.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Cell>) -> Self {
        self.put(key, value);
        self
    }

    /// As [`set`](Self::set), in place.
    pub fn put(&mut self, key: &str, value: impl Into<Cell>) {
        let value = value.into();
        match self.cells.iter_mut().find(|(name, _)| name == key) {
            Some((_, cell)) => *cell = value,
            None => self.cells.push((key.to_owned(), value)),
        }
    }

    /// Adds the usual latency columns in µs: `p50_us`, `p99_us`, `p99_9_us`, `max_us` and `calls`. Missing
    /// values when nothing was recorded.
    #[must_use]
    pub fn set_latency(mut self, latency: &crate::Latency) -> Self {
        let measured = |us: f64| if latency.is_empty() { Cell::Missing } else { us.into() };
        for (key, us) in [
            ("p50_us", latency.p(50.0)),
            ("p99_us", latency.p(99.0)),
            ("p99_9_us", latency.p(99.9)),
            ("max_us", latency.max_us()),
        ] {
            self.put(key, measured(us));
        }
        self.set("calls", latency.count())
    }

    /// The transport this row is about.
    #[must_use]
    pub fn transport(&self) -> &str {
        self.text("transport").unwrap_or_default()
    }

    /// The value under `key`.
    #[must_use]
    pub fn cell(&self, key: &str) -> Option<&Cell> {
        self.cells.iter().find(|(name, _)| name == key).map(|(_, cell)| cell)
    }

    /// The number under `key`; counts are numbers too.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        self.cell(key)?.as_number()
    }

    /// The text under `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.cell(key)? {
            Cell::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether its `verdict` says that it measured something else than was asked.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.text("verdict"), Some(REFUSED | REFUSED_LATE))
    }

    /// All keys and values, in order.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &Cell)> {
        self.cells.iter().map(|(key, cell)| (key.as_str(), cell))
    }
}

impl Cell {
    /// The value as a number, if it is one.
    #[must_use]
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Count(count) => Some(*count as f64),
            Self::Text(_) | Self::Flag(_) | Self::Missing => None,
        }
    }
}

impl From<f64> for Cell {
    /// NaN and infinities, which JSON cannot hold, become [`Cell::Missing`].
    fn from(number: f64) -> Self {
        if number.is_finite() { Self::Number(number) } else { Self::Missing }
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::Count(u64::from(count))
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    /// `None` becomes [`Cell::Missing`].
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Missing => serializer.serialize_unit(),
        }
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.cells.len()))?;
        for (key, cell) in &self.cells {
            map.serialize_entry(key, cell)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut cells = Vec::new();
        for (key, value) in serde_json::Map::deserialize(deserializer)? {
            let cell = match value {
                Value::Null => Cell::Missing,
                Value::Bool(flag) => Cell::Flag(flag),
                Value::String(text) => Cell::Text(text),
                Value::Number(number) => match (number.as_u64(), number.as_f64()) {
                    (Some(count), _) => Cell::Count(count),
                    (None, Some(number)) => number.into(),
                    (None, None) => Cell::Missing,
                },
                Value::Array(_) | Value::Object(_) => {
                    return Err(D::Error::custom(format_args!(
                        "`{key}` of a row is not a number, text, true or false; rows are flat"
                    )));
                }
            };
            cells.push((key, cell));
        }
        let row = Self { cells };
        if row.text("transport").is_none() {
            return Err(D::Error::missing_field("transport"));
        }
        Ok(row)
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
        assert_eq!(Row::new("x").set_latency(&latency).cell("p50_us"), Some(&Cell::Missing));
        latency.record_ns(8_000);
        let row = Row::new("x").set_latency(&latency);
        let keys: Vec<&str> = row.cells().map(|(key, _)| key).collect();
        assert_eq!(keys, ["transport", "p50_us", "p99_us", "p99_9_us", "max_us", "calls"]);
        assert_eq!(row.cell("calls"), Some(&Cell::Count(1)));
    }

    #[test]
    fn nested_values_and_rows_without_transport_are_refused() {
        let error = |text| serde_json::from_str::<Row>(text).unwrap_err().to_string();
        assert!(error(r#"{"transport":"x","cdf":[1]}"#).contains("`cdf` of a row is not a number"));
        assert!(error(r#"{"p50_us":1}"#).contains("missing field `transport`"));
    }

    fn cell() -> impl Strategy<Value = Cell> {
        prop_oneof![
            // A fraction, because a whole number is read back as a count.
            (-1e9..1e9f64).prop_filter("fraction", |n| n.fract() != 0.0).prop_map(Cell::Number),
            any::<u64>().prop_map(Cell::Count),
            ".{0,8}".prop_map(Cell::Text),
            any::<bool>().prop_map(Cell::Flag),
            Just(Cell::Missing),
        ]
    }

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(cells in prop::collection::vec(("[a-z_]{1,6}", cell()), 0..8)) {
            let row = cells.into_iter().fold(Row::new("t"), |row, (key, cell)| row.set(&key, cell));
            let text = serde_json::to_string(&row).unwrap();
            prop_assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        }
    }
}
