//! Slow processors: a thread uses a processor most of the time, in slices so short that the rest looks like a slower processor.
//!
//! The bandwidth limit of control groups has another effect: the kernel notices at its tick, every 1 to 10 ms, that a limit is used
//! up, so a process runs for 4 ms and then stops for up to 20 ms.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus::net::cpu;

/// Period in which the processor is held up once.
const PERIOD: Duration = Duration::from_micros(500);

/// A processor that is held up until this value is dropped.
pub(crate) struct SlowProcessor {
    number: usize,
    over: Arc<AtomicBool>,
    holder: Option<JoinHandle<()>>,
}

impl SlowProcessor {
    /// Leaves this share of a processor to other threads.
    ///
    /// # Errors
    /// If this process may not use the processor, or may not hold it up.
    pub(crate) fn start(number: usize, share: f64) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (started, outcome) = mpsc::channel();
        let until = Arc::clone(&over);
        let holder = thread::Builder::new()
            .name("lab-processor".to_owned())
            .spawn(move || {
                let ready = cpu::pin_current_thread(number).and_then(|()| cpu::run_before_others());
                let holds = ready.is_ok();
                // The caller waits for the result.
                let _ = started.send(ready);
                if holds {
                    hold_up(share, &until);
                }
            })
            .context("cannot start a thread")?;
        let slow = Self { number, over, holder: Some(holder) };
        let outcome = outcome.recv().context("the thread that occupies a processor ended")?;
        outcome.with_context(|| {
            format!("cannot occupy processor {number}: host_cpu needs root (CAP_SYS_NICE)")
        })?;
        Ok(slow)
    }

    /// The processor's number.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl Drop for SlowProcessor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(holder) = self.holder.take() {
            // The thread returns nothing.
            let _ = holder.join();
        }
    }
}

/// While it exists, the kernel prefers this session's processes, if it shares processors among sessions: other processes of the
/// machine would take much of a slow processor.
pub(crate) struct Precedence {
    /// The session's previous value.
    before: Option<String>,
}

impl Precedence {
    /// Raises the session's preference. Has no effect if the kernel does not share by session.
    pub(crate) fn take() -> Self {
        // "/autogroup-25 nice 0"
        let shown = fs::read_to_string(SHARE).ok();
        let before = shown.and_then(|line| Some(line.trim().rsplit_once(" nice ")?.1.to_owned()));
        let taken = before.is_some() && fs::write(SHARE, "-20").is_ok();
        Self { before: before.filter(|_| taken) }
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was writable before.
            let _ = fs::write(SHARE, before);
        }
    }
}

/// The kernel's niceness of this session.
const SHARE: &str = "/proc/self/autogroup";

/// Leaves `share` of the processor to other threads, a slice of each period. Work that exceeds its slice is charged afterwards,
/// because it would take longer on a slow processor: a system call that is not interrupted at the end of its slice, and the
/// kernel's work in interrupts, which no thread can hold up.
fn hold_up(share: f64, over: &AtomicBool) {
    let slice = PERIOD.mul_f64(share);
    let price = (1.0 - share) / share;
    let (mut owed, mut now) = (slice.mul_f64(price), Instant::now());
    while !over.load(Ordering::Relaxed) {
        while !owed.is_zero() && !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
            let before = std::mem::replace(&mut now, Instant::now());
            let passed = now - before;
            owed = if passed < INTERRUPT {
                owed.saturating_sub(passed)
            } else {
                (owed + passed.mul_f64(price)).min(OWED_MAX)
            };
        }
        thread::sleep(slice);
        let left = std::mem::replace(&mut now, Instant::now());
        owed = (now - left).mul_f64(price).min(OWED_MAX);
    }
}

/// Duration of a reading of the clock above which an interrupt came in between.
const INTERRUPT: Duration = Duration::from_micros(3);

/// Upper bound on charged time. More is not caused by the hosts.
const OWED_MAX: Duration = Duration::from_millis(20);
