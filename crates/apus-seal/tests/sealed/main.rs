//! Sealed datagrams between two tables, with the ciphers of aws-lc-rs.

#![cfg(feature = "rustls")]

mod handshake;
mod keys;
mod lifetime;
mod logged;
mod opening;
mod pair;
mod reordered;
