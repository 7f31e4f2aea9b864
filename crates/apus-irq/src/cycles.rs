//! The cycles of a program, recorded through tracepoints: from an `epoll_wait` that returned events until the next call.

use std::collections::BTreeMap;
use std::io;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::perf::{PerfRecord, Ring, Source};
use crate::tracing::{Field, Format, Tracing};
use crate::tune::Sample;
use crate::watch::{formats, rings};

/// Records the cycles of some threads from when it is opened until it is dropped. Needs the same rights as a
/// [`Watch`](crate::Watch), and changes nothing in the kernel.
#[derive(Debug)]
pub struct Cycles {
    rings: Vec<Ring>,
    formats: Formats,
    /// Records in the order in which the rings were read. A ring may still hold an older record.
    pending: Vec<(u64, CycleEvent)>,
    recorded: Recorded,
    began_ns: u64,
}

/// A record of a tracepoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CycleEvent {
    /// A thread called `epoll_wait`.
    Entered { thread: i32 },
    /// A call of `epoll_wait` returned this number of events, or an error.
    Returned { thread: i32, events: i64 },
    /// A thread was woken.
    Woken { thread: i32 },
    /// The timer of a NAPI instance expired while a thread ran.
    Expired { thread: i32 },
}

impl Cycles {
    /// Begins to record these threads, by the numbers of the first PID namespace.
    ///
    /// # Errors
    /// When a right is missing, which the error names, or the kernel has no such tracepoint.
    pub fn open(threads: &[i32]) -> Result<Self, Error> {
        let (formats, function) = formats(Formats::read)?;
        let rings = rings(&formats.sources(threads, function))?;
        let recorded = Recorded::new(threads);
        Ok(Self { rings, formats, pending: Vec::new(), recorded, began_ns: now_ns() })
    }

    /// Takes the records out of the rings. Must be called about every 20 ms, before the rings are full.
    pub fn drain(&mut self) {
        let until_ns = now_ns();
        let Self { rings, formats, pending, recorded, .. } = self;
        for ring in rings {
            ring.drain(|entry| match entry {
                PerfRecord::Lost(records) => recorded.lost += records,
                PerfRecord::Sample { at_ns, record } => {
                    pending.extend(formats.event(record).map(|event| (at_ns, event)));
                }
            });
        }
        // A ring that was read first may hold new records by now, older than some of another ring.
        pending.sort_by_key(|(at_ns, _)| *at_ns);
        let known = pending.partition_point(|(at_ns, _)| *at_ns <= until_ns);
        for (at_ns, event) in pending.drain(..known) {
            recorded.take(at_ns, event);
        }
    }

    /// Ends the recording. Returns the fields of a sample about cycles, idle times and wake-ups.
    #[must_use]
    pub fn finish(mut self) -> Sample {
        self.drain();
        let seconds = (now_ns() - self.began_ns) as f64 / 1e9;
        self.recorded.sample(seconds)
    }
}

/// The recorded times and counts of the threads.
#[derive(Debug, Default)]
struct Recorded {
    threads: BTreeMap<i32, Thread>,
    cycles_ns: Vec<u64>,
    per_event_ns: Vec<u64>,
    idles_ns: Vec<u64>,
    wakes_ns: Vec<u64>,
    events: u64,
    interrupted: u64,
    lost: u64,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    cycle: Option<Cycle>,
    entered_ns: Option<u64>,
    woken_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Cycle {
    since_ns: u64,
    events: u64,
    is_interrupted: bool,
}

impl Recorded {
    fn new(threads: &[i32]) -> Self {
        let threads = threads.iter().map(|thread| (*thread, Thread::default())).collect();
        Self { threads, ..Self::default() }
    }

    fn take(&mut self, at_ns: u64, event: CycleEvent) {
        let (CycleEvent::Entered { thread: number }
        | CycleEvent::Returned { thread: number, .. }
        | CycleEvent::Woken { thread: number }
        | CycleEvent::Expired { thread: number }) = event;
        let Some(thread) = self.threads.get_mut(&number) else { return };
        match event {
            CycleEvent::Entered { .. } => {
                if let Some(cycle) = thread.cycle.take() {
                    let took_ns = at_ns.saturating_sub(cycle.since_ns);
                    keep(&mut self.cycles_ns, took_ns);
                    keep(&mut self.per_event_ns, took_ns / cycle.events.max(1));
                    self.events += cycle.events;
                    self.interrupted += u64::from(cycle.is_interrupted);
                }
                *thread = Thread { entered_ns: Some(at_ns), ..Thread::default() };
            }
            CycleEvent::Woken { .. } => {
                if thread.entered_ns.is_some() {
                    thread.woken_ns.get_or_insert(at_ns);
                }
            }
            CycleEvent::Returned { events, .. } => {
                let events = u64::try_from(events).unwrap_or(0);
                if let (Some(entered_ns), Some(woken_ns), 1..) =
                    (thread.entered_ns, thread.woken_ns, events)
                {
                    keep(&mut self.idles_ns, woken_ns.saturating_sub(entered_ns));
                    keep(&mut self.wakes_ns, at_ns.saturating_sub(woken_ns));
                }
                let cycle = Cycle { since_ns: at_ns, events, is_interrupted: false };
                *thread = Thread { cycle: (events > 0).then_some(cycle), ..Thread::default() };
            }
            CycleEvent::Expired { .. } => {
                if let Some(cycle) = &mut thread.cycle {
                    cycle.is_interrupted = true;
                }
            }
        }
    }

    fn sample(mut self, seconds: f64) -> Sample {
        for list in
            [&mut self.cycles_ns, &mut self.per_event_ns, &mut self.idles_ns, &mut self.wakes_ns]
        {
            list.sort_unstable();
        }
        Sample {
            seconds,
            cycles: self.cycles_ns.len() as u64,
            events: self.events,
            cycle_p50_ns: percentile(&self.cycles_ns, 500),
            cycle_p99_ns: percentile(&self.cycles_ns, 990),
            cycle_p99_9_ns: percentile(&self.cycles_ns, 999),
            event_p95_ns: percentile(&self.per_event_ns, 950),
            interrupted: self.interrupted,
            idles: self.idles_ns.len() as u64,
            idle_p50_ns: percentile(&self.idles_ns, 500),
            wake_p99_ns: percentile(&self.wakes_ns, 990),
            lost: self.lost,
            ..Sample::default()
        }
    }
}

fn keep(list: &mut Vec<u64>, ns: u64) {
    if list.len() < TIMES_MAX {
        list.push(ns);
    }
}

/// A percentile, in tenths of a percent, of sorted times; 0 if there are none.
fn percentile(sorted: &[u64], permille: usize) -> u64 {
    let place = (sorted.len() * permille).div_ceil(1_000).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0)
}

/// The tracepoints that are recorded, and where their fields are.
#[derive(Debug)]
struct Formats {
    kind: Field,
    thread: Field,
    entered: Vec<Format>,
    returned: Vec<(Format, Field)>,
    woken: Format,
    woken_thread: Field,
    expired: Format,
}

impl Formats {
    fn read(tracing: &Tracing) -> io::Result<Self> {
        let (mut entered, mut returned) = (Vec::new(), Vec::new());
        for call in CALLS {
            // Some machines do not have all of these calls.
            let formats = tracing.format(&format!("syscalls/sys_enter_{call}")).and_then(|enter| {
                Ok((enter, tracing.format(&format!("syscalls/sys_exit_{call}"))?))
            });
            match formats {
                Ok((enter, exit)) => {
                    let result = exit.find("ret")?;
                    entered.push(enter);
                    returned.push((exit, result));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let woken = tracing.format("sched/sched_waking")?;
        let expired = tracing.format("timer/hrtimer_expire_entry")?;
        Ok(Self {
            kind: expired.find("common_type")?,
            thread: expired.find("common_pid")?,
            entered,
            returned,
            woken_thread: woken.find("pid")?,
            woken,
            expired,
        })
    }

    fn sources(&self, threads: &[i32], function: u64) -> Vec<Source> {
        let of_threads = |field: &str| {
            let parts: Vec<_> = threads.iter().map(|it| format!("{field} == {it}")).collect();
            // The kernel limits the length of a filter; the thread of each record is checked again.
            (threads.len() <= FILTERED_THREADS_MAX).then(|| parts.join(" || "))
        };
        let calls = self.entered.iter().chain(self.returned.iter().map(|(format, _)| format));
        let calls = calls.map(|format| Source { id: format.id, filter: of_threads("common_pid") });
        let timer = Some(format!("function == {function:#x}"));
        let others = [
            Source { id: self.woken.id, filter: of_threads("pid") },
            Source { id: self.expired.id, filter: timer },
        ];
        calls.chain(others).collect()
    }

    fn event(&self, record: &[u8]) -> Option<CycleEvent> {
        let kind = self.kind.unsigned(record)?;
        let is = |format: &Format| u64::from(format.id) == kind;
        let thread = self.thread.int(record)?;
        if self.entered.iter().any(is) {
            return Some(CycleEvent::Entered { thread });
        }
        if let Some((_, result)) = self.returned.iter().find(|(format, _)| is(format)) {
            return Some(CycleEvent::Returned { thread, events: result.unsigned(record)? as i64 });
        }
        if is(&self.woken) {
            return Some(CycleEvent::Woken { thread: self.woken_thread.int(record)? });
        }
        is(&self.expired).then_some(CycleEvent::Expired { thread })
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The calls by which a program waits for an epoll set.
const CALLS: [&str; 3] = ["epoll_wait", "epoll_pwait", "epoll_pwait2"];

/// Upper bound on the threads that a filter names.
const FILTERED_THREADS_MAX: usize = 64;

/// Upper bound on the times that are kept of each kind.
const TIMES_MAX: usize = 1 << 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_idle_times_and_wake_ups_are_distinguished() {
        let mut recorded = Recorded::new(&[7]);
        let thread = 7;
        let events = [
            (10, CycleEvent::Entered { thread }),
            (30, CycleEvent::Woken { thread }),
            (31, CycleEvent::Woken { thread }),
            (35, CycleEvent::Returned { thread, events: 4 }),
            (40, CycleEvent::Expired { thread }),
            (41, CycleEvent::Expired { thread }),
            (75, CycleEvent::Entered { thread }),
            // The call found events without sleeping.
            (80, CycleEvent::Returned { thread, events: 1 }),
            (90, CycleEvent::Entered { thread }),
            (95, CycleEvent::Expired { thread }),
            (99, CycleEvent::Returned { thread, events: 0 }),
            (200, CycleEvent::Entered { thread }),
            (210, CycleEvent::Returned { thread: 8, events: 1 }),
        ];
        for (at_ns, event) in events {
            recorded.take(at_ns, event);
        }
        let sample = recorded.sample(1.0);
        assert_eq!((sample.cycles, sample.events, sample.interrupted), (2, 5, 1));
        assert_eq!((sample.cycle_p50_ns, sample.cycle_p99_9_ns, sample.event_p95_ns), (10, 40, 10));
        assert_eq!((sample.idles, sample.idle_p50_ns, sample.wake_p99_ns), (1, 20, 5));
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let times: Vec<u64> = (1..=1_000).collect();
        assert_eq!([500, 950, 999].map(|it| percentile(&times, it)), [500, 950, 999]);
        assert_eq!((percentile(&[5], 999), percentile(&[], 500)), (5, 0));
    }
}
