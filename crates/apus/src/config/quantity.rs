//! Sizes and times as text.

use std::time::Duration;

use apus_proto::{Setting, Unit};

/// A text that is neither a size nor a time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}': expected {expected}")]
pub struct QuantityError {
    text: String,
    expected: &'static str,
}

/// Units of sizes, in bytes.
const SIZES: [(&str, u64); 9] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Parses a size in bytes: a whole number and a unit (`B`, `kB`, `KiB`, `MB`, `MiB`, `GB`, `GiB`, `TiB`), with or without a
/// space. A number without a unit is in bytes.
///
/// # Errors
///
/// [`QuantityError`], also if the size does not fit 64 bits.
///
/// ```
/// assert_eq!(apus::parse_size("64 KiB"), Ok(65_536));
/// assert_eq!(apus::parse_size("1MB"), Ok(1_000_000));
/// assert!(apus::parse_size("1.5 MB").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, QuantityError> {
    let read = || {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim_start());
        let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
        number.parse::<u64>().ok()?.checked_mul(*bytes)
    };
    read().ok_or_else(|| QuantityError { text: text.to_owned(), expected: "a size like 64 KiB" })
}

/// Parses a time: numbers with units, such as `20ms`, `1.5 s` or `1min 30s` (`ns`, `us`, `µs`, `ms`, `s`, `min`, `h`, `d`).
///
/// # Errors
///
/// [`QuantityError`], also if the unit is missing.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(apus::parse_duration("1.5 s"), Ok(Duration::from_millis(1_500)));
/// assert!(apus::parse_duration("20").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    humantime::parse_duration(text.trim())
        .map_err(|_| QuantityError { text: text.to_owned(), expected: "a time like 20 ms" })
}

/// Reads a value of a setting, whatever its range.
pub(crate) fn parse_number(setting: &Setting, text: &str) -> Option<u64> {
    match setting.unit {
        Unit::Bytes => parse_size(text).ok(),
        Unit::Time => parse_duration(text).ok().map(apus_proto::Number::number),
        Unit::Switch => text.parse::<bool>().ok().map(u64::from),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        let sizes = ["7", "7 B", "2kB", "2 KiB", "1MB", "1 MiB", "1 GB", "1 GiB", "1TiB"];
        let wanted =
            [7, 7, 2_000, 2_048, 1_000_000, 1 << 20, 1_000_000_000, 1 << 30, 1 << 40].map(Ok);
        assert_eq!(sizes.map(parse_size), wanted);
        for wrong in ["", "KiB", "1 kb", "-1", "1.5 MB", "99999999999 GiB"] {
            let error = parse_size(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("'{wrong}': expected a size like 64 KiB"));
        }
        let times = ["5ns", "5 us", "5 µs", "5ms", "5 s", "1.5s", "1min 30s"].map(parse_duration);
        assert_eq!(
            times.map(|time| time.unwrap().as_nanos()),
            [5, 5_000, 5_000, 5_000_000, 5_000_000_000, 1_500_000_000, 90_000_000_000]
        );
        for wrong in ["5", "s", "-5 s", ""] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
