//! Ctrl-C and SIGTERM: the first one ends what is measured and shows what there is, the second ends the process.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// What a result says that a signal cut short.
pub(crate) const CUT_SHORT: &str =
    "stopped by a signal: whatever was not measured by then is missing";

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The measurement was stopped by a signal.
#[derive(Debug)]
pub(crate) struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped by a signal before the end")
    }
}

impl std::error::Error for Stopped {}

/// A flag that Ctrl-C and SIGTERM set. The second of them ends the process at once. Signals are handled from the first
/// call on.
///
/// # Errors
/// When the kernel refuses a signal handler.
pub(crate) fn handle() -> Result<&'static AtomicBool> {
    if STOP.get().is_none() {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let cannot = "cannot handle signals";
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
                .context(cannot)?;
            signal_hook::flag::register(signal, Arc::clone(&stop)).context(cannot)?;
        }
        // Only the main thread begins commands, so nobody else can have been quicker.
        let _ = STOP.set(stop);
    }
    Ok(flag())
}

/// The flag, for loops that look often; never set before [`handle`] was called.
pub(crate) fn flag() -> &'static AtomicBool {
    static NEVER: AtomicBool = AtomicBool::new(false);
    STOP.get().map_or(&NEVER, |stop| stop)
}

/// Whether it is time to stop.
pub(crate) fn requested() -> bool {
    flag().load(Ordering::Relaxed)
}

/// Ends a measurement when it is time to stop.
///
/// # Errors
/// [`Stopped`], then.
pub(crate) fn check(flag: &AtomicBool) -> Result<()> {
    if flag.load(Ordering::Relaxed) { Err(Stopped.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_stopped_says_so() {
        assert!(check(&AtomicBool::new(false)).is_ok());
        assert!(check(&AtomicBool::new(true)).unwrap_err().is::<Stopped>());
        assert!(!requested(), "nobody handles signals here");
    }
}
