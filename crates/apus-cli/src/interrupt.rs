//! Ctrl-C and SIGTERM: the first one ends the measurement and shows its result so far, the second one ends the process.

use std::sync::Once;

use anyhow::{Context, Result};
use apus_load::stop;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Has Ctrl-C and SIGTERM request a [stop], from the first call on. The second of them ends the process at once.
///
/// # Errors
/// When the kernel refuses a signal handler.
pub(crate) fn handle() -> Result<()> {
    static HANDLED: Once = Once::new();
    let mut handled = Ok(());
    HANDLED.call_once(|| handled = register().context("cannot handle signals"));
    handled
}

fn register() -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop::flag())?;
        signal_hook::flag::register(signal, stop::flag())?;
    }
    Ok(())
}
