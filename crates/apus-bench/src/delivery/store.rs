//! The key-value store and its queries: memcached's operations over Apus.
//!
//! A request is an operation, the length of the key, the key, and the value to set. A response is a [`Status`] and the value. Keys
//! and values have the lengths of [ETC](apus_load::etc). A value's bytes are the pattern of [`apus_node::message`], so that the
//! client detects wrong values.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use anyhow::{Context, Result, bail, ensure};
use apus::Bytes;
use apus_load::{etc, seeded};

use apus_node::message::{check_last, filler};

/// One operation on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query<'a> {
    /// Reads the value of a key.
    Get { key: &'a [u8] },
    /// Sets a new value for a key.
    Set { key: &'a [u8], value: &'a [u8] },
    /// Reads the server's counters, see [`Snapshot`](super::server::Snapshot).
    Stats,
}

impl<'a> Query<'a> {
    /// The query's encoding.
    pub(crate) fn encode(self) -> Bytes {
        let (operation, key, value): (u8, &[u8], &[u8]) = match self {
            Self::Get { key } => (0, key, &[]),
            Self::Set { key, value } => (1, key, value),
            Self::Stats => (2, &[], &[]),
        };
        let key_length = u8::try_from(key.len()).expect("ETC's keys have at most 250 bytes");
        [&[operation, key_length], key, value].concat().into()
    }

    /// Parses a request; `None` if it is malformed.
    pub(crate) fn parse(request: &'a [u8]) -> Option<Self> {
        let (&[operation, key_length], rest) = request.split_first_chunk::<2>()?;
        let (key, value) = rest.split_at_checked(usize::from(key_length))?;
        match operation {
            0 => Some(Self::Get { key }),
            1 => Some(Self::Set { key, value }),
            2 => Some(Self::Stats),
            _ => None,
        }
    }
}

/// The first byte of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Success. The value follows for a read.
    Done = 0,
    /// The key does not exist.
    Missing = 1,
    /// The request is malformed.
    Malformed = 2,
}

impl Status {
    /// A response without a value.
    pub(crate) fn alone(self) -> Bytes {
        match self {
            Self::Done => Bytes::from_static(&[Self::Done as u8]),
            Self::Missing => Bytes::from_static(&[Self::Missing as u8]),
            Self::Malformed => Bytes::from_static(&[Self::Malformed as u8]),
        }
    }
}

/// The value in a response.
///
/// # Errors
/// If the server failed to execute the query.
pub(crate) fn value_of(response: &[u8]) -> Result<&[u8]> {
    let (&status, value) = response.split_first().context("an empty response")?;
    match status {
        0 => Ok(value),
        1 => bail!("the server does not have a key that it was loaded with"),
        status => bail!("the server did not understand a request: status {status}"),
    }
}

/// Checks the length of a value and the pattern of its last byte.
///
/// # Errors
/// If one is wrong.
pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    ensure!(value.len() <= etc::VALUE_MAX as usize, "a value of {} bytes", value.len());
    check_last(value, value.len())
}

/// The key of a record: its number in decimal digits, with leading zeros up to a length of ETC's that depends on the number alone,
/// so that both sides compute the same key.
pub(crate) fn key(record: u32) -> Vec<u8> {
    let length = etc::key_length(&mut seeded(u64::from(record))) as usize;
    format!("{record:0length$}").into_bytes()
}

/// Keys and values in memory.
pub(crate) struct Store {
    /// Values with a response's status in front: a hit is handed to Apus without a copy.
    hits: RwLock<HashMap<Box<[u8]>, Bytes>>,
}

impl Store {
    /// A store with this many records, with values of ETC's lengths.
    pub(crate) fn loaded(records: u32) -> Self {
        let mut rng = seeded(u64::from(records));
        let mut hits = HashMap::with_capacity(records as usize);
        for record in 0..records {
            let length = etc::value_length(&mut rng) as usize;
            hits.insert(key(record).into(), hit(filler(0, length)));
        }
        Self { hits: RwLock::new(hits) }
    }

    /// The response to a read of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Bytes {
        let hits = self.hits.read().unwrap_or_else(PoisonError::into_inner);
        hits.get(key).cloned().unwrap_or_else(|| Status::Missing.alone())
    }

    /// Sets a value. Returns the response.
    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Bytes {
        let new = hit(value);
        let old = self.hits.write().unwrap_or_else(PoisonError::into_inner).insert(key.into(), new);
        // The old value is freed after the lock is released.
        drop(old);
        Status::Done.alone()
    }
}

/// A value as a response.
fn hit(value: &[u8]) -> Bytes {
    [&[Status::Done as u8], value].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_survive_the_trip() {
        for query in [
            Query::Get { key: b"007" },
            Query::Set { key: b"1", value: b"" },
            Query::Set { key: b"1", value: b"abc" },
            Query::Stats,
        ] {
            assert_eq!(Query::parse(&query.encode()), Some(query));
        }
        assert_eq!(Query::parse(&[0, 9, b'x']), None, "a key cut short");
        assert_eq!(Query::parse(&[7, 0]), None, "an unknown operation");
    }

    #[test]
    fn what_was_loaded_is_found_and_what_was_set_replaces_it() {
        let store = Store::loaded(100);
        for record in 0..100 {
            check_value(value_of(&store.get(&key(record))).unwrap()).unwrap();
        }
        assert_eq!(store.get(b"no such key"), Status::Missing.alone());
        assert_eq!(store.set(&key(3), filler(0, 77)), Status::Done.alone());
        assert_eq!(value_of(&store.get(&key(3))).unwrap(), filler(0, 77));
        assert!(value_of(&store.get(b"no such key")).is_err());
    }

    #[test]
    fn keys_differ() {
        let keys: std::collections::BTreeSet<Vec<u8>> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
    }
}
