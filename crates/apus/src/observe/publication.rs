//! Counters in a file that this process has mapped, for other processes to read ([`apus_metrics::layout`]).
//!
//! Engines count in plain words under their lock. The counters are written to the file when the lock is released, if the thread
//! that turns the engine next is about to sleep, or if the last write is older than [`EVERY`]. So counting costs nothing more. The
//! file of a killed process lacks at most the last few milliseconds, and nothing if the process slept.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, SystemTime};

use apus_metrics::layout::{ABSENT, SECTIONS_MAX, Start, header, section_length, word};
use apus_metrics::{Metric, SectionType, engine_metrics, last_written, process_metrics};
use apus_net::{LinkCounters, OwningProcess};
use apus_proto::{Counters, Time};
use apus_shm::{CounterDirectory, CounterFile, Memory, ProcessName};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::config::MetricsAt;
use crate::observe::missing_files;
use crate::observe::stats::{
    DeliveryCounters, HandshakeCounters, IdentityGauges, MemoryCounters, ProcessCounters,
    StreamCounters,
};
use crate::sync::clock;

/// Interval at which counters are written while the engine is turned without a sleep.
pub(crate) const EVERY: Duration = Duration::from_millis(5);

/// The file of this process. The first node with a file decides its place.
static FILE: Mutex<Option<ProcessFile>> = Mutex::new(None);

#[derive(Debug)]
struct ProcessFile {
    /// A child of a fork makes one of its own.
    process: OwningProcess,
    file: Arc<CounterFile>,
    /// Offset of the first section.
    first: usize,
    /// Sections that were taken so far.
    taken: usize,
    /// Sections of engines that have ended: the next engine counts on in one.
    engines: Vec<usize>,
    /// Sections of processes that use the engine no more, in this order.
    detached: VecDeque<usize>,
    /// The time of the process's clock 0: nanoseconds since the epoch.
    epoch_ns: u64,
}

impl ProcessFile {
    fn open(place: &MetricsAt, process: OwningProcess) -> io::Result<Self> {
        let directory = match place {
            MetricsAt::Off => return Err(io::ErrorKind::Unsupported.into()),
            MetricsAt::Auto => CounterDirectory::of_user(),
            MetricsAt::Directory(path) => CounterDirectory::at(path),
        };
        let name = ProcessName::current()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let made_ns = now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0));
        let program = std::env::args_os().next().unwrap_or_default();
        let program = std::path::Path::new(&program).file_name().unwrap_or_default();
        let start = Start {
            pid: name.pid,
            ticks: name.ticks,
            namespace: name.namespace,
            made_ns,
            program: program.to_string_lossy().into_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let header = header(&start);
        let size = header.len() + SECTIONS_MAX * section_length();
        let written = |bytes: &[u8]| {
            let last = last_written(bytes)?;
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(last))
        };
        let file = directory.create(&name, &header, size.next_multiple_of(PAGE), written)?;
        Ok(Self {
            process,
            file: Arc::new(file),
            first: header.len(),
            taken: 0,
            engines: Vec::new(),
            detached: VecDeque::new(),
            epoch_ns: made_ns.saturating_sub(clock::now().as_nanos()),
        })
    }

    fn section(&mut self, kind: SectionType) -> Option<(usize, Memory)> {
        let index = match kind {
            SectionType::Engine => self.engines.pop(),
            SectionType::Attached | SectionType::Detached => self.detached.pop_front(),
        };
        let index = match index {
            Some(index) => index,
            None if self.taken == SECTIONS_MAX => return None,
            None => {
                self.taken += 1;
                self.taken - 1
            }
        };
        let length = section_length();
        match self.file.part(self.first + index * length, length) {
            Ok(memory) => Some((index, memory)),
            Err(error) => {
                missing_files::note("counters", &error);
                None
            }
        }
    }
}

/// The lock of the [`FILE`]. `None` if another thread has it for long: in a child of a fork, the thread may not exist there.
fn lock() -> Option<MutexGuard<'static, Option<ProcessFile>>> {
    for _ in 0..LOCK_TRIES {
        match FILE.try_lock() {
            Ok(file) => return Some(file),
            Err(TryLockError::Poisoned(_)) => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// A part of the file with the counters of one engine, or of one process that uses it.
#[derive(Debug)]
pub(crate) struct Section {
    memory: Memory,
    index: usize,
    kind: SectionType,
    process: OwningProcess,
    epoch_ns: u64,
    /// The counts of engines that had the section before.
    base: Vec<u64>,
}

impl Section {
    /// One for an engine. None if the process is to show no counters, or cannot.
    pub(crate) fn of_engine(place: &MetricsAt) -> Option<Self> {
        if cfg!(apus_model) || *place == MetricsAt::Off {
            return None;
        }
        let process = OwningProcess::current().ok()?;
        let mut file = lock()?;
        if file.as_ref().is_none_or(|file| !file.process.is_current()) {
            // The parent's section must not be dropped here: another thread might be about to write to it.
            std::mem::forget(file.take());
            let opened = ProcessFile::open(place, process);
            *file = opened.inspect_err(|error| missing_files::note("counters", error)).ok();
        }
        let file = file.as_mut()?;
        Self::take(file, SectionType::Engine, 0)
    }

    /// One for a process that uses an engine which has a section.
    pub(crate) fn of_attached(pid: i32, uid: u32) -> Option<Self> {
        let mut file = lock()?;
        let file = file.as_mut().filter(|file| file.process.is_current())?;
        let pid = u64::try_from(pid).unwrap_or(0);
        let mut section = Self::take(file, SectionType::Attached, (pid << 32) | u64::from(uid))?;
        section.write(clock::now(), ProcessCounters::default().values());
        Some(section)
    }

    fn take(file: &mut ProcessFile, kind: SectionType, owner: u64) -> Option<Self> {
        let (index, memory) = file.section(kind)?;
        let (first, count) = match kind {
            SectionType::Engine => (0, engine_metrics().count()),
            _ => (engine_metrics().count(), process_metrics().count()),
        };
        let base = match kind {
            SectionType::Engine => {
                remove_gauges(&memory);
                let words = memory.words(word::VALUES, count).iter().zip(engine_metrics());
                // A gauge of an earlier engine has ended with it.
                let count = |(word, metric): (&AtomicU64, &Metric)| match metric.gauge {
                    None => word.load(Ordering::Relaxed),
                    Some(_) => 0,
                };
                words.map(count).collect()
            }
            _ => vec![0; count],
        };
        for (offset, value) in [
            (word::OWNER, owner),
            (word::FIRST, first as u64),
            (word::COUNT, count as u64),
            (word::CLOSED, 0),
        ] {
            memory.word(offset).store(value, Ordering::Relaxed);
        }
        let (process, epoch_ns) = (file.process, file.epoch_ns);
        let section = Self { memory, index, kind, process, epoch_ns, base };
        section.memory.word(word::KIND).store(kind.code(), Ordering::Release);
        Some(section)
    }

    /// Notes that the node of the engine ends as it should: it was closed, or dropped without a panic.
    pub(crate) fn note_closed(&self) {
        if !std::thread::panicking() {
            self.memory.word(word::CLOSED).store(1, Ordering::Relaxed);
        }
    }

    /// Writes the counters.
    pub(crate) fn write(&mut self, now: Time, values: impl Iterator<Item = u64>) {
        self.write_parts(now, |places| {
            places.write(values);
        });
    }

    /// Writes counters at some of their places. A reader sees by the sequence whether it has read some of before and some of after.
    #[inline]
    pub(crate) fn write_parts(&mut self, now: Time, write: impl FnOnce(&mut CounterWords<'_>)) {
        let words = self.memory.words(word::VALUES, self.base.len());
        let [sequence, written] =
            [word::SEQUENCE, word::WRITTEN].map(|offset| self.memory.word(offset));
        let before = sequence.load(Ordering::Relaxed) & !1;
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        write(&mut CounterWords { words, base: &self.base });
        sequence.store(before.wrapping_add(2), Ordering::Release);
        written.store(self.epoch_ns + now.as_nanos(), Ordering::Relaxed);
    }
}

/// The places of counters in a section, in order.
#[derive(Debug)]
pub(crate) struct CounterWords<'a> {
    words: &'a [AtomicU64],
    base: &'a [u64],
}

impl CounterWords<'_> {
    /// Writes the next counters. Returns their number.
    #[inline]
    fn write(&mut self, values: impl Iterator<Item = u64>) -> usize {
        let mut count = 0;
        let mut places = self.words.iter().zip(self.base);
        values.for_each(|value| {
            if let Some((word, base)) = places.next() {
                word.store(base.wrapping_add(value), Ordering::Relaxed);
                count += 1;
            }
        });
        self.pass(count);
        count
    }

    /// Leaves the next counters as they are.
    fn pass(&mut self, count: usize) {
        (self.words, self.base) = (&self.words[count..], &self.base[count..]);
    }
}

/// The counters of one kind that were written last. They are not written again before one of them has changed: counters are
/// published after every operation while the thread that turns the engine sleeps, and most operations change few of them.
#[derive(Debug)]
pub(crate) struct WrittenCounters<T> {
    last: Option<T>,
    count: usize,
}

impl<T> Default for WrittenCounters<T> {
    fn default() -> Self {
        Self { last: None, count: 0 }
    }
}

impl<T: Clone + PartialEq> WrittenCounters<T> {
    /// Writes the counters at the next places, unless they are there.
    #[inline]
    pub(crate) fn write<'c, V: Iterator<Item = u64>>(
        &mut self,
        places: &mut CounterWords<'_>,
        counters: &'c T,
        values: impl FnOnce(&'c T) -> V,
    ) {
        if self.last.as_ref() == Some(counters) {
            return places.pass(self.count);
        }
        self.count = places.write(values(counters));
        match &mut self.last {
            Some(last) => last.clone_from(counters),
            none => *none = Some(counters.clone()),
        }
    }
}

/// Takes away the values of the gauges of an engine's section.
fn remove_gauges(memory: &Memory) {
    let words = memory.words(word::VALUES, engine_metrics().count()).iter().zip(engine_metrics());
    let gauges = words.filter(|(_, metric)| metric.gauge.is_some());
    gauges.for_each(|(word, _)| word.store(ABSENT, Ordering::Relaxed));
}

impl Drop for Section {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        if self.kind == SectionType::Engine {
            remove_gauges(&self.memory);
        }
        if self.kind == SectionType::Attached {
            self.memory.word(word::KIND).store(SectionType::Detached.code(), Ordering::Release);
        }
        let Some(mut file) = lock() else { return };
        let Some(file) = file.as_mut() else { return };
        match self.kind {
            SectionType::Engine => file.engines.push(self.index),
            SectionType::Attached | SectionType::Detached => file.detached.push_back(self.index),
        }
    }
}

/// The counters of an engine that were written last, by kind.
#[derive(Debug, Default)]
pub(crate) struct WrittenKinds {
    pub(crate) protocol: WrittenCounters<Counters>,
    pub(crate) link: WrittenCounters<LinkCounters>,
    pub(crate) memory: WrittenCounters<MemoryCounters>,
    pub(crate) delivery: WrittenCounters<DeliveryCounters>,
    pub(crate) streams: WrittenCounters<StreamCounters>,
    pub(crate) handshakes: WrittenCounters<HandshakeCounters>,
    pub(crate) identity: WrittenCounters<IdentityGauges>,
}

/// The next action of an engine for its section.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) section: Section,
    pub(crate) written: WrittenKinds,
    /// Time at which the counters are due, if the engine is turned.
    pub(crate) next: Time,
    /// Datagrams that the kernel has dropped, which it takes a system call to know, and when it was asked last.
    pub(crate) drops: u64,
    pub(crate) asked: Time,
}

impl Publication {
    pub(crate) fn new(place: &MetricsAt) -> Option<Box<Self>> {
        let section = Section::of_engine(place)?;
        let (written, next, asked) = (WrittenKinds::default(), Time::ZERO, Time::ZERO);
        Some(Box::new(Self { section, written, next, drops: 0, asked }))
    }
}

/// Interval at which the number of dropped datagrams is read from the kernel.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);

const LOCK_TRIES: usize = 10_000;

const PAGE: usize = apus_shm::PAGE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_have_not_changed_keep_their_places() {
        let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
        let base = [100, 200, 300, 400];
        let (mut first, mut second) = (WrittenCounters::default(), WrittenCounters::default());
        let mut write = |a: [u64; 3], b: [u64; 1]| {
            let mut places = CounterWords { words: &words, base: &base };
            first.write(&mut places, &a, |it| it.iter().copied());
            second.write(&mut places, &b, |it| it.iter().copied());
            assert!(places.words.is_empty());
            [0, 1, 2, 3].map(|place| words[place].swap(0, Ordering::Relaxed))
        };
        assert_eq!(write([1, 2, 3], [4]), [101, 202, 303, 404], "all are new");
        assert_eq!(write([1, 2, 3], [5]), [0, 0, 0, 405]);
        assert_eq!(write([1, 2, 4], [5]), [101, 202, 304, 0]);
        assert_eq!(write([1, 2, 4], [5]), [0; 4]);
    }
}
