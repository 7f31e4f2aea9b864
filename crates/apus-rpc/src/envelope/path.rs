//! Paths of methods.

use std::fmt;

use bytes::Bytes;

use crate::envelope::error::EnvelopeError;

/// The path of a method: `/SERVICE/METHOD`, in printable ASCII characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MethodPath {
    bytes: Bytes,
}

impl MethodPath {
    /// Checks a path.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError::BadPath`].
    ///
    /// ```
    /// use apus_rpc::envelope::MethodPath;
    ///
    /// let path = MethodPath::new("/shop.Calc/Add")?;
    /// assert_eq!((path.service(), path.method()), ("shop.Calc", "Add"));
    /// assert!(MethodPath::new("shop.Calc/Add").is_err());
    /// # Ok::<(), apus_rpc::envelope::EnvelopeError>(())
    /// ```
    //= docs/rpc-wire.md#E6
    pub fn new(path: impl Into<Bytes>) -> Result<Self, EnvelopeError> {
        let bytes = path.into();
        // Without an early end, the loop takes many bytes at a time.
        let is_of_path = |all, byte: &u8| all & matches!(byte, 0x21..=0x7E);
        let names = match bytes.split_first() {
            Some((b'/', rest)) if rest.iter().fold(true, is_of_path) => rest,
            _ => return Err(EnvelopeError::BadPath),
        };
        match names.iter().rposition(|&byte| byte == b'/') {
            Some(slash) if slash > 0 && slash + 1 < names.len() => Ok(Self { bytes }),
            _ => Err(EnvelopeError::BadPath),
        }
    }

    /// The whole path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes).expect("a path is ASCII")
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The name of the service, with its package: the part between the first slash and the last one.
    #[must_use]
    pub fn service(&self) -> &str {
        self.parts().0
    }

    /// The name of the method: the part after the last slash.
    #[must_use]
    pub fn method(&self) -> &str {
        self.parts().1
    }

    /// Stands for the path of a call that is refused.
    pub(crate) fn unknown() -> Self {
        Self { bytes: Bytes::from_static(b"/unknown/unknown") }
    }

    fn parts(&self) -> (&str, &str) {
        self.as_str()[1..].rsplit_once('/').expect("a path has two slashes")
    }
}

impl fmt::Display for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_service_and_a_method() {
        //= docs/rpc-wire.md#E6
        for path in ["/a/b", "/grpc.health.v1.Health/Check", "/a/b/c"] {
            assert_eq!(MethodPath::new(path).map(|path| path.to_string()), Ok(path.to_owned()));
        }
        for path in ["", "/", "//", "/a", "/a/", "//b", "a/b", "/a /b", "/é/b", "/a/b\n"] {
            assert_eq!(MethodPath::new(path), Err(EnvelopeError::BadPath), "{path}");
        }
    }
}
