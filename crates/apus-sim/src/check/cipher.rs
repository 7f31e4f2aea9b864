//! The cipher of a run: the fake one, or AES-128-GCM in a test that compares the two.
//!
//! A run must be the same with either. Otherwise the fake cipher would hide what a real one shows, or the other way round.

use std::cell::Cell;

#[cfg(feature = "aes")]
use apus_seal::AwsAead;
use apus_seal::{Aead, Forged, Nonce, RecordKey, Tag};

use crate::check::fake_aead::FakeAead;

thread_local! {
    /// Whether the keys of this thread are of AES-128-GCM.
    static IS_REAL: Cell<bool> = const { Cell::new(false) };
}

/// A cipher with its key.
pub(super) struct Cipher {
    fake: FakeAead,
    #[cfg(feature = "aes")]
    real: Option<AwsAead>,
}

impl Cipher {
    /// Begins a run: forgets the nonces of all keys, and chooses the cipher of new ones.
    pub(super) fn begin(is_real: bool) {
        FakeAead::forget_nonces();
        IS_REAL.set(is_real);
    }
}

impl Aead for Cipher {
    fn new(key: &RecordKey) -> Self {
        Self {
            fake: FakeAead::new(key),
            #[cfg(feature = "aes")]
            real: IS_REAL.get().then(|| AwsAead::new(key)),
        }
    }

    fn seal_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &mut Tag) {
        #[cfg(feature = "aes")]
        if let Some(real) = &self.real {
            self.fake.note_use(nonce);
            return real.seal_in_place(nonce, text, tag);
        }
        self.fake.seal_in_place(nonce, text, tag);
    }

    fn seal_parts(&self, nonce: &Nonce, payload: &[u8], header: &[u8], sealed: &mut [u8]) {
        #[cfg(feature = "aes")]
        if let Some(real) = &self.real {
            self.fake.note_use(nonce);
            return real.seal_parts(nonce, payload, header, sealed);
        }
        self.fake.seal_parts(nonce, payload, header, sealed);
    }

    fn open_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> Result<(), Forged> {
        #[cfg(feature = "aes")]
        if let Some(real) = &self.real {
            return real.open_in_place(nonce, text, tag);
        }
        self.fake.open_in_place(nonce, text, tag)
    }

    fn open_into(
        &self,
        nonce: &Nonce,
        sealed: &[u8],
        tag: &Tag,
        text: &mut [u8],
    ) -> Result<(), Forged> {
        #[cfg(feature = "aes")]
        if let Some(real) = &self.real {
            return real.open_into(nonce, sealed, tag, text);
        }
        self.fake.open_into(nonce, sealed, tag, text)
    }
}
