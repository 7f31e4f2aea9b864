//! A cipher for simulations, which shows every misuse of a key.
//!
//! It has the lengths of AES-128-GCM. The text is hidden by a keystream, and the tag is a hash of key, nonce and sealed text, so a
//! wrong bit, key, nonce or order fails. It keeps no secret from anybody who computes, and the attacker of a run does not: a faster
//! hash than SipHash makes the run nearly a third shorter. All keys of a thread share one set of nonces: a nonce that a key seals with
//! twice is remembered, which a real cipher cannot show.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hasher as _};

use apus_seal::{Aead, Forged, Nonce, RecordKey, Tag};
use foldhash::fast::{FixedState, FoldHasher};

/// Both halves of a key of 128 bits.
type Key = [u64; 2];

/// An odd number with random bits, which spreads small differences over a word.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

thread_local! {
    static USES: RefCell<Uses> = RefCell::default();
}

/// The keys and nonces with which this thread has sealed.
#[derive(Default)]
struct Uses {
    sealed: HashSet<(Key, Nonce), FixedState>,
    is_reused: bool,
}

/// The cipher with its key.
pub(super) struct FakeAead {
    key: Key,
}

impl FakeAead {
    /// Forgets the nonces of all keys, before a run.
    pub(super) fn forget_nonces() {
        USES.take();
    }

    /// Returns whether a key has sealed twice with one nonce.
    pub(super) fn has_reused_nonce() -> bool {
        USES.with_borrow(|uses| uses.is_reused)
    }

    pub(super) fn note_use(&self, nonce: &Nonce) {
        USES.with_borrow_mut(|uses| uses.is_reused |= !uses.sealed.insert((self.key, *nonce)));
    }

    /// Returns a hasher for a purpose of the key.
    fn hasher(&self, purpose: u64) -> FoldHasher<'static> {
        let mut hasher = FixedState::with_seed(self.key[0]).build_hasher();
        hasher.write_u64(self.key[1]);
        hasher.write_u64(purpose);
        hasher
    }

    /// Hides a text, or shows a hidden one.
    fn apply_keystream(&self, nonce: &Nonce, text: &mut [u8]) {
        let mut hasher = self.hasher(0);
        hasher.write(nonce);
        let start = hasher.finish();
        let stream = |word: u64| {
            let mixed = (start ^ word.wrapping_mul(ODD)).wrapping_mul(0xD134_2543_DE82_EF95);
            (mixed ^ mixed >> 29).to_le_bytes()
        };
        let (words, rest) = text.as_chunks_mut::<8>();
        let last = words.len() as u64;
        for (number, bytes) in (0..).zip(words) {
            *bytes =
                (u64::from_le_bytes(*bytes) ^ u64::from_le_bytes(stream(number))).to_le_bytes();
        }
        rest.iter_mut().zip(stream(last)).for_each(|(byte, mask)| *byte ^= mask);
    }

    fn tag(&self, nonce: &Nonce, sealed: &[u8]) -> Tag {
        let mut hasher = self.hasher(1);
        hasher.write(nonce);
        hasher.write(sealed);
        hasher.write_usize(sealed.len());
        let hash = u128::from(hasher.finish());
        (hash << 64 | hash.wrapping_mul(u128::from(ODD)) >> 64 ^ hash).to_le_bytes()
    }
}

impl Aead for FakeAead {
    fn new(key: &RecordKey) -> Self {
        let mut folded = [0; 16];
        for (index, byte) in key.key().iter().enumerate() {
            folded[index % 16] ^= byte;
        }
        let whole = u128::from_le_bytes(folded);
        Self { key: [whole as u64, (whole >> 64) as u64] }
    }

    fn seal_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &mut Tag) {
        self.note_use(nonce);
        self.apply_keystream(nonce, text);
        *tag = self.tag(nonce, text);
    }

    fn seal_parts(&self, nonce: &Nonce, payload: &[u8], header: &[u8], sealed: &mut [u8]) {
        let (text, tag) = sealed.split_last_chunk_mut().expect("room for the tag");
        text[..payload.len()].copy_from_slice(payload);
        text[payload.len()..].copy_from_slice(header);
        self.seal_in_place(nonce, text, tag);
    }

    fn open_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> Result<(), Forged> {
        if self.tag(nonce, text) != *tag {
            text.fill(0xDD);
            return Err(Forged);
        }
        self.apply_keystream(nonce, text);
        Ok(())
    }

    fn open_into(
        &self,
        nonce: &Nonce,
        sealed: &[u8],
        tag: &Tag,
        text: &mut [u8],
    ) -> Result<(), Forged> {
        text.copy_from_slice(sealed);
        self.open_in_place(nonce, text, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_seal::{PathSecret, Role, Suite};

    const NONCE: Nonce = [3; 12];

    fn cipher(secret: u8) -> FakeAead {
        let secret = PathSecret::new([secret; 32]).direction(Role::Client);
        FakeAead::new(&secret.record_key(Suite::Aes128Gcm))
    }

    fn sealed(aead: &FakeAead, text: &[u8]) -> (Vec<u8>, Tag) {
        let (mut text, mut tag) = (text.to_vec(), [0; 16]);
        aead.seal_in_place(&NONCE, &mut text, &mut tag);
        (text, tag)
    }

    #[test]
    fn any_wrong_bit_key_or_nonce_fails() {
        let aead = cipher(1);
        let (text, tag) = sealed(&aead, b"a text of some bytes");
        let opens = |aead: &FakeAead, nonce: &Nonce, text: &[u8], tag: &Tag| {
            aead.open_in_place(nonce, &mut text.to_vec(), tag).is_ok()
        };
        assert!(opens(&aead, &NONCE, &text, &tag));
        assert!(!opens(&cipher(2), &NONCE, &text, &tag) && !opens(&aead, &[4; 12], &text, &tag));
        for bit in 0..text.len() * 8 {
            let mut changed = text.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&aead, &NONCE, &changed, &tag));
        }
    }

    #[test]
    fn the_parts_are_sealed_as_one_text() {
        let aead = cipher(1);
        let (text, tag) = sealed(&aead, b"payload and header");
        let mut parts = [0; 18 + 16];
        aead.seal_parts(&NONCE, b"payload", b" and header", &mut parts);
        assert_eq!(parts[..], [&text[..], &tag].concat());
        let mut room = [0; 18];
        aead.open_into(&NONCE, &text, &tag, &mut room).expect("its tag");
        assert_eq!(&room, b"payload and header");
    }

    #[test]
    fn a_nonce_that_is_used_again_is_noticed() {
        FakeAead::forget_nonces();
        sealed(&cipher(1), b"text");
        sealed(&cipher(2), b"text");
        assert!(!FakeAead::has_reused_nonce());
        sealed(&cipher(1), b"text");
        assert!(FakeAead::has_reused_nonce());
        FakeAead::forget_nonces();
        assert!(!FakeAead::has_reused_nonce());
    }
}
