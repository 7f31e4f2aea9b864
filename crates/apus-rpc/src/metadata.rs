//! Metadata: ordered pairs of a name and a value, beside the body of a request or response.

use std::fmt;

use bytes::Bytes;

use crate::header_name::HeaderName;

/// Pairs of a name and a value that go with a request, before a response, or after it (*trailers*).
///
/// A name may occur several times; the order is kept. Names are lower-case ASCII letters, digits and `-`, `_`, `.`. The value of a
/// name that ends in `-bin` is bytes; other values are text of printable ASCII characters and spaces. Names that begin with `grpc-`
/// are gRPC's. All metadata of a message counts against the limit of its head, 16 KiB by default
/// ([`EnvelopeLimits`](crate::envelope::EnvelopeLimits)).
///
/// Metadata is encrypted only between nodes with certificates; otherwise it goes in the clear.
///
/// ```
/// use apus_rpc::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.append("x-tenant-id", "7")?;
/// metadata.append_bin("picture-bin", &b"\x00\xFF"[..])?;
/// assert_eq!(metadata.get("x-tenant-id"), Some("7"));
/// assert_eq!(metadata.get_bin("picture-bin").map(|bytes| &bytes[..]), Some(&b"\x00\xFF"[..]));
/// # Ok::<(), apus_rpc::MetadataError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    pairs: Vec<(HeaderName, Bytes)>,
}

/// A value of [`Metadata`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataValue<'a> {
    /// Printable ASCII characters and spaces.
    Text(&'a str),
    /// Any bytes, of a name that ends in `-bin`.
    Binary(&'a Bytes),
}

/// A name or value that [`Metadata`] does not take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// Misuse: names have one or more lower-case ASCII letters, digits, `-`, `_` and `.`.
    #[error("metadata name '{}': expected lower-case ASCII letters, digits, '-', '_' and '.'", .0.escape_debug())]
    Name(String),
    /// Misuse: values of text have printable ASCII characters and spaces only.
    #[error("the value of '{0}' is not printable ASCII text: a name that ends in -bin takes bytes")]
    Text(String),
    /// Misuse: names of bytes end in `-bin`, and names of text do not.
    #[error("metadata name '{0}': names that end in -bin take bytes, and other names take text")]
    Binary(String),
}

impl Metadata {
    /// No pairs. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { pairs: Vec::new() }
    }

    pub(crate) fn with_capacity(pairs: usize) -> Self {
        Self { pairs: Vec::with_capacity(pairs) }
    }

    /// Adds a pair that was checked.
    pub(crate) fn push(&mut self, name: HeaderName, value: Bytes) {
        self.pairs.push((name, value));
    }

    pub(crate) fn pairs(&self) -> &[(HeaderName, Bytes)] {
        &self.pairs
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds a pair with a text, after the others.
    ///
    /// # Errors
    ///
    /// [`MetadataError`]: the name or the value has a character that is not allowed, or the name ends in `-bin`.
    pub fn append(&mut self, name: &str, value: impl Into<String>) -> Result<(), MetadataError> {
        let known = HeaderName::new(name).ok_or_else(|| MetadataError::Name(name.to_owned()))?;
        if known.is_binary() {
            return Err(MetadataError::Binary(name.to_owned()));
        }
        let value = value.into().into_bytes();
        if !is_text(&value) {
            return Err(MetadataError::Text(name.to_owned()));
        }
        self.push(known, value.into());
        Ok(())
    }

    /// Adds a pair with bytes, after the others. The name ends in `-bin`.
    ///
    /// # Errors
    ///
    /// [`MetadataError`]: the name has a character that is not allowed, or does not end in `-bin`.
    pub fn append_bin(&mut self, name: &str, value: impl Into<Bytes>) -> Result<(), MetadataError> {
        let known = HeaderName::new(name).ok_or_else(|| MetadataError::Name(name.to_owned()))?;
        if !known.is_binary() {
            return Err(MetadataError::Binary(name.to_owned()));
        }
        self.push(known, value.into());
        Ok(())
    }

    /// Removes all pairs with this name, then adds one with a text.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); nothing is removed then.
    pub fn insert(&mut self, name: &str, value: impl Into<String>) -> Result<(), MetadataError> {
        let mut added = Self::new();
        added.append(name, value)?;
        self.remove(name);
        self.pairs.append(&mut added.pairs);
        Ok(())
    }

    /// Removes all pairs with this name. Returns their number.
    pub fn remove(&mut self, name: &str) -> usize {
        let before = self.pairs.len();
        self.pairs.retain(|(other, _)| other.as_str() != name);
        before - self.pairs.len()
    }

    /// The text of the first pair with this name. `None` for names that end in `-bin`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).find_map(|value| match value {
            MetadataValue::Text(text) => Some(text),
            MetadataValue::Binary(_) => None,
        })
    }

    /// The bytes of the first pair with this name, which ends in `-bin`.
    #[must_use]
    pub fn get_bin(&self, name: &str) -> Option<&Bytes> {
        self.get_all(name).find_map(|value| match value {
            MetadataValue::Text(_) => None,
            MetadataValue::Binary(bytes) => Some(bytes),
        })
    }

    /// The values of all pairs with this name, in order.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = MetadataValue<'_>> {
        self.iter().filter(move |(other, _)| *other == name).map(|(_, value)| value)
    }

    /// All pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, MetadataValue<'_>)> {
        self.pairs.iter().map(|(name, bytes)| {
            let value = if name.is_binary() {
                MetadataValue::Binary(bytes)
            } else {
                MetadataValue::Text(str::from_utf8(bytes).expect("texts were checked"))
            };
            (name.as_str(), value)
        })
    }

    /// Adds the pairs of another one after these.
    pub fn extend(&mut self, other: Self) {
        if self.pairs.is_empty() {
            self.pairs = other.pairs;
        } else {
            self.pairs.extend(other.pairs);
        }
    }
}

/// Whether bytes are a value of text.
//= docs/rpc-wire.md#E10
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, 0x20..=0x7E))
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_repeat_in_order() {
        let mut metadata = Metadata::new();
        for (name, value) in [("b", "1"), ("a", "2"), ("b", "3")] {
            metadata.append(name, value).expect("a pair");
        }
        let all: Vec<_> = metadata.get_all("b").collect();
        assert_eq!(all, [MetadataValue::Text("1"), MetadataValue::Text("3")]);
        metadata.insert("b", "4").expect("a pair");
        let names: Vec<_> = metadata.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!((metadata.get("b"), metadata.len()), (Some("4"), 2));
        assert_eq!((metadata.remove("a"), metadata.remove("c")), (1, 0));
    }

    #[test]
    fn wrong_names_and_values_are_named() {
        //= docs/rpc-wire.md#E9
        let mut metadata = Metadata::new();
        for name in ["", "A", "a b", "é", "a:b", ":path"] {
            let error = metadata.append(name, "x").expect_err(name);
            assert_eq!(error, MetadataError::Name(name.to_owned()));
        }
        //= docs/rpc-wire.md#E10
        for value in ["é", "a\nb", "\0", "\x7F"] {
            let error = metadata.append("a", value).expect_err(value);
            assert_eq!(error, MetadataError::Text("a".to_owned()));
        }
        let binary = |name: &str| Err(MetadataError::Binary(name.to_owned()));
        assert_eq!(metadata.append("a-bin", "x"), binary("a-bin"));
        assert_eq!(metadata.append_bin("a", "x"), binary("a"));
        assert!(metadata.is_empty());
    }
}
