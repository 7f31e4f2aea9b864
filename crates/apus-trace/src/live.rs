//! The rings of this process.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::gettid;

use crate::controls::{Controls, Settings};
use crate::event::EventInfo;
use crate::file::{Anchor, FileHeader, machine, names};
use crate::layout::{CONTROLS_AT, HEADER};
use crate::ring::LiveRing;
use crate::stamp::{Clock, monotonic_nanos, realtime_nanos, ticks};

/// Upper bound on threads of a process with rings at the same time. Other threads record nothing.
const RINGS: usize = 32;

/// Upper bound on file names tried. A taken name belongs to a process that began in the same microsecond.
const NAMES_TRIED: u64 = 100;

/// `MFD_NOEXEC_SEAL` of Linux 6.3: the memory can never be executed.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Duration of the clock's calibration when a trace begins. The rate of the counter is then known to one part in 1,000, and later
/// records improve it.
const CALIBRATION_NANOS: u64 = 100_000;

/// Time between a freeze and the end of the recording, so that the trace includes the end of the frozen call and its aftermath.
const FREEZE_AFTER_NANOS: u64 = 1_000_000;

/// Storage of a process's rings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RingStorage {
    /// Memory that ends with the process. Processes of the same user read it through `/proc/PID/fd` while the process runs.
    Memory,
    /// A file `PROGRAM.START.PID.trace` in this directory, which outlives the process. START is the time in µs since 1970, because
    /// containers that share the directory may reuse a PID.
    Directory(PathBuf),
}

/// The mapped file of this process.
#[derive(Debug)]
struct Live {
    file: File,
    rings: &'static [LiveRing],
    controls: &'static Controls,
    /// The settings passed to [`start`].
    beginning: Settings,
    /// The last sign of life of the process that changed the settings, and the time at which it was first seen.
    life_seen: (u64, u64),
    /// Ticks of [`FREEZE_AFTER_NANOS`].
    freeze_after: u64,
    /// Indices of rings without a thread.
    free: Vec<usize>,
    pid: u32,
    storage: RingStorage,
}

static LIVE: Mutex<Option<Live>> = Mutex::new(None);

/// PID of the process that has the file; 0 before [`start`]. A forked child records nothing: the rings belong to its parent's
/// threads, and one of those may have held the lock.
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The ring of this thread; `None` before its first record, and if no ring was free.
    static RING: Cell<Option<(&'static LiveRing, Clock, &'static Controls)>> = const { Cell::new(None) };
    /// The number of [`RETURNED`] rings when the thread last failed to get a ring.
    static ASKED_AT: Cell<u64> = const { Cell::new(NEVER_ASKED) };
    /// Returns the ring when the thread ends.
    static HELD: Cell<Option<ThreadRing>> = const { Cell::new(None) };
}

/// Number of rings that threads have returned. A thread without a ring tries again when this number changes.
static RETURNED: AtomicU64 = AtomicU64::new(0);

/// Value of [`ASKED_AT`] before the thread has tried to get a ring.
const NEVER_ASKED: u64 = u64::MAX;
/// Value of [`ASKED_AT`] of a thread that must not take a ring again.
const ASKS_NO_MORE: u64 = u64::MAX - 1;

/// Begins to record events of this process's threads, unless a recording has begun before. Does nothing in a forked child of a
/// recording process. `events` are numbered from 0, and `settings` are the initial ones. Takes 100 µs.
///
/// # Errors
///
/// The errors of the system calls. The process then records nothing.
pub fn start(storage: &RingStorage, events: &[EventInfo], settings: &Settings) -> io::Result<()> {
    let pid = std::process::id();
    if ![0, pid].contains(&OWNER.load(Ordering::Acquire)) {
        RING.set(None);
        return Ok(());
    }
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    if live.is_none() {
        *live = Some(Live::open(storage, events, settings, pid)?);
        OWNER.store(pid, Ordering::Release);
    }
    Ok(())
}

/// The controls of this process, which other processes may change; `None` before [`start`].
#[must_use]
pub fn controls() -> Option<&'static Controls> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|live| live.controls)
}

/// Ends the recording of this process in 1 ms, which preserves the events that led to this moment.
/// [`Remote::thaw`](crate::Remote::thaw) resumes it. Does nothing in a forked child.
pub fn freeze() {
    if OWNER.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    if let Some(live) = &*LIVE.lock().unwrap_or_else(PoisonError::into_inner) {
        live.controls.end_at(ticks(Clock::of_host()).saturating_add(live.freeze_after));
    }
}

/// Freezes the recording like [`freeze`], and lets [`thaw_if_due`] resume it after `time`. Has no effect if the recording has
/// ended.
pub fn freeze_for(time: Duration) {
    if OWNER.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    if let Some(live) = &*LIVE.lock().unwrap_or_else(PoisonError::into_inner) {
        let end = ticks(Clock::of_host()).saturating_add(live.freeze_after);
        if live.controls.end_at(end) {
            let steps = time.as_nanos() as f64 / FREEZE_AFTER_NANOS as f64;
            let more = (steps * live.freeze_after as f64) as u64;
            FROZEN_AT.store(end, Ordering::Relaxed);
            THAW_AT.store(end.saturating_add(more), Ordering::Release);
        }
    }
}

/// Resumes a recording whose time has come ([`freeze_for`]), unless it was frozen again since. Costs one load if none is frozen for
/// a time.
#[inline]
pub fn thaw_if_due() {
    if THAW_AT.load(Ordering::Relaxed) != NOT_FROZEN {
        thaw_if_due_now();
    }
}

#[cold]
fn thaw_if_due_now() {
    let due = THAW_AT.load(Ordering::Acquire);
    if due > ticks(Clock::of_host()) || OWNER.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    if let Some(live) = &*LIVE.lock().unwrap_or_else(PoisonError::into_inner) {
        live.controls.go_on_from(FROZEN_AT.load(Ordering::Relaxed));
        THAW_AT.store(NOT_FROZEN, Ordering::Relaxed);
    }
}

/// Restores the initial settings if another process has changed them and has shown no life for `silence_max`. Costs one load if no
/// process has changed them.
#[inline]
pub fn restore_if_due(controls: &Controls, silence_max: Duration) {
    let number = controls.sign_of_life();
    if number != 0 {
        restore_if_due_now(number, silence_max);
    }
}

#[cold]
fn restore_if_due_now(number: u64, silence_max: Duration) {
    if OWNER.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(live) = &mut *live else { return };
    let now = monotonic_nanos();
    if live.life_seen.0 != number {
        live.life_seen = (number, now);
    } else if u128::from(now.saturating_sub(live.life_seen.1)) >= silence_max.as_nanos() {
        live.controls.restore(&live.beginning);
        live.life_seen = (0, now);
    }
}

/// Stamp at which the recording was frozen for a time.
static FROZEN_AT: AtomicU64 = AtomicU64::new(0);
/// Stamp at which it resumes, or [`NOT_FROZEN`].
static THAW_AT: AtomicU64 = AtomicU64::new(NOT_FROZEN);

/// Value of [`THAW_AT`] while no recording is frozen for a time.
const NOT_FROZEN: u64 = 0;

/// Records an event at the current time. Does nothing before [`start`], and in threads without a ring.
#[inline]
pub fn record(event: u16, arguments: [u32; 4]) {
    match RING.get() {
        Some((ring, clock, controls)) => ring.write(clock, controls, event, arguments),
        None => begin(event, arguments),
    }
}

/// Takes a ring for the thread's first record.
#[cold]
fn begin(event: u16, arguments: [u32; 4]) {
    let owner = OWNER.load(Ordering::Acquire);
    let returned = RETURNED.load(Ordering::Acquire);
    let asked_at = ASKED_AT.get();
    if [returned, ASKS_NO_MORE].contains(&asked_at) || owner == 0 {
        return;
    }
    ASKED_AT.set(ASKS_NO_MORE);
    if owner != std::process::id() {
        return;
    }
    if HELD.try_with(|_| ()).is_err() {
        return; // The thread is ending.
    }
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(live) = &mut *live else { return };
    let Some(index) = live.free.pop() else {
        ASKED_AT.set(returned);
        if asked_at == NEVER_ASKED {
            live.controls.count_without_ring();
        }
        return;
    };
    // Without backing memory, the first write would kill the process.
    let offset = (HEADER + index * size_of::<LiveRing>()) as i64;
    let length = size_of::<LiveRing>() as i64;
    if live.storage != RingStorage::Memory
        && fallocate(&live.file, FallocateFlags::empty(), offset, length).is_err()
    {
        // Readers expect rings without gaps, so the next thread starts with this ring.
        live.free.push(index);
        live.controls.count_without_ring();
        return;
    }
    let (ring, clock) = (&live.rings[index], Clock::of_host());
    let thread = std::thread::current();
    ring.take(clock, gettid().as_raw() as u32, thread.name().unwrap_or("thread"));
    RING.set(Some((ring, clock, live.controls)));
    HELD.set(Some(ThreadRing { index, pid: live.pid }));
    ring.write(clock, live.controls, event, arguments);
}

/// The ring of a thread.
#[derive(Debug)]
struct ThreadRing {
    index: usize,
    pid: u32,
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        // Later records of the thread's destructors are lost.
        RING.set(None);
        ASKED_AT.set(ASKS_NO_MORE);
        if self.pid != std::process::id() {
            return;
        }
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = &mut *live {
            live.free.push(self.index);
            RETURNED.fetch_add(1, Ordering::Release);
        }
    }
}

impl Live {
    fn open(
        storage: &RingStorage,
        events: &[EventInfo],
        settings: &Settings,
        pid: u32,
    ) -> io::Result<Self> {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name()?.to_str());
        let program = program.unwrap_or("program");
        let length = HEADER + RINGS * size_of::<LiveRing>();
        fits_file_limit(length as u64)?;
        let file = match storage {
            RingStorage::Memory => memory(length)?,
            RingStorage::Directory(directory) => new_file(directory, program, pid)?,
        };
        if *storage != RingStorage::Memory {
            file.set_len(length as u64)?;
        }
        let clock = Clock::of_host();
        let header = FileHeader {
            clock,
            pid,
            machine: machine(),
            realtime: realtime_nanos(),
            anchors: calibrate(clock),
            program: program.to_owned(),
            events: names(events),
        };
        file.write_all_at(&header.emit(settings, 0), 0)?;
        let [first, last] = header.anchors;
        let ticks_per_nano =
            (last.ticks - first.ticks) as f64 / (last.nanos - first.nanos).max(1) as f64;
        let (controls, rings) = map(&file, length)?;
        Ok(Self {
            rings,
            controls,
            beginning: *settings,
            life_seen: (0, 0),
            freeze_after: (FREEZE_AFTER_NANOS as f64 * ticks_per_nano) as u64,
            file,
            free: (0..RINGS).rev().collect(),
            pid,
            storage: storage.clone(),
        })
    }
}

/// Creates a file with a new name: an existing file may be the memory in which another process records.
fn new_file(directory: &Path, program: &str, pid: u32) -> io::Result<File> {
    let open = |start: u64| {
        let path = directory.join(format!("{program}.{start}.{pid}.trace"));
        File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
    };
    let now = realtime_nanos() / 1_000;
    for start in now..now + NAMES_TRIED {
        match open(start) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Creates memory of this length, which processes of the same user find by its name.
fn memory(length: usize) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Hosts with `vm.memfd_noexec = 2` require the flag, and kernels before 6.3 refuse it.
    let no_exec = MFdFlags::from_bits_retain(MFD_NOEXEC_SEAL);
    let memory = match memfd_create(c"time-trace.apus", flags | no_exec) {
        Err(Errno::EINVAL) => memfd_create(c"time-trace.apus", flags)?,
        created => created?,
    };
    let file = File::from(memory);
    file.set_len(length as u64)?;
    // The seals keep other processes from shrinking the memory, which would kill this process.
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// `RLIMIT_FSIZE` applies to anonymous memory as well. Beyond it, the kernel sends `SIGXFSZ`, which kills the process.
fn fits_file_limit(bytes: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if bytes <= limit {
        return Ok(());
    }
    let text = format!("it takes {bytes} bytes, and RLIMIT_FSIZE is {limit}");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
}

/// Maps the controls and the rings of a file of `length` bytes for the lifetime of the process.
fn map(file: &File, length: usize) -> io::Result<(&'static Controls, &'static [LiveRing])> {
    let length = NonZeroUsize::new(length).expect("a file has a header");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the kernel chooses an address where nothing is mapped.
    let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file.as_fd(), 0)? };
    // SAFETY: the header is part of the mapping.
    let first: NonNull<LiveRing> = unsafe { base.byte_add(HEADER) }.cast();
    // SAFETY: the mapping has room for `RINGS` rings behind the header and is never removed. Pages are aligned to 4096 bytes, and
    // the header is a multiple of that, so the rings are aligned. A ring consists of atomic words only: all bytes are valid, and
    // other processes may write them.
    let rings = unsafe { std::slice::from_raw_parts(first.as_ptr(), RINGS) };
    // SAFETY: the header is longer than this, and is mapped for as long as the process lives. The controls consist of atomic words
    // only, and their place is aligned for them.
    let controls = unsafe { base.byte_add(CONTROLS_AT.start).cast::<Controls>().as_ref() };
    Ok((controls, rings))
}

/// Takes two anchors.
fn calibrate(clock: Clock) -> [Anchor; 2] {
    let anchor = || Anchor { ticks: ticks(clock), nanos: monotonic_nanos() };
    let first = anchor();
    let mut last = anchor();
    while last.nanos < first.nanos + CALIBRATION_NANOS {
        last = anchor();
    }
    [first, last]
}
