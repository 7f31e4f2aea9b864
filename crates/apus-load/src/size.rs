//! Message sizes with units: `100`, `10kB`, `1MB`, `64KiB`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Units and their factors, larger first. Decimal `k` and `M` are as in the Homa papers (1 MB = 1,000,000 bytes).
const UNITS: [(&str, u32); 8] = [
    ("gib", 1 << 30),
    ("mib", 1 << 20),
    ("kib", 1 << 10),
    ("gb", 1_000_000_000),
    ("mb", 1_000_000),
    ("kb", 1_000),
    ("bytes", 1),
    ("b", 1),
];

/// A message size in bytes, at least 1, written as a count with an optional unit: `B`, `kB`, `MB`, `GB` (powers of 1,000) or `KiB`,
/// `MiB`, `GiB` (powers of 1,024). Upper or lower case, and a space or `_` inside, are allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Size(u32);

impl Size {
    /// A size of `bytes`; `None` for 0, because no transport has empty messages.
    #[must_use]
    pub fn new(bytes: u32) -> Option<Self> {
        (bytes > 0).then_some(Self(bytes))
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Size {
    /// The shortest exact spelling: `10kB`, but `10001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n.is_multiple_of(1_000_000_000) => write!(f, "{}GB", n / 1_000_000_000),
            n if n.is_multiple_of(1_000_000) => write!(f, "{}MB", n / 1_000_000),
            n if n.is_multiple_of(1_000) => write!(f, "{}kB", n / 1_000),
            n => write!(f, "{n}"),
        }
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let plain: String = text
            .chars()
            .filter(|c| *c != ' ' && *c != '_')
            .collect::<String>()
            .to_ascii_lowercase();
        let (count, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((plain.strip_suffix(unit)?, *factor)))
            .unwrap_or((&plain, 1));
        if count.is_empty() || !count.bytes().all(|b| b.is_ascii_digit()) {
            return Err(SizeError::NotASize { value: text.to_owned() });
        }
        let bytes = count.parse::<u32>().ok().and_then(|count| count.checked_mul(factor));
        match bytes {
            None => Err(SizeError::TooLarge { value: text.to_owned() }),
            Some(0) => Err(SizeError::Zero { value: text.to_owned() }),
            Some(bytes) => Ok(Self(bytes)),
        }
    }
}

/// An error of parsing a [`Size`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// Not a whole count with a known unit.
    #[error("size `{value}`: expected a number of bytes such as 100, 10kB, 1MB or 64KiB")]
    NotASize {
        /// The given text.
        value: String,
    },
    /// An empty message.
    #[error("size `{value}`: a message has at least 1 byte")]
    Zero {
        /// The given text.
        value: String,
    },
    /// A size of more than 32 bits.
    #[error("size `{value}`: allowed are 1 to {max} bytes", max = u32::MAX)]
    TooLarge {
        /// The given text.
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_read() {
        for (text, bytes) in [
            ("1", 1),
            ("100", 100),
            ("100B", 100),
            ("10kB", 10_000),
            ("10 KB", 10_000),
            ("1MB", 1_000_000),
            ("500_000", 500_000),
            ("64KiB", 65_536),
            ("2MiB", 2_097_152),
            ("4GB", 4_000_000_000),
        ] {
            assert_eq!(text.parse::<Size>().map(Size::bytes), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn errors_name_the_value_and_what_is_allowed() {
        for (text, wanted) in [
            ("", "size ``: expected a number of bytes such as 100, 10kB, 1MB or 64KiB"),
            ("-5", "size `-5`: expected a number of bytes such as 100, 10kB, 1MB or 64KiB"),
            ("1.5kB", "size `1.5kB`: expected a number of bytes such as 100, 10kB, 1MB or 64KiB"),
            ("kB", "size `kB`: expected a number of bytes such as 100, 10kB, 1MB or 64KiB"),
            ("0", "size `0`: a message has at least 1 byte"),
            ("5GB", "size `5GB`: allowed are 1 to 4294967295 bytes"),
        ] {
            assert_eq!(text.parse::<Size>().unwrap_err().to_string(), wanted);
        }
    }

    proptest! {
        #[test]
        fn spelling_and_reading_agree(bytes in 1..=u32::MAX) {
            let size = Size::new(bytes).unwrap();
            prop_assert_eq!(size.to_string().parse::<Size>(), Ok(size));
        }

        #[test]
        fn reading_never_panics(text in ".{0,12}") {
            let _ = text.parse::<Size>();
        }
    }
}
