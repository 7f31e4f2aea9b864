//! The keys of a key log, which open captured datagrams in any order.

use std::collections::BTreeMap;

use crate::record::aead::{Aead, TAG_LEN};
use crate::record::datagram::{CLEAR_LEN, ClearHeader, Iv, Malformed};
use crate::record::key_log::LoggedKey;
use crate::schedule::RecordKey;

/// Upper bound on the keys that are tried for one datagram. A path that updates its keys every two minutes has 180 a day for each
/// value of the two bits that a datagram has.
const TRIES_MAX: usize = 1_024;

/// Upper bound on the different keys of one path id and epoch. Ids have 38 random bits, so more than one is rare.
const SAME_MAX: usize = 4;

/// Keys by which captured datagrams are opened. Nothing is known of the time at which a key was used, so a datagram is opened by any
/// key that fits, also twice.
pub struct LoggedKeys<A> {
    /// The keys by path id, bits of the epoch, and epoch.
    keys: BTreeMap<(u64, u32, u32), Vec<RecordKey>>,
    len: usize,
    /// For each path id and bits of the epoch, the key that has opened the last datagram.
    last: BTreeMap<(u64, u32), Expanded<A>>,
}

struct Expanded<A> {
    epoch: u32,
    aead: A,
    iv: Iv,
}

/// The reason why a captured datagram is not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotOpened {
    /// The bytes are no sealed datagram.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// There is no key of this path id and epoch.
    #[error("the key log has no key for it")]
    NoKey,
    /// No key of this path id and epoch fits.
    #[error("no key of the log fits its tag")]
    Forged,
}

/// The text of a captured datagram.
#[derive(Debug)]
pub struct OpenedCapture<'a> {
    /// A packet, a bundle, or a payload and its header.
    pub text: &'a [u8],
    /// Length of the header at the end of the text; 0 if the text is a packet or a bundle.
    pub header_len: usize,
}

impl<A: Aead> LoggedKeys<A> {
    /// Creates an empty collection.
    #[must_use]
    pub const fn new() -> Self {
        Self { keys: BTreeMap::new(), len: 0, last: BTreeMap::new() }
    }

    /// Adds a key. Returns `false` if the key is known, or if too many others have its path id and epoch.
    pub fn add(&mut self, logged: &LoggedKey) -> bool {
        let LoggedKey { id, epoch, key } = logged;
        let keys = self.keys.entry((id.to_bits(), epoch % 4, *epoch)).or_default();
        let is_same = |known: &RecordKey| known.key() == key.key() && known.iv() == key.iv();
        if keys.len() >= SAME_MAX || keys.iter().any(is_same) {
            return false;
        }
        keys.push(key.clone());
        self.len += 1;
        true
    }

    /// Returns the number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no key.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Opens a captured datagram into `room`, which grows as needed.
    ///
    /// # Errors
    ///
    /// If it is not sealed, or no key fits.
    pub fn open<'r>(
        &mut self,
        datagram: &[u8],
        room: &'r mut Vec<u8>,
    ) -> Result<OpenedCapture<'r>, NotOpened> {
        let clear = ClearHeader::parse(datagram)?;
        let (sealed, tag) = datagram[CLEAR_LEN..]
            .split_last_chunk::<TAG_LEN>()
            .expect("a datagram with a valid clear header is long enough");
        room.resize(sealed.len(), 0);
        let (id, bits) = (clear.id.to_bits(), clear.epoch_bits());
        let last = self.last.get(&(id, bits));
        let mut opens = |aead: &A, iv| aead.open_into(&clear.nonce(iv), sealed, tag, room).is_ok();
        if !last.is_some_and(|last| opens(&last.aead, last.iv)) {
            // Later epochs are more likely than earlier ones.
            let from = last.map_or(0, |last| last.epoch);
            let later = self.keys.range((id, bits, from)..=(id, bits, u32::MAX));
            let earlier = self.keys.range((id, bits, 0)..(id, bits, from)).rev();
            let keys = later
                .chain(earlier)
                .flat_map(|(&(.., epoch), keys)| keys.iter().map(move |key| (epoch, key)));
            let mut is_any = false;
            let fits = keys.take(TRIES_MAX).find_map(|(epoch, key)| {
                is_any = true;
                let (aead, iv) = (A::new(key), Iv::new(key.iv()));
                opens(&aead, iv).then_some(Expanded { epoch, aead, iv })
            });
            let missing = if is_any { NotOpened::Forged } else { NotOpened::NoKey };
            self.last.insert((id, bits), fits.ok_or(missing)?);
        }
        Ok(OpenedCapture { text: room, header_len: clear.header_len() })
    }
}

impl<A: Aead> Default for LoggedKeys<A> {
    fn default() -> Self {
        Self::new()
    }
}
