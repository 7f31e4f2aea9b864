//! Cipher suites.

use std::fmt;
use std::str::FromStr;

/// The AEAD of a path's records. Its number is the byte in HELLO and REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Suite {
    /// AES-128 in Galois/Counter mode: the default.
    Aes128Gcm = 1,
    /// AES-256 in Galois/Counter mode.
    Aes256Gcm = 2,
    /// ChaCha20 with Poly1305, for processors without instructions for AES.
    ChaCha20Poly1305 = 3,
}

impl Suite {
    /// All suites, in order of preference.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the suite with this number; `None` for a number that this program does not know.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&suite| suite as u8 == number)
    }

    /// The names of all suites, as a phrase.
    pub const EXPECTED: &str = "aes-128-gcm, aes-256-gcm or chacha20-poly1305";

    const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Returns the length of a key in bytes: 16 or 32.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text is not the name of a suite.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}': expected {}", Suite::EXPECTED)]
pub struct SuiteError {
    text: String,
}

impl FromStr for Suite {
    type Err = SuiteError;

    fn from_str(text: &str) -> Result<Self, SuiteError> {
        let found = Self::ALL.into_iter().find(|suite| suite.name() == text);
        found.ok_or_else(|| SuiteError { text: text.to_owned() })
    }
}
