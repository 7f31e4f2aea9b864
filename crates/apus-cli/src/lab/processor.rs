//! Slow processors: something else uses a processor most of the time, in slices so short that what is left looks like a
//! slow one.
//!
//! The bandwidth limit of control groups cannot do that: the kernel sees at its tick, every 1 to 10 ms, that a limit is
//! used up, so a process runs for 4 ms and then stands still for up to 20 ms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus::net::cpu;

/// In each of these the processor is held up once.
const PERIOD: Duration = Duration::from_micros(200);

/// A processor that is held up until this is dropped.
pub(super) struct SlowProcessor {
    number: usize,
    over: Arc<AtomicBool>,
    holder: Option<JoinHandle<()>>,
}

impl SlowProcessor {
    /// Leaves this part of a processor to others.
    ///
    /// # Errors
    /// When this process may not use the processor, or may not hold it up.
    pub(super) fn start(number: usize, share: f64) -> Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (told, outcome) = mpsc::channel();
        let until = Arc::clone(&over);
        let holder = thread::Builder::new()
            .name("lab-processor".to_owned())
            .spawn(move || {
                let ready = cpu::pin_current_thread(number).and_then(|()| cpu::run_before_others());
                let holds = ready.is_ok();
                // Who asked waits for it.
                let _ = told.send(ready);
                if holds {
                    hold_up(PERIOD.mul_f64(1.0 - share.clamp(0.0, 1.0)), &until);
                }
            })
            .context("cannot start a thread")?;
        let slow = Self { number, over, holder: Some(holder) };
        let outcome = outcome.recv().context("the thread that holds up a processor ended")?;
        outcome.with_context(|| {
            format!("cannot hold up processor {number}: host_cpu needs root (CAP_SYS_NICE)")
        })?;
        Ok(slow)
    }

    /// Which one it is.
    pub(super) fn number(&self) -> usize {
        self.number
    }
}

impl Drop for SlowProcessor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(holder) = self.holder.take() {
            // It has nothing to say.
            let _ = holder.join();
        }
    }
}

/// Uses the processor for `busy` of each period.
fn hold_up(busy: Duration, over: &AtomicBool) {
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        while begun.elapsed() < busy {
            std::hint::spin_loop();
        }
        // What was missed is not made up for.
        next = (next + PERIOD).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
