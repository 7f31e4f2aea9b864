//! Settings of a recording and its end: words in the file's header. The process reads them while it runs, and other processes may
//! set them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::layout::{CONTROLS_AT, HEADER, SIGN_OF_LIFE_AT, WITHOUT_RING_AT};

/// The clock never reaches this stamp, so the recording does not end.
const NEVER: u64 = u64::MAX;

/// The choice of calls that a process records, and of calls that freeze its trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// One call in this many is recorded; 1 records every call. 0 is taken as 1.
    pub one_in: u32,
    /// A call that takes longer freezes the traces of both ends. With `None`, no call does.
    pub slower_than: Option<Duration>,
}

/// The words in the mapped header of this process.
#[repr(C)]
#[derive(Debug)]
pub struct Controls {
    /// Records with a later stamp are not written.
    until: AtomicU64,
    one_in: AtomicU64,
    /// In nanoseconds; 0 for none.
    slower_than: AtomicU64,
    /// Threads that found no free ring at their first record.
    without_ring: AtomicU64,
    /// 0, or a number that another process keeps changing while it wants these settings.
    sign_of_life: AtomicU64,
}

// These words are mapped at this range of a file whose first byte is at the start of a page.
const _: () = assert!(
    size_of::<Controls>() == CONTROLS_AT.end - CONTROLS_AT.start
        && CONTROLS_AT.start.is_multiple_of(align_of::<Controls>())
        && CONTROLS_AT.end <= HEADER
        && CONTROLS_AT.start + std::mem::offset_of!(Controls, without_ring)
            == WITHOUT_RING_AT.start
        && CONTROLS_AT.start + std::mem::offset_of!(Controls, sign_of_life)
            == SIGN_OF_LIFE_AT.start
);

impl Controls {
    /// Whether a record with this stamp is written.
    #[inline]
    pub(crate) fn records(&self, stamp: u64) -> bool {
        stamp < u64::from_le(self.until.load(Ordering::Relaxed))
    }

    /// Ends the recording at this stamp. Returns `false` if the recording has ended or ends earlier.
    pub(crate) fn end_at(&self, stamp: u64) -> bool {
        let [never, stamp] = [NEVER, stamp].map(u64::to_le);
        self.until.compare_exchange(never, stamp, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Resumes the recording if its end is this stamp, and leaves any other end unchanged.
    pub(crate) fn go_on_from(&self, stamp: u64) {
        let [never, stamp] = [NEVER, stamp].map(u64::to_le);
        let _ = self.until.compare_exchange(stamp, never, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The sign of life of the process that changed the settings; 0 if no process has.
    #[inline]
    pub(crate) fn sign_of_life(&self) -> u64 {
        u64::from_le(self.sign_of_life.load(Ordering::Relaxed))
    }

    /// Sets these settings and clears the sign of life.
    pub(crate) fn restore(&self, settings: &Settings) {
        let [one_in, slower_than] = words(settings).map(u64::to_le);
        self.one_in.store(one_in, Ordering::Relaxed);
        self.slower_than.store(slower_than, Ordering::Relaxed);
        self.sign_of_life.store(0, Ordering::Relaxed);
    }

    /// Counts a thread that found no ring.
    pub(crate) fn count_without_ring(&self) {
        let count = u64::from_le(self.without_ring.load(Ordering::Relaxed));
        self.without_ring.store(count.saturating_add(1).to_le(), Ordering::Relaxed);
    }

    /// The current settings, which another process may have changed.
    #[inline]
    #[must_use]
    pub fn settings(&self) -> Settings {
        let one_in = u64::from_le(self.one_in.load(Ordering::Relaxed));
        let nanos = u64::from_le(self.slower_than.load(Ordering::Relaxed));
        Settings {
            one_in: one_in.clamp(1, u32::MAX.into()) as u32,
            slower_than: (nanos > 0).then(|| Duration::from_nanos(nanos)),
        }
    }
}

/// The header bytes of a process that records until another process ends the recording.
pub(crate) fn emit(settings: &Settings, without_ring: u64) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(&NEVER.to_le_bytes());
    bytes[8..24].copy_from_slice(&emit_settings(settings));
    bytes[24..32].copy_from_slice(&without_ring.to_le_bytes());
    bytes
}

fn words(settings: &Settings) -> [u64; 2] {
    let nanos = settings.slower_than.map_or(0, |limit| limit.as_nanos().clamp(1, NEVER.into()));
    [settings.one_in.into(), nanos as u64]
}

fn emit_settings(settings: &Settings) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words(settings)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The trace of a running process by its file, which is open for writing.
#[derive(Debug)]
pub struct Remote<'a>(pub &'a File);

impl Remote<'_> {
    /// Ends the recording, which preserves its records.
    ///
    /// # Errors
    /// The errors of writing the file.
    pub fn freeze(&self) -> io::Result<()> {
        self.0.write_all_at(&1u64.to_le_bytes(), CONTROLS_AT.start as u64)
    }

    /// Resumes the recording. Earlier records stay until they are overwritten.
    ///
    /// # Errors
    /// The errors of writing the file.
    pub fn thaw(&self) -> io::Result<()> {
        self.0.write_all_at(&NEVER.to_le_bytes(), CONTROLS_AT.start as u64)
    }

    /// Whether the recording has ended.
    ///
    /// # Errors
    /// The errors of reading the file.
    pub fn is_frozen(&self) -> io::Result<bool> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, CONTROLS_AT.start as u64)?;
        Ok(u64::from_le_bytes(bytes) != NEVER)
    }

    /// The current settings.
    ///
    /// # Errors
    /// The errors of reading the file.
    pub fn settings(&self) -> io::Result<Settings> {
        let mut bytes = [0; 40];
        self.0.read_exact_at(&mut bytes, CONTROLS_AT.start as u64)?;
        let words: [_; 5] = std::array::from_fn(|index| {
            let bytes = bytes[index * 8..index * 8 + 8].try_into().expect("a word has eight bytes");
            AtomicU64::new(u64::from_ne_bytes(bytes))
        });
        let [until, one_in, slower_than, without_ring, sign_of_life] = words;
        Ok(Controls { until, one_in, slower_than, without_ring, sign_of_life }.settings())
    }

    /// Keeps the settings alive with a number that is neither 0 nor the previous number. A process that sees the same number for
    /// five seconds restores its initial settings, so that the settings do not outlast the process that set them. With 0, the
    /// process keeps the current settings.
    ///
    /// # Errors
    /// The errors of writing the file.
    pub fn show_life(&self, number: u64) -> io::Result<()> {
        self.0.write_all_at(&number.to_le_bytes(), SIGN_OF_LIFE_AT.start as u64)
    }

    /// Changes the settings. The process reads them with the next packets that it receives.
    ///
    /// # Errors
    /// The errors of writing the file.
    pub fn set(&self, settings: &Settings) -> io::Result<()> {
        self.0.write_all_at(&emit_settings(settings), CONTROLS_AT.start as u64 + 8)
    }
}
