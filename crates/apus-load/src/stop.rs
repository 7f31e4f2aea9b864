//! The request to stop, one for the whole process: a program sets it at Ctrl-C, and every measurement checks it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use thiserror::Error;

/// The warning of a result that a request to stop cut short.
pub const CUT_SHORT: &str = "stopped by a signal: later measurements are missing";

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// A measurement ended early, because a stop was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("stopped by a signal before the end")]
pub struct Stopped;

/// The flag that requests a stop; a signal handler may set it.
#[must_use]
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&STOP)
}

/// Whether a stop was requested.
#[must_use]
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Ends a measurement if a stop was requested.
///
/// # Errors
/// [`Stopped`] if a stop was requested.
pub fn check() -> Result<(), Stopped> {
    if requested() { Err(Stopped) } else { Ok(()) }
}
