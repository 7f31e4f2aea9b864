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
//! | [`LoggedKey`], [`LoggedKeys`] | keys for tools that look into captured datagrams |
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

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod handshake;
mod holes;
mod identity;
mod record;
mod schedule;
mod suite;

pub use handshake::attempts::{Attempts, Need};
pub use handshake::failure::{Alert, HandshakeError, Limit, TlsError};
pub use handshake::frame;
pub use handshake::frame::{PathEnd, SECURE_PORT};
pub use handshake::handshakes::{
    Arrival, HandshakeAnswer, HandshakeLimits, Handshakes, Work, Worked,
};
pub use handshake::sides::{
    CONTINUES_MAX, ClientHandshake, ClientOffer, ClientStep, Introduction, Refresh,
    ServerHandshake, ServerOffer, ServerStep, Tls,
};
#[cfg(feature = "rustls")]
pub use handshake::tls::{TlsConfig, TlsSession};
#[cfg(feature = "holes")]
pub use holes::Hole;
pub use identity::certificate::{CertificateError, NAMES_MAX};
pub use identity::name::{Identity, Name, NameError, SPIFFE_MAX};
pub use identity::pattern::{Denied, DeniedPeer, PATTERNS_MAX, Pattern, PatternError, Rule};
#[cfg(feature = "rustls")]
pub use identity::trust::{TlsConfigError, Trust};
pub use record::aead::{Aead, Forged, NONCE_LEN, Nonce, TAG_LEN, Tag};
pub use record::association::{EndReason, Installation, SealLimits, Successor};
#[cfg(feature = "rustls")]
pub use record::aws::AwsAead;
pub use record::counters::SealCounters;
pub use record::datagram::{
    AssociationId, CLEAR_LEN, HEADER_LEN_MAX, HINT_LEN, Hint, Malformed, OVERHEAD, VERSION_HINT,
    VERSION_SEALED,
};
pub use record::error::{HintError, OpenError, SealError};
pub use record::key_log::{KeyLogError, LINE_MAX, LoggedKey};
pub use record::logged_keys::{LoggedKeys, NotOpened, OpenedCapture};
pub use record::opened::{Admitted, Opened};
pub use record::table::{Associations, EndedAssociation, Kept};
pub use schedule::{DirectionSecret, PathSecret, RecordKey, RefreshSalt, Role};
pub use suite::{Suite, SuiteError};
