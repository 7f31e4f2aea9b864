//! The setting `metrics`: where a process shows its counters.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The place of a process's counters, which `apus stat` reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum MetricsAt {
    /// In the directory of its user in `/dev/shm`.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// In this directory, which is made if it is missing.
    Directory(PathBuf),
}

impl MetricsAt {
    /// The texts that [`FromStr`] accepts, as a phrase.
    pub const EXPECTED: &str = "auto, off, or the absolute path of a directory";
}

impl fmt::Display for MetricsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Directory(path) => path.display().fmt(f),
        }
    }
}

/// A text that names no place for counters.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("metrics '{text}': expected {}", MetricsAt::EXPECTED)]
pub struct MetricsAtError {
    text: String,
}

impl FromStr for MetricsAt {
    type Err = MetricsAtError;

    fn from_str(text: &str) -> Result<Self, MetricsAtError> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            path if Path::new(path).is_absolute() => Ok(Self::Directory(path.into())),
            _ => Err(MetricsAtError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for place in [MetricsAt::Auto, MetricsAt::Off, MetricsAt::Directory("/run/apus".into())] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        for wrong in ["", "Off", "false", "run/apus"] {
            let error = wrong.parse::<MetricsAt>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{wrong}'")) && error.contains("off"), "{error}");
        }
    }
}
