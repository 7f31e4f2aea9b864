//! Sealed datagrams between two tables, with the ciphers of aws-lc-rs.

#![cfg(feature = "rustls")]

mod handshake;
mod keys;
mod lifetime;
mod opening;
mod pair;
mod reordered;
