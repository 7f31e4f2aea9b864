//! Events for `tracing`, with the feature of that name; nothing without it.
//!
//! All are of things that happen seldom. They are recorded outside the engine's lock, because a subscriber is code of the
//! application.
#![cfg_attr(not(feature = "tracing"), expect(unused_variables, reason = "nothing is recorded"))]

use std::net::SocketAddr;

#[cfg(feature = "tracing")]
use crate::error::CallError;
use crate::error::CloseError;

pub(crate) fn node_started(local_addr: SocketAddr, shards: usize) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%local_addr, shards, "node started");
}

#[cold]
pub(crate) fn file_missing(file: &str, error: &std::io::Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(file, %error, "nodes of this process run without a file");
}

pub(crate) fn node_closed(local_addr: SocketAddr, closed: &Result<(), CloseError>) {
    #[cfg(feature = "tracing")]
    match closed {
        Ok(()) => tracing::debug!(%local_addr, "node closed"),
        Err(error) => tracing::warn!(%local_addr, %error, "node closed"),
    }
}

#[cfg(feature = "secure")]
pub(crate) fn reload_failed(error: &crate::error::IdentityError) {
    #[cfg(feature = "tracing")]
    tracing::error!(%error, "the certificate, key or roots of the node cannot be renewed");
}

/// A certificate expires soon, or has expired. Files with another one are taken without a restart.
#[cfg(feature = "secure")]
pub(crate) fn certificate_expires(name: &apus_seal::Name, left: std::time::Duration) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%name, left_s = left.as_secs(), "the certificate of the node expires");
}

#[cfg(feature = "secure")]
pub(crate) fn certificate_for_tests(name: &apus_seal::Name) {
    #[cfg(feature = "tracing")]
    tracing::warn!(%name, "the certificate of the node is one for tests, of apus dev-certs");
}

#[cfg(feature = "secure")]
pub(crate) fn handshake_failed(error: &apus_seal::HandshakeError) {
    #[cfg(feature = "tracing")]
    tracing::debug!(%error, "handshake failed");
}

#[cfg(feature = "tracing")]
#[inline]
pub(crate) fn call_failed(error: &CallError) {
    tracing::debug!(%error, may_have_executed = error.may_have_executed(), "call failed");
}

#[cfg(feature = "tracing")]
pub(crate) fn call_given_up() {
    tracing::debug!("call given up");
}

#[cfg(feature = "tracing")]
pub(crate) fn request_given_up() {
    tracing::debug!("request given up");
}

#[cfg(feature = "tracing")]
pub(crate) fn reply_failed(error: &crate::error::ReplyError) {
    tracing::debug!(%error, "response not accepted");
}

pub(crate) fn handler_panicked(port: u16) {
    #[cfg(feature = "tracing")]
    tracing::error!(port, "handler panicked");
}
