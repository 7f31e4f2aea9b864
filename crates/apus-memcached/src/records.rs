//! The records: keys, and the lengths of their values.

use std::fmt;
use std::str::FromStr;

use apus_load::{Random, Size, etc, seeded};

use super::answer::VALUE_MAX;
use apus_node::message::filler;

/// The lengths of keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The lengths of Facebook's pool ETC.
    Fb,
    /// One length, in bytes.
    Fixed(u32),
}

impl FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fb" => Ok(Self::Fb),
            "0" => Ok(Self::Fixed(0)),
            size => size
                .parse::<Size>()
                .map(|size| Self::Fixed(size.bytes()))
                .map_err(|_| "it must be fb or a number of bytes".to_owned()),
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fb => f.write_str("fb"),
            Self::Fixed(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Parses the length of keys.
///
/// # Errors
/// If the length is not allowed: with the allowed values.
pub(super) fn key_length(text: &str) -> Result<Length, String> {
    match text.parse()? {
        Length::Fixed(bytes) if !(1..=etc::KEY_MAX).contains(&bytes) => {
            Err(format!("it must be fb, or between 1 and {} bytes", etc::KEY_MAX))
        }
        length => Ok(length),
    }
}

/// Parses the length of values.
///
/// # Errors
/// If the length is not allowed: with the allowed values.
pub(super) fn value_length(text: &str) -> Result<Length, String> {
    match text.parse()? {
        Length::Fixed(bytes) if bytes > VALUE_MAX => {
            Err(format!("it must be fb, or between 0 and {VALUE_MAX} bytes"))
        }
        length => Ok(length),
    }
}

/// Keys, and the lengths of their values. They depend on the arguments alone, so every run, thread and host has the same records,
/// and a value of another length is a wrong answer.
#[derive(Debug)]
pub(super) struct Records {
    keys: Vec<u8>,
    /// End of each key.
    ends: Vec<usize>,
    value_lengths: Vec<u32>,
}

/// Seed of the lengths.
const SEED: u64 = 0x1e45;

impl Records {
    /// `count` records with these lengths of keys and values. A key is its number in digits, so it has at least the length of the
    /// highest number.
    pub(super) fn new(count: u32, keys: Length, values: Length) -> Self {
        let mut rng = seeded(SEED);
        let (digits, mut of_keys) = (digits(count), draw(keys, etc::key_length));
        let mut of_values = draw(values, etc::value_length);
        let mut records = Self { keys: Vec::new(), ends: Vec::new(), value_lengths: Vec::new() };
        for number in 0..count {
            let width = (of_keys(&mut rng) as usize).max(digits);
            records.keys.extend_from_slice(format!("{number:0width$}").as_bytes());
            records.ends.push(records.keys.len());
            records.value_lengths.push(of_values(&mut rng).min(VALUE_MAX));
        }
        records
    }

    /// Number of records.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.ends.len()).expect("they are counted in 32 bits")
    }

    /// The key of a record.
    pub(super) fn key(&self, record: u32) -> &[u8] {
        let record = record as usize;
        let start = if record == 0 { 0 } else { self.ends[record - 1] };
        &self.keys[start..self.ends[record]]
    }

    /// The value of a record.
    pub(super) fn value(&self, record: u32) -> &'static [u8] {
        filler(0, self.value_length(record))
    }

    /// The length of a record's value, in bytes.
    pub(super) fn value_length(&self, record: u32) -> usize {
        self.value_lengths[record as usize] as usize
    }
}

/// Digits of the highest of `count` numbers, which begin at 0.
pub(super) fn digits(count: u32) -> usize {
    count.saturating_sub(1).checked_ilog10().unwrap_or(0) as usize + 1
}

fn draw(length: Length, fb: fn(&mut Random) -> u32) -> impl FnMut(&mut Random) -> u32 {
    move |rng| match length {
        Length::Fb => fb(rng),
        Length::Fixed(bytes) => bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_differ_and_have_their_length() {
        let records = Records::new(1000, Length::Fixed(30), Length::Fixed(200));
        let keys: BTreeSet<&[u8]> = (0..1000).map(|record| records.key(record)).collect();
        assert_eq!((keys.len(), records.count()), (1000, 1000));
        assert!(keys.iter().all(|key| key.len() == 30));
        assert_eq!(records.key(7), b"000000000000000000000000000007");
        assert_eq!((records.value(999).len(), records.value_length(999)), (200, 200));
    }

    #[test]
    fn lengths_of_etc_are_the_same_each_time() {
        let [one, other] = [(); 2].map(|()| Records::new(3000, Length::Fb, Length::Fb));
        assert_eq!((&one.keys, &one.value_lengths), (&other.keys, &other.value_lengths));
        let keys: BTreeSet<&[u8]> = (0..3000).map(|record| one.key(record)).collect();
        assert_eq!(keys.len(), 3000);
        assert!((25..50).contains(&(one.keys.len() / 3000)));
    }

    #[test]
    fn the_longest_value_is_there_whole() {
        let records = Records::new(1, Length::Fixed(1), Length::Fixed(VALUE_MAX));
        assert_eq!(records.value(0).len(), VALUE_MAX as usize);
    }

    #[test]
    fn lengths_are_read_within_their_limits() {
        assert_eq!(key_length("fb"), Ok(Length::Fb));
        assert_eq!(value_length("1kB"), Ok(Length::Fixed(1000)));
        assert_eq!(value_length("0"), Ok(Length::Fixed(0)));
        assert!(key_length("0").is_err() && key_length("251").is_err());
        assert!(value_length("2MB").is_err() && value_length("long").is_err());
        assert_eq!((digits(1), digits(10), digits(11), digits(10_000)), (1, 1, 2, 4));
    }
}
