//! The ciphers of aws-lc-rs.

use aws_lc_rs::aead::{
    self, AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey,
};

use crate::{Aead, Forged, Nonce, RecordKey, Suite, Tag};

/// A key of AES-GCM or ChaCha20-Poly1305. It takes 631 bytes of heap with AES-128.
pub struct AwsAead(LessSafeKey);

impl Aead for AwsAead {
    fn new(key: &RecordKey) -> Self {
        let unbound = UnboundKey::new(algorithm(key.suite()), key.key());
        Self(LessSafeKey::new(unbound.expect("the key has the length of its suite")))
    }

    #[inline]
    fn seal_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &mut Tag) {
        self.0
            .seal_in_place_scatter(unique(nonce), Aad::empty(), text, &[], tag)
            .expect("a datagram is shorter than the longest text of a cipher");
    }

    #[inline]
    fn seal_parts(&self, nonce: &Nonce, payload: &[u8], header: &[u8], sealed: &mut [u8]) {
        let (begin, end) = sealed.split_at_mut(payload.len());
        self.0
            .seal_out_of_place_scatter(unique(nonce), Aad::empty(), payload, begin, header, end)
            .expect("`sealed` has the length of payload, header and tag");
    }

    #[inline]
    fn open_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> Result<(), Forged> {
        self.0
            .open_in_place_separate_tag(unique(nonce), Aad::empty(), tag, text)
            .map(|_| ())
            .map_err(|_| Forged)
    }

    #[inline]
    fn open_into(
        &self,
        nonce: &Nonce,
        sealed: &[u8],
        tag: &Tag,
        text: &mut [u8],
    ) -> Result<(), Forged> {
        self.0
            .open_separate_gather(unique(nonce), Aad::empty(), sealed, tag, text)
            .map_err(|_| Forged)
    }
}

/// The numbers of the lanes keep nonces apart (seal-13), so no key is asked to choose its own.
#[inline]
fn unique(nonce: &Nonce) -> aead::Nonce {
    aead::Nonce::from(nonce)
}

fn algorithm(suite: Suite) -> &'static Algorithm {
    match suite {
        Suite::Aes128Gcm => &AES_128_GCM,
        Suite::Aes256Gcm => &AES_256_GCM,
        Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    }
}
