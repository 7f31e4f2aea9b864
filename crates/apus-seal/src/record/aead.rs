//! The cipher of a record, as a trait: aws-lc-rs in programs, a fake one in the simulator.

use crate::RecordKey;

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 12;
/// Length of a tag in bytes.
pub const TAG_LEN: usize = 16;

/// A number that a key uses for one record only (W44).
pub type Nonce = [u8; NONCE_LEN];
/// The last bytes of a record, which only a holder of the key can compute.
pub type Tag = [u8; TAG_LEN];

/// A record that nobody with the key has sealed, or one that was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tag does not fit")]
pub struct Forged;

/// An AEAD with its key, used without associated data. Each operation passes once over the bytes and allocates nothing.
///
/// The implementation erases the key when it is dropped.
pub trait Aead {
    /// Expands a key. May allocate.
    fn new(key: &RecordKey) -> Self;

    /// Encrypts `text` in place and writes its tag.
    fn seal_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &mut Tag);

    //= docs/wire.md#W45
    /// Encrypts `payload ‖ header` and writes the ciphertext and then the tag to `sealed`, whose length is that of all three.
    fn seal_parts(&self, nonce: &Nonce, payload: &[u8], header: &[u8], sealed: &mut [u8]);

    /// Decrypts `text` in place. After an error the bytes there are worthless, and are never the plaintext.
    ///
    /// # Errors
    ///
    /// If the tag does not fit.
    fn open_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> Result<(), Forged>;

    /// Decrypts `sealed` into `text`, which has the same length. After an error the bytes there are worthless, and are never the
    /// plaintext.
    ///
    /// # Errors
    ///
    /// If the tag does not fit.
    fn open_into(
        &self,
        nonce: &Nonce,
        sealed: &[u8],
        tag: &Tag,
        text: &mut [u8],
    ) -> Result<(), Forged>;
}
