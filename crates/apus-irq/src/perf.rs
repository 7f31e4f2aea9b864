//! Records of tracepoints on all CPUs, in one ring for each CPU so that the records of a CPU are in order.

#![allow(unsafe_code, reason = "perf-event2 wraps neither the filter nor the output of an event")]

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use libc::c_char;
use perf_event::events::Tracepoint;
use perf_event::{Builder, Clock, Counter, SampleFlag, Sampler};
use rustix::ioctl::{Opcode, opcode};

/// A tracepoint to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its number.
    pub(crate) id: u16,
    /// Filter that selects records; `None` for all.
    pub(crate) filter: Option<String>,
}

/// A record of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PerfRecord<'a> {
    /// A record of a tracepoint, with its time on `CLOCK_MONOTONIC`.
    Sample {
        /// Time of the record, in nanoseconds.
        at_ns: u64,
        /// The record, in the format of the tracepoint.
        record: &'a [u8],
    },
    /// Number of records that were lost because the ring was full.
    Lost(u64),
}

/// The ring of one CPU. Recording ends when it is dropped.
pub(crate) struct Ring {
    /// Number of the CPU.
    pub(crate) cpu: usize,
    sampler: Sampler,
    /// Events whose records go to the sampler's ring.
    _others: Vec<Counter>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl Ring {
    /// Opens the rings of all CPUs that are online, and begins to record.
    ///
    /// # Errors
    /// When this process may not record the kernel's events, or has too few descriptors.
    pub(crate) fn open_all(sources: &[Source]) -> io::Result<Vec<Self>> {
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        let cpus = cpus(online.trim());
        let bytes = ring_bytes(cpus.len());
        cpus.into_iter().map(|cpu| Self::open(cpu, bytes, sources)).collect()
    }

    fn open(cpu: usize, bytes: usize, sources: &[Source]) -> io::Result<Self> {
        let mut counters = sources.iter().map(|source| counter(cpu, source));
        let first = counters.next().ok_or(io::ErrorKind::InvalidInput)??;
        let mut others = counters.collect::<io::Result<Vec<_>>>()?;
        let mut sampler = first.sampled(bytes)?;
        for other in &others {
            set_output(other.as_raw_fd(), sampler.as_raw_fd())?;
        }
        sampler.as_counter_mut().enable()?;
        for other in &mut others {
            other.enable()?;
        }
        Ok(Self { cpu, sampler, _others: others })
    }

    /// Takes all entries out of the ring, in order.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(PerfRecord<'_>)) {
        // The bound ends the loop also when the ring fills faster than it is read.
        for _ in 0..RECORDS_AT_ONCE_MAX {
            let Some(record) = self.sampler.next_record() else { return };
            if let Some(entry) = entry(record.ty(), &record.to_contiguous()) {
                take(entry);
            }
        }
    }
}

fn counter(cpu: usize, source: &Source) -> io::Result<Counter> {
    let mut builder = Builder::new(Tracepoint::with_id(source.id.into()));
    builder.any_pid().one_cpu(cpu).include_kernel().include_hv();
    builder.sample_period(1).sample(SampleFlag::TIME | SampleFlag::RAW).clockid(Clock::MONOTONIC);
    let counter = builder.build()?;
    if let Some(filter) = &source.filter {
        set_filter(counter.as_raw_fd(), filter)?;
    }
    Ok(counter)
}

fn set_filter(event: RawFd, filter: &str) -> io::Result<()> {
    let filter = CString::new(filter)?;
    // SAFETY: the kernel reads a string that ends with a zero byte, and it lives until the call returns.
    let result = unsafe { libc::ioctl(event, PERF_EVENT_IOC_SET_FILTER as _, filter.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_output(event: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: the argument is a number, and the kernel checks that it is the descriptor of an event.
    let result = unsafe { libc::ioctl(event, PERF_EVENT_IOC_SET_OUTPUT as _, to) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Parses a record of the requested kinds.
fn entry(kind: u32, body: &[u8]) -> Option<PerfRecord<'_>> {
    let number = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
    match kind {
        PERF_RECORD_LOST => Some(PerfRecord::Lost(number(8)?)),
        PERF_RECORD_SAMPLE => {
            let length = u32::from_ne_bytes(body.get(8..12)?.try_into().ok()?);
            let end = usize::try_from(length).ok()?.checked_add(12)?;
            Some(PerfRecord::Sample { at_ns: number(0)?, record: body.get(12..end)? })
        }
        _ => None,
    }
}

/// Parses a list of CPUs in the kernel's form: `0-3,8`.
fn cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().take(CPUS_MAX).collect()
}

/// The size of each CPU's ring, a power of two: its share of the memory of all rings.
fn ring_bytes(cpus: usize) -> usize {
    let share = RINGS_BYTES_MAX / cpus.max(1);
    (1 << share.max(1).ilog2()).clamp(RING_BYTES_MIN, RING_BYTES_MAX)
}

/// Upper bound on the memory of all rings together, except on machines where each ring has the minimum.
const RINGS_BYTES_MAX: usize = 64 << 20;

/// Lower bound on the size of a ring, for about 4,000 records.
const RING_BYTES_MIN: usize = 256 << 10;

/// Upper bound on the size of a ring, for about 120,000 records.
const RING_BYTES_MAX: usize = 8 << 20;

/// Upper bound on the records that are taken out of a ring in one turn.
const RECORDS_AT_ONCE_MAX: usize = 1 << 17;

const CPUS_MAX: usize = 4_096;

// Constants of linux/perf_event.h.
const PERF_EVENT_IOC_SET_OUTPUT: Opcode = opcode::none(b'$', 5);
const PERF_EVENT_IOC_SET_FILTER: Opcode = opcode::write::<*const c_char>(b'$', 6);
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(cpus("0"), [0]);
        assert!(cpus("").is_empty());
    }

    #[test]
    fn rings_share_a_bounded_memory() {
        assert_eq!(ring_bytes(2), RING_BYTES_MAX);
        assert_eq!(ring_bytes(24), 2 << 20);
        assert_eq!(ring_bytes(1_000), RING_BYTES_MIN);
    }

    #[test]
    fn records_are_read() {
        let mut body = 7_u64.to_ne_bytes().to_vec();
        body.extend(3_u32.to_ne_bytes());
        body.extend([1, 2, 3, 0, 0, 0, 0, 0]);
        let sample = PerfRecord::Sample { at_ns: 7, record: &[1, 2, 3] };
        assert_eq!(entry(PERF_RECORD_SAMPLE, &body), Some(sample));
        assert_eq!(entry(PERF_RECORD_SAMPLE, &body[..13]), None);
        let lost: Vec<u8> = [1_u64, 9].iter().flat_map(|it| it.to_ne_bytes()).collect();
        assert_eq!(entry(PERF_RECORD_LOST, &lost), Some(PerfRecord::Lost(9)));
        assert_eq!(entry(1, &lost), None);
    }
}
