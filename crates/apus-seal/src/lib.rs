//! Sealed packets of Apus, as pure state: no clock, thread, socket or unsafe.
//!
//! Two nodes with identities speak *sealed*: every UDP datagram is one AEAD record. The keys come from a TLS 1.3 handshake that
//! runs as ordinary calls to a reserved port. `docs/protocol.md` and `docs/wire.md` state the rules (`seal-1`, `W43`, …) that
//! comments and tests cite.
//!
//! | part | holds |
//! | --- | --- |
//! | [`Associations`] | the keys of all paths: seals, opens, and ends what is old |
//! | [`Admitted`], [`Opened`] | the way of a received datagram |
//! | [`Hint`] | the answer to a datagram whose key is not known |
//! | [`Suite`], [`Role`], [`PathSecret`], [`DirectionSecret`], [`RecordKey`] | the key schedule |
//! | [`Aead`] | the cipher: `AwsAead` with the feature `rustls`, a fake one in the simulator |
//!
//! The order of calls: a handshake takes an id ([`Associations::reserve`]) and gives it keys ([`Associations::install`]). From
//! then on the link seals each datagram with [`Associations::seal_in_place`] or [`Associations::seal_parts`]. It passes each
//! received one to [`Associations::admit`], which tests the number, and then opens it. When [`Associations::poll_timeout`] is
//! due, the link calls [`Associations::handle_timeout`], and then [`Associations::poll_ended`].

#![forbid(unsafe_code)]

mod aead;
mod association;
#[cfg(feature = "rustls")]
mod aws;
mod counters;
mod datagram;
mod error;
mod key;
mod opened;
mod receiving;
mod schedule;
mod sending;
mod suite;
mod table;
mod window;

pub use aead::{Aead, Forged, NONCE_LEN, Nonce, TAG_LEN, Tag};
pub use association::{EndReason, Installation, SealLimits, Successor};
#[cfg(feature = "rustls")]
pub use aws::AwsAead;
pub use counters::SealCounters;
pub use datagram::{
    AssociationId, CLEAR_LEN, HEADER_LEN_MAX, HINT_LEN, Hint, Malformed, OVERHEAD, VERSION_HINT,
    VERSION_SEALED,
};
pub use error::{HintError, OpenError, SealError};
pub use opened::{Admitted, Opened};
pub use schedule::{DirectionSecret, PathSecret, RecordKey, RefreshSalt, Role};
pub use suite::Suite;
pub use table::{Associations, EndedAssociation, Kept};
