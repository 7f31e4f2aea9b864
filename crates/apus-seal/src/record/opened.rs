//! The way of a received datagram: admitted by its clear bytes, then opened.

use std::time::Duration;

use apus_wire::PathId;

use crate::record::aead::{Aead, TAG_LEN, Tag};
use crate::record::association::{Association, Shared};
use crate::record::datagram::{AssociationId, CLEAR_LEN, ClearHeader};
use crate::record::error::OpenError;

/// A datagram whose clear bytes name keys and a number that was not used. Only [`open_in_place`] and [`open_into`] show whether
/// it is forged.
///
/// [`open_in_place`]: Self::open_in_place
/// [`open_into`]: Self::open_into
#[must_use]
pub struct Admitted<'t, 'd, A, Address> {
    pub(crate) association: &'t mut Association<A, Address>,
    pub(crate) shared: &'t mut Shared,
    pub(crate) clear: ClearHeader,
    pub(crate) is_home: bool,
    pub(crate) datagram: &'d mut [u8],
}

impl<'d, A: Aead, Address> Admitted<'_, 'd, A, Address> {
    /// Returns the path of the association, if the datagram came from the address of the path.
    #[inline]
    #[must_use]
    pub fn path(&self) -> Option<PathId> {
        self.is_home.then_some(self.association.path)
    }

    /// Returns the length of the header behind the payload; 0 if the content is a packet or a bundle.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.clear.header_len()
    }

    /// Returns the length of the text that is to be opened.
    #[inline]
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.datagram.len() - CLEAR_LEN - TAG_LEN
    }

    /// Opens the datagram in place.
    ///
    /// # Errors
    ///
    /// [`OpenError::Forged`] and [`OpenError::UnknownEpoch`].
    #[inline]
    pub fn open_in_place(self, now: Duration) -> Result<Opened<'d>, OpenError> {
        let Self { association, shared, clear, is_home, datagram } = self;
        let (text, tag) = record(datagram);
        association.open(now, clear, is_home, shared, |aead, nonce| {
            aead.open_in_place(nonce, text, tag)
        })?;
        Ok(Opened { id: clear.id, is_home, header_len: clear.header_len(), text })
    }

    //= docs/protocol.md#seal-16
    /// Opens the datagram into the beginning of `room`, which has at least [`text_len`](Self::text_len) bytes. After an error
    /// these bytes are worthless.
    ///
    /// # Errors
    ///
    /// [`OpenError::Forged`] and [`OpenError::UnknownEpoch`].
    ///
    /// # Panics
    ///
    /// If `room` is too short.
    #[inline]
    pub fn open_into<'r>(self, now: Duration, room: &'r mut [u8]) -> Result<Opened<'r>, OpenError> {
        let text = &mut room[..self.text_len()];
        let Self { association, shared, clear, is_home, datagram } = self;
        let (sealed, tag) = record(datagram);
        association.open(now, clear, is_home, shared, |aead, nonce| {
            aead.open_into(nonce, sealed, tag, text)
        })?;
        Ok(Opened { id: clear.id, is_home, header_len: clear.header_len(), text })
    }
}

/// A datagram that the peer has sealed, and that was not opened before.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened<'a> {
    /// The association to which the datagram belongs.
    pub id: AssociationId,
    //= docs/protocol.md#seal-10
    /// Whether the datagram came from the address of the path. If not, it belongs to the path of the address from which it came.
    pub is_home: bool,
    /// Length of the header at the end of the text; 0 if the text is a packet or a bundle.
    pub header_len: usize,
    /// The text: a packet, a bundle, or a payload and its header.
    pub text: &'a mut [u8],
}

impl Opened<'_> {
    /// Returns the payload and the header behind it, which is empty if the text is a packet or a bundle.
    #[inline]
    #[must_use]
    pub fn parts(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.text.len() - self.header_len)
    }
}

/// Returns the sealed text of a datagram and its tag.
#[inline]
fn record(datagram: &mut [u8]) -> (&mut [u8], &Tag) {
    let (text, tag) = datagram[CLEAR_LEN..]
        .split_last_chunk_mut::<TAG_LEN>()
        .expect("an admitted datagram is long enough");
    (text, tag)
}
