//! Cipher suites.

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

    /// Returns the length of a key in bytes: 16 or 32.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}
