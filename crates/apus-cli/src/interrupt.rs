//! Ctrl-C, SIGTERM and SIGHUP: the first one ends the measurement and shows its result so far, a later one ends the process.

use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fs, io, process, thread};

use anyhow::{Context, Result};
use apus_load::stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Time in which further signals belong to the first one: `timeout` sends SIGTERM to its program and to the program's group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Has Ctrl-C, SIGTERM and SIGHUP request a [stop], from the first call on. One that comes more than a second after the first ends
/// the process at once. A SIGHUP that is ignored (`nohup`) stays ignored.
///
/// # Errors
/// When the kernel refuses a signal handler or a thread.
pub(crate) fn handle() -> Result<()> {
    static HANDLED: Once = Once::new();
    let mut handled = Ok(());
    HANDLED.call_once(|| handled = register().context("cannot handle signals"));
    handled
}

fn register() -> io::Result<()> {
    let mut ending = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        ending.push(SIGHUP);
    }
    for &signal in &ending {
        signal_hook::flag::register(signal, stop::flag())?;
    }
    let mut signals = Signals::new(ending)?;
    let end = move || {
        let mut first = None;
        for _ in signals.forever() {
            if first.get_or_insert_with(Instant::now).elapsed() > SAME_REQUEST {
                process::exit(1);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(end).map(drop)
}

/// Whether this process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Has the end of standard input request a stop: a process whose parent holds the other end does not outlive its parent, however
/// that ends.
///
/// # Errors
/// When the kernel refuses a thread.
pub(crate) fn stop_at_end_of_input() -> Result<()> {
    let read = || {
        // An error is an end as well.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        stop::flag().store(true, Ordering::Relaxed);
    };
    let reader = thread::Builder::new().name("input".to_owned());
    reader.spawn(read).map(drop).context("cannot start a thread")
}
