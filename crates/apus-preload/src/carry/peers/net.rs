//! Connections between hosts: the setting that enables them, and the registration with the carrier.

use std::sync::atomic::{AtomicU32, Ordering};

use apus_sockets::introduction;
use libc::c_int;

use super::containers;
use crate::carry::peers::meeting::{self, Addresses};
use crate::{errno, report};

/// UDP port of the carriers. 0 if connections between hosts are not carried.
static PORT: AtomicU32 = AtomicU32::new(0);

/// Reads the setting. Runs at the start of the process.
pub(crate) fn begin() {
    // SAFETY: the name ends with a zero byte. No other code changes the environment before `main`.
    let value = unsafe { libc::getenv(introduction::PORT_VARIABLE.as_ptr()) };
    // SAFETY: a value ends with a zero byte.
    let value = (!value.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(value) });
    let port = value.and_then(|value| value.to_str().ok()?.parse::<u16>().ok());
    PORT.store(port.unwrap_or(0).into(), Ordering::Relaxed);
    if port.is_some() {
        report::expect_between_hosts();
    }
    register();
}

/// UDP port of the carriers, if connections between hosts should be carried.
pub(crate) fn port() -> Option<u16> {
    u16::try_from(PORT.load(Ordering::Relaxed)).ok().filter(|port| *port != 0)
}

/// Whether a connection to another host, or to another network namespace of this host, may become carried.
pub(crate) fn may_carry(addresses: &Addresses) -> bool {
    is_wanted() && addresses.are_reachable()
}

fn is_wanted() -> bool {
    port().is_some() || containers::is_wanted()
}

/// Whether a connecting TCP socket may become carried.
pub(crate) fn may_begin(fd: c_int) -> bool {
    is_wanted() && report::local_address(fd).is_some()
}

/// Connects to the carrier, which ends some time after the last connected process. Each process connects for itself, including a
/// child of fork.
pub(crate) fn register() {
    let Some(port) = port() else { return };
    errno::kept(|| {
        if let Ok(carrier) = meeting::carrier(port) {
            std::mem::forget(carrier); // Stays open until the process ends.
        }
    });
}
