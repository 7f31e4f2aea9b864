//! Parsers of arguments' values, with their allowed ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use apus::{Config, Delivery, DeliveryError, Links};
use apus_load::{Size, SizeError, Workload, WorkloadError};

use crate::message::{MESSAGE_MAX, MessageHeader};

/// A message size in bytes.
///
/// # Errors
/// The allowed values; the same for all functions here.
pub fn size(text: &str) -> Result<u32, String> {
    let allowed = MessageHeader::LEN as u32..=MESSAGE_MAX;
    match text.parse::<Size>().map(Size::bytes) {
        Ok(bytes) if allowed.contains(&bytes) => Ok(bytes),
        Err(error @ SizeError::NotASize { .. }) => Err(error.to_string()),
        _ => Err(format!("it must be between {} and {MESSAGE_MAX} bytes", MessageHeader::LEN)),
    }
}

/// A size in bytes, which need not include a message's header.
pub fn any_size(text: &str) -> Result<u32, String> {
    match text.parse::<Size>().map(Size::bytes) {
        Ok(bytes) if bytes <= MESSAGE_MAX => Ok(bytes),
        Err(error @ SizeError::NotASize { .. }) => Err(error.to_string()),
        _ => Err(format!("it must be between 1 and {MESSAGE_MAX} bytes")),
    }
}

/// A workload whose lengths can all be sent.
pub fn workload(text: &str) -> Result<Workload, String> {
    let workload: Workload = text.parse().map_err(|error: WorkloadError| error.to_string())?;
    match workload.longest() {
        longest if longest > MESSAGE_MAX => Err(format!(
            "its longest message has {longest} bytes, but at most {MESSAGE_MAX} are allowed"
        )),
        _ => Ok(workload),
    }
}

/// A receive buffer in bytes.
pub fn buffer(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<Size>().map_err(|e| e.to_string())?.bytes();
    Config::new().set("receive_buffer", &bytes.to_string()).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// A delivery mode, with optional parameters.
pub fn delivery(text: &str) -> Result<Delivery, String> {
    text.parse().map_err(|error: DeliveryError| format!("expected {}", error.expected()))
}

/// The links of a node.
pub fn links(text: &str) -> Result<Links, String> {
    text.parse().map_err(|_| format!("expected {}", Links::EXPECTED))
}

/// A byte rate in Gb/s.
pub fn gbps(text: &str) -> Result<f64, String> {
    within(text, 0.001..=1000.0)
        .ok_or_else(|| "it must be a number of Gb/s between 0.001 and 1000".to_owned())
}

/// A byte rate in Gb/s; 0 is a closed loop.
pub fn gbps_or_closed_loop(text: &str) -> Result<f64, String> {
    within(text, 0.000_001..=1000.0)
        .or_else(|| within(text, 0.0..=0.0))
        .ok_or_else(|| "it must be 0 or a number of Gb/s up to 1000".to_owned())
}

/// The duration of a measurement in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.01..=3600.0)
        .ok_or_else(|| "it must be a number of seconds between 0.01 and 3600".to_owned())
}

/// The duration of a run in seconds; 0 means without end.
pub fn seconds_or_endless(text: &str) -> Result<f64, String> {
    within(text, 0.01..=1e6)
        .or_else(|| within(text, 0.0..=0.0))
        .ok_or_else(|| "it must be 0 or a number of seconds between 0.01 and 1000000".to_owned())
}

/// The time between two calls in seconds; 0 means none.
pub fn pause(text: &str) -> Result<f64, String> {
    within(text, 0.0..=10.0).ok_or_else(|| "it must be a number of seconds up to 10".to_owned())
}

/// A number within a range; `None` for others.
pub fn within(text: &str, range: RangeInclusive<f64>) -> Option<f64> {
    text.parse().ok().filter(|number| range.contains(number))
}

/// A parser of numbers whose range is checked elsewhere. `expected` describes the allowed values.
pub fn number<T: FromStr>(
    expected: impl Display + Clone,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| text.parse().map_err(|_| format!("it must be a number of {expected}"))
}
