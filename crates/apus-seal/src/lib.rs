//! Sealed packets of Apus, as pure state: no clock, thread, socket or unsafe.
//!
//! Two nodes with identities speak *sealed*: every UDP datagram is one AEAD record. The keys come from a TLS 1.3 handshake that
//! runs as ordinary calls to a reserved port. `docs/protocol.md` states the rules (`seal-1`, `W43`, …) that comments and tests
//! cite.
//!
//! | part | holds |
//! | --- | --- |
//! | [`Suite`], [`Role`], [`PathSecret`], [`DirectionSecret`] | the key schedule |
//! | [`Name`], [`Identity`] | the names in a certificate, and the facts by which it is judged again |
//! | [`Pattern`], [`Rule`], [`Denied`] | the peers that a socket serves or calls |
//! | [`frame`] | the bodies of a handshake's calls |
//! | [`ClientHandshake`], [`Attempts`] | a client's handshake, and when it may begin one |
//! | [`ServerHandshake`], [`Handshakes`] | a server's handshake, and all of them within their limits |
//! | `TlsConfig`, `Trust` (feature `rustls`) | TLS 1.3, and the certificates that a node accepts |

#![forbid(unsafe_code)]

mod attempts;
mod certificate;
mod failure;
pub mod frame;
mod handshake;
mod handshakes;
mod identity;
mod pattern;
mod schedule;
mod suite;
#[cfg(feature = "rustls")]
mod tls;
#[cfg(feature = "rustls")]
mod trust;

pub use attempts::{Attempts, Need};
pub use certificate::{CertificateError, NAMES_MAX};
pub use failure::{Alert, HandshakeError, Limit, TlsError};
pub use frame::{PathEnd, SECURE_PORT};
pub use handshake::{
    CONTINUES_MAX, ClientHandshake, ClientOffer, ClientStep, Introduction, Refresh,
    ServerHandshake, ServerOffer, ServerStep, Tls,
};
pub use handshakes::{Arrival, HandshakeAnswer, HandshakeLimits, Handshakes, Work, Worked};
pub use identity::{Identity, Name, NameError, SPIFFE_MAX};
pub use pattern::{Denied, DeniedPeer, PATTERNS_MAX, Pattern, PatternError, Rule};
pub use schedule::{DirectionSecret, PathSecret, RecordKey, RefreshSalt, Role};
pub use suite::Suite;
#[cfg(feature = "rustls")]
pub use tls::{TlsConfig, TlsSession};
#[cfg(feature = "rustls")]
pub use trust::{TlsConfigError, Trust};
