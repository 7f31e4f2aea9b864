//! The kernel's work with NAPI instances and their timers, watched through tracepoints.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

use crate::error::Error;
use crate::perf::{PerfRecord, Ring, Source};
use crate::tally::{Context, KernelEvent, Tally, WatchCounts};
use crate::tracing::{Field, Format, Tracing, address};

/// Counts the events of NAPI instances, on the whole machine and in all network namespaces, from when it is opened until it is
/// dropped.
///
/// It needs root: `CAP_PERFMON` for the tracepoints, `CAP_SYSLOG` for the address of a function, and `CAP_SYS_ADMIN` where tracefs
/// is not mounted. It changes nothing in the kernel. Every poll, and every re-arm and expiry of a timer, costs a record, and a
/// timer of 20 µs makes many of them. A thread of this process reads the records, at a raised priority if it may.
///
/// The kernel arms one timer for two purposes: suspension with irq-suspend-timeout, and deferral with gro-flush-timeout. The length
/// distinguishes the two, so gro-flush-timeout has to be below three quarters of irq-suspend-timeout.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<WatchState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct WatchState {
    recorded: Mutex<Recorded>,
    /// Lower bound on the time of a suspension. A task that arms a timer with a shorter time defers; 0 means that no time is long.
    long_ns: AtomicU64,
    ends: Condvar,
}

#[derive(Debug)]
struct Recorded {
    rings: Vec<Ring>,
    formats: Formats,
    tally: Tally,
    ended: bool,
}

impl Watch {
    /// Begins to watch. `suspension` is the irq-suspend-timeout of the NAPI instances of interest, the smallest one if there
    /// are several; with zero, no re-arm counts as long.
    ///
    /// # Errors
    /// When a right is missing, which the error names, or the kernel has no such tracepoint.
    pub fn open(suspension: Duration) -> Result<Self, Error> {
        Self::opened(suspension, true)
    }

    /// Like [`open`](Self::open), but without the time in softirqs, which costs two records for each softirq: fewer records are
    /// lost on a busy machine.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_without_softirqs(suspension: Duration) -> Result<Self, Error> {
        Self::opened(suspension, false)
    }

    fn opened(suspension: Duration, with_softirqs: bool) -> Result<Self, Error> {
        let (formats, function) = formats(Formats::read)?;
        let rings = rings(&formats.sources(function, with_softirqs))?;
        let recorded = Recorded { rings, formats, tally: Tally::default(), ended: false };
        let shared = Arc::new(WatchState {
            recorded: Mutex::new(recorded),
            long_ns: AtomicU64::new(long_ns(suspension)),
            ends: Condvar::new(),
        });
        let drained = Arc::clone(&shared);
        let thread = thread::Builder::new().name("irq-watch".to_owned());
        let thread = thread
            .spawn(move || drained.run())
            .map_err(|error| Error::io("a thread that reads tracepoints", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Changes the length from which re-arms count as long, as [`open`](Self::open) takes it.
    pub fn set_suspension(&self, suspension: Duration) {
        // Earlier records count with the earlier length.
        let mut recorded = self.shared.recorded();
        recorded.drain(self.shared.long_ns.load(Ordering::Relaxed));
        self.shared.long_ns.store(long_ns(suspension), Ordering::Relaxed);
    }

    /// The counts since the watch was opened.
    pub fn counts(&self) -> WatchCounts {
        let mut recorded = self.shared.recorded();
        recorded.drain(self.shared.long_ns.load(Ordering::Relaxed));
        recorded.tally.counts()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.recorded().ended = true;
        self.shared.ends.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread panics only if reading a record does, and nothing can be reported here.
            let _ = thread.join();
        }
    }
}

impl WatchState {
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the rings before they are full, until the watch ends.
    fn run(&self) {
        // On a busy machine the rings would be full before an ordinary thread runs. Without the right, the thread stays ordinary.
        let _ = setpriority_process(Some(gettid()), NICE);
        let mut recorded = self.recorded();
        while !recorded.ended {
            recorded.drain(self.long_ns.load(Ordering::Relaxed));
            let waited = self.ends.wait_timeout(recorded, DRAIN_EVERY);
            recorded = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Recorded {
    fn drain(&mut self, long_ns: u64) {
        let Self { rings, formats, tally, .. } = self;
        for ring in rings {
            let cpu = ring.cpu;
            ring.drain(|entry| match entry {
                PerfRecord::Lost(records) => tally.count_lost(cpu, records),
                PerfRecord::Sample { at_ns, record } => {
                    if let Some(event) = formats.event(at_ns, record) {
                        tally.count(cpu, event, long_ns);
                    }
                }
            });
        }
    }
}

/// The recorded tracepoints, and the offsets of their fields.
#[derive(Debug)]
struct Formats {
    /// The tracepoint of a record; at the same offset in all of them.
    kind: Field,
    flags: Field,
    thread: Field,
    armed: Format,
    armed_timer: Field,
    armed_expires: Field,
    expired: Format,
    expired_timer: Field,
    polled: Format,
    polled_napi: Field,
    polled_device: Field,
    polled_work: Field,
    entry: Format,
    exit: Format,
}

impl Formats {
    fn read(tracing: &Tracing) -> io::Result<Self> {
        let armed = tracing.format("timer/hrtimer_start")?;
        let expired = tracing.format("timer/hrtimer_expire_entry")?;
        let polled = tracing.format("napi/napi_poll")?;
        Ok(Self {
            kind: armed.find("common_type")?,
            flags: armed.find("common_flags")?,
            thread: armed.find("common_pid")?,
            armed_timer: armed.find("hrtimer")?,
            armed_expires: armed.find("expires")?,
            expired_timer: expired.find("hrtimer")?,
            polled_napi: polled.find("napi")?,
            polled_device: polled.find("dev_name")?,
            polled_work: polled.find("work")?,
            entry: tracing.format("irq/softirq_entry")?,
            exit: tracing.format("irq/softirq_exit")?,
            armed,
            expired,
            polled,
        })
    }

    /// The tracepoints to record; of timers, only those that call the function at this address.
    fn sources(&self, function: u64, with_softirqs: bool) -> Vec<Source> {
        let of_function = Some(format!("function == {function:#x}"));
        let mut sources = vec![
            Source { id: self.armed.id, filter: of_function.clone() },
            Source { id: self.expired.id, filter: of_function },
            Source { id: self.polled.id, filter: None },
        ];
        if with_softirqs {
            let softirqs = [&self.entry, &self.exit];
            sources.extend(softirqs.map(|it| Source { id: it.id, filter: None }));
        }
        sources
    }

    fn event<'a>(&self, at_ns: u64, record: &'a [u8]) -> Option<KernelEvent<'a>> {
        let kind = self.kind.unsigned(record)?;
        let is = |format: &Format| u64::from(format.id) == kind;
        if is(&self.entry) {
            return Some(KernelEvent::SoftirqEntry { at_ns });
        }
        if is(&self.exit) {
            return Some(KernelEvent::SoftirqExit { at_ns });
        }
        if is(&self.expired) {
            return Some(KernelEvent::Expired { timer: self.expired_timer.unsigned(record)? });
        }
        let context = match self.flags.unsigned(record)? & IN_INTERRUPT {
            0 => Context::Task(self.thread.int(record)?),
            _ => Context::Interrupt,
        };
        if is(&self.armed) {
            let expires = self.armed_expires.unsigned(record)?;
            let (timer, for_ns) =
                (self.armed_timer.unsigned(record)?, expires.saturating_sub(at_ns));
            return Some(KernelEvent::Armed { timer, for_ns, context });
        }
        let (napi, device) = (self.polled_napi.unsigned(record)?, self.polled_device.text(record));
        let packets = u64::try_from(self.polled_work.int(record)?).unwrap_or(0);
        is(&self.polled).then_some(KernelEvent::Polled { napi, device, packets, context })
    }
}

/// Packets that applications have taken by busy polling since the boot, in the network namespace of this thread or of a process.
/// This thread's needs no privilege.
///
/// # Errors
/// When there is no such process, or the kernel does not report the number.
pub fn busy_poll_packets(pid: Option<i32>) -> io::Result<u64> {
    let process = pid.map_or_else(|| "thread-self".to_owned(), |pid| pid.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/net/netstat"))?;
    counter(&text, "TcpExt:", "BusyPollRxPackets").ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "the kernel has no counter BusyPollRxPackets")
    })
}

/// A counter in the text of `/proc/net/netstat`, which has a line of names before a line of numbers.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|it| it == name)?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

/// The formats of tracepoints, from `read`, and the address of the function that identifies the timers of NAPI instances.
pub(crate) fn formats<T>(read: impl Fn(&Tracing) -> io::Result<T>) -> Result<(T, u64), Error> {
    let tracing = Tracing::open().map_err(|error| {
        cannot("tracefs is not mounted: mounting it needs CAP_SYS_ADMIN", error)
    })?;
    let formats = read(&tracing).map_err(|error| cannot("only root may read tracefs", error))?;
    let symbols = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| cannot("cannot read /proc/kallsyms", error))?;
    let function = address(&symbols, WATCHDOG).ok_or_else(|| {
        let why = format!("the address of {WATCHDOG} is hidden");
        cannot("CAP_SYSLOG makes it visible", io::Error::other(why))
    })?;
    Ok((formats, function))
}

/// A ring of records for each CPU.
pub(crate) fn rings(sources: &[Source]) -> Result<Vec<Ring>, Error> {
    Ring::open_all(sources).map_err(|error| {
        cannot("perf_event_open needs CAP_PERFMON in the initial user namespace", error)
    })
}

fn cannot(right: &str, source: io::Error) -> Error {
    Error::CannotWatch { right: right.to_owned(), source }
}

/// Three quarters of a suspension, because the time until a timer expires is measured a little after it was armed.
fn long_ns(suspension: Duration) -> u64 {
    u64::try_from(suspension.as_nanos() * 3 / 4).unwrap_or(u64::MAX)
}

/// The kernel's function that a NAPI instance's timer calls.
const WATCHDOG: &str = "napi_watchdog";

/// The nice value of the thread that reads the rings.
const NICE: i32 = -15;

/// Interval between two readings of the rings. A ring holds far more records than arrive in it.
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// TRACE_FLAG_HARDIRQ and TRACE_FLAG_SOFTIRQ of linux/trace_events.h. A task that polls has softirqs disabled, which is
/// another flag.
const IN_INTERRUPT: u64 = 0x08 | 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets TCPHPHits\nTcpExt: 1 42 3\nIpExt: BusyPollRxPackets\nIpExt: 7\n";
        assert_eq!(counter(text, "TcpExt:", "BusyPollRxPackets"), Some(42));
        assert_eq!(counter(text, "TcpExt:", "Nothing"), None);
        assert!(busy_poll_packets(None).is_ok());
        assert!(busy_poll_packets(Some(i32::MAX)).is_err());
    }

    #[test]
    fn a_missing_right_is_named() {
        let error = cannot("CAP_PERFMON", io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(error.contains("CAP_PERFMON") && error.contains("permission denied"), "{error}");
    }
}
