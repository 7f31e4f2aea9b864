//! Files that this process cannot create, and runs without.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::observe::events;

static MISSING: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// Files that nodes of this process run without, each with the reason: counters, the time trace, or the memory between processes. None
/// for one that is turned off. The reason may be `RLIMIT_FSIZE`, a directory that cannot be made, or a lack of memory.
///
/// ```
/// for file in apus::missing_files() {
///     eprintln!("warning: {file}");
/// }
/// ```
#[must_use]
pub fn missing_files() -> Vec<String> {
    let missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    missing.iter().map(|(file, reason)| format!("{file}: {reason}")).collect()
}

/// Records a missing file.
pub(crate) fn note(file: &'static str, error: &io::Error) {
    let before = {
        // In a child of a fork, the holder of the lock may not exist.
        let Ok(mut missing) = MISSING.try_lock() else { return };
        missing.insert(file, error.to_string())
    };
    if before.is_none() {
        events::file_missing(file, error);
    }
}
