//! Sealed packets of Apus, as pure state: no clock, thread, socket or unsafe.
//!
//! Two nodes with identities speak *sealed*: every UDP datagram is one AEAD record. The keys come from a TLS 1.3 handshake that runs
//! as ordinary calls to a reserved port. `docs/protocol.md` states the rules (`seal-1`, `W43`, …) that comments and tests cite.
//!
//! | part | holds |
//! | --- | --- |
//! | [`Suite`], [`Role`], [`PathSecret`], [`DirectionSecret`] | the key schedule |
//! | [`Name`], [`Identity`] | the names in a certificate, and the facts by which it is judged again |
//! | [`Pattern`], [`Rule`], [`Denied`] | the peers that a socket serves or calls |

#![forbid(unsafe_code)]

mod certificate;
mod identity;
mod pattern;
mod schedule;
mod suite;

pub use certificate::{CertificateError, NAMES_MAX, identity};
pub use identity::{Identity, Name, NameError, SPIFFE_MAX};
pub use pattern::{Denied, DeniedPeer, PATTERNS_MAX, Pattern, PatternError, Rule};
pub use schedule::{DirectionSecret, PathSecret, RecordKey, Role};
pub use suite::Suite;
