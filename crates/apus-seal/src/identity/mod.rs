//! Identities: the names in a certificate, the rules that admit peers, and the certificates that a node accepts.
//!
//! | file | holds |
//! | --- | --- |
//! | `name` | the name of a node, and the facts by which it is judged again |
//! | `certificate` | a strict reader of DER |
//! | `pattern` | patterns, rules and denied peers |
//! | `trust` | roots, trust domains and revocation lists, by webpki |

pub(crate) mod certificate;
pub(crate) mod name;
pub(crate) mod pattern;
#[cfg(feature = "rustls")]
pub(crate) mod trust;
