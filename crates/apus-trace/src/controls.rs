//! What is recorded, and until when: words in the header of the file, which the process reads while it runs and others may set.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::layout::{CONTROLS_AT, HEADER, SIGN_OF_LIFE_AT, WITHOUT_RING_AT};

/// A clock never reaches it: the recording goes on.
const NEVER: u64 = u64::MAX;

/// What a process records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// One call in so many; 1 is every call. 0 has no meaning and counts as 1.
    pub one_in: u32,
    /// A call that takes longer freezes the traces of both ends. `None`: none does.
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
    /// Threads that found no ring at their first record.
    without_ring: AtomicU64,
    /// 0, or a number that changes again and again for as long as another process wants these settings.
    sign_of_life: AtomicU64,
}

// They are mapped at this place of a file whose first byte is at the beginning of a page.
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

    /// Ends the recording at this moment of the clock. False if it has ended, or ends earlier.
    pub(crate) fn end_at(&self, stamp: u64) -> bool {
        let [never, stamp] = [NEVER, stamp].map(u64::to_le);
        self.until.compare_exchange(never, stamp, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Has the recording go on that was to end at this moment, and at no other one.
    pub(crate) fn go_on_from(&self, stamp: u64) {
        let [never, stamp] = [NEVER, stamp].map(u64::to_le);
        let _ = self.until.compare_exchange(stamp, never, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The sign of life of another process that has changed the settings; 0 if none has.
    #[inline]
    pub(crate) fn sign_of_life(&self) -> u64 {
        u64::from_le(self.sign_of_life.load(Ordering::Relaxed))
    }

    /// The settings are these, and no other process wants any.
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

    /// What is to be recorded now: another process may have changed it.
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

/// The bytes of a header, for a process that records until it is told otherwise.
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

/// The trace of another process that runs, or of this one, by its file, which is open for writing.
#[derive(Debug)]
pub struct Remote<'a>(pub &'a File);

impl Remote<'_> {
    /// Ends the recording, so that what was recorded stays.
    ///
    /// # Errors
    /// Those of the file.
    pub fn freeze(&self) -> io::Result<()> {
        self.0.write_all_at(&1u64.to_le_bytes(), CONTROLS_AT.start as u64)
    }

    /// Lets the recording begin again. Records of before stay until they are overwritten.
    ///
    /// # Errors
    /// Those of the file.
    pub fn thaw(&self) -> io::Result<()> {
        self.0.write_all_at(&NEVER.to_le_bytes(), CONTROLS_AT.start as u64)
    }

    /// Whether the recording has ended.
    ///
    /// # Errors
    /// Those of the file.
    pub fn is_frozen(&self) -> io::Result<bool> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, CONTROLS_AT.start as u64)?;
        Ok(u64::from_le_bytes(bytes) != NEVER)
    }

    /// What is recorded.
    ///
    /// # Errors
    /// Those of the file.
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

    /// Says that the settings are still wanted, by a number that is not 0 and not that of the time before. A process that sees the same
    /// number for five seconds goes back to the settings of its beginning, so that they do not outlast whoever wanted them. 0: it keeps
    /// the settings that it has.
    ///
    /// # Errors
    /// Those of the file.
    pub fn show_life(&self, number: u64) -> io::Result<()> {
        self.0.write_all_at(&number.to_le_bytes(), SIGN_OF_LIFE_AT.start as u64)
    }

    /// Changes what is recorded. The process sees it with the next packets that it receives.
    ///
    /// # Errors
    /// Those of the file.
    pub fn set(&self, settings: &Settings) -> io::Result<()> {
        self.0.write_all_at(&emit_settings(settings), CONTROLS_AT.start as u64 + 8)
    }
}
