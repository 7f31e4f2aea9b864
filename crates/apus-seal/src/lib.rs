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
//! | [`Name`], [`Identity`] | the names in a certificate, and the facts by which it is judged again |
//! | [`Pattern`], [`Rule`], [`Denied`] | the peers that a socket serves or calls |
//! | [`frame`] | the bodies of a handshake's calls |
//! | [`ClientHandshake`], [`Attempts`] | a client's handshake, and when it may begin one |
//! | [`ServerHandshake`], [`Handshakes`] | a server's handshake, and all of them within their limits |
//! | `TlsConfig`, `Trust` (feature `rustls`) | TLS 1.3, and the certificates that a node accepts |
//!
//! The order of calls: a handshake takes an id ([`Associations::reserve`]) and gives it keys ([`Associations::install`]). From
//! then on the link seals each datagram with [`Associations::seal_in_place`] or [`Associations::seal_parts`]. It passes each
//! received one to [`Associations::admit`], which tests the number, and then opens it. When [`Associations::poll_timeout`] is
//! due, the link calls [`Associations::handle_timeout`], and then [`Associations::poll_ended`].

#![forbid(unsafe_code)]

mod aead;
mod association;
mod attempts;
#[cfg(feature = "rustls")]
mod aws;
mod certificate;
mod counters;
mod datagram;
mod error;
mod failure;
pub mod frame;
mod handshake;
mod handshakes;
mod identity;
mod key;
mod opened;
mod pattern;
mod receiving;
mod schedule;
mod sending;
mod suite;
mod table;
#[cfg(feature = "rustls")]
mod tls;
#[cfg(feature = "rustls")]
mod trust;
mod window;

pub use aead::{Aead, Forged, NONCE_LEN, Nonce, TAG_LEN, Tag};
pub use association::{EndReason, Installation, SealLimits, Successor};
pub use attempts::{Attempts, Need};
#[cfg(feature = "rustls")]
pub use aws::AwsAead;
pub use certificate::{CertificateError, NAMES_MAX};
pub use counters::SealCounters;
pub use datagram::{
    AssociationId, CLEAR_LEN, HEADER_LEN_MAX, HINT_LEN, Hint, Malformed, OVERHEAD, VERSION_HINT,
    VERSION_SEALED,
};
pub use error::{HintError, OpenError, SealError};
pub use failure::{Alert, HandshakeError, Limit, TlsError};
pub use frame::{PathEnd, SECURE_PORT};
pub use handshake::{
    CONTINUES_MAX, ClientHandshake, ClientOffer, ClientStep, Introduction, Refresh,
    ServerHandshake, ServerOffer, ServerStep, Tls,
};
pub use handshakes::{Arrival, HandshakeAnswer, HandshakeLimits, Handshakes, Work, Worked};
pub use identity::{Identity, Name, NameError, SPIFFE_MAX};
pub use opened::{Admitted, Opened};
pub use pattern::{Denied, DeniedPeer, PATTERNS_MAX, Pattern, PatternError, Rule};
pub use schedule::{DirectionSecret, PathSecret, RecordKey, RefreshSalt, Role};
pub use suite::Suite;
pub use table::{Associations, EndedAssociation, Kept};
#[cfg(feature = "rustls")]
pub use tls::{TlsConfig, TlsSession};
#[cfg(feature = "rustls")]
pub use trust::{TlsConfigError, Trust};
