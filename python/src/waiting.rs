//! Waits of threads without the GIL.

use std::cell::Cell;
use std::process;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The time after which a thread that waits looks for signals, such as Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

thread_local! {
    /// A process, and whether the thread is its main thread, which runs the handlers of signals. The thread that calls `fork` is the
    /// main thread of the child.
    static IN_PROCESS: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// Whether the calling thread must look for signals while it waits.
#[inline]
pub(crate) fn sees_signals() -> bool {
    let process = process::id();
    let (known, is_main) = IN_PROCESS.get();
    if known == process { is_main } else { look_up(process) }
}

#[cold]
fn look_up(process: u32) -> bool {
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    IN_PROCESS.set((process, is_main));
    is_main
}

/// Waits by `wait` until it returns a result: it gets the longest time, and returns `None` when that has passed. The main thread
/// waits in slices, between which handlers of signals run and may raise.
///
/// # Errors
///
/// The exception of a handler. `Ok(None)` if `timeout` has passed.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut wait: impl FnMut(Option<Duration>) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    if !sees_signals() {
        return Ok(py.detach(|| wait(timeout)));
    }
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        if let Some(result) = py.detach(|| wait(Some(slice))) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(None);
        }
    }
}
