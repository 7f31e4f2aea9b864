//! Layout of a file of counters. All numbers are in the byte order of the machine, because the file never leaves it.
//!
//! ```text
//! header   magic, version, lengths; the process that wrote the file; text: a line "group name unit" for each counter,
//!          "group name unit least" or "… greatest" for each gauge
//! section  sequence, kind, time, owner; values          an engine of the process, or a process that uses its engine
//! section  …                                            all of one length; the file grows as they are needed
//! ```
//!
//! The values of a section are written one by one. Its sequence is odd meanwhile, so a reader of a running process can detect a
//! mixture of old and new values. The file of a process that was killed meanwhile keeps such a mixture: each value by itself is
//! right, and at most one interval of publication old.

use std::fmt::Write as _;

use crate::metric::{engine_metrics, metrics};

/// The first bytes of every file.
pub const MAGIC: [u8; 8] = *b"apusmetr";

/// Version of the format. It changes when older readers can no longer read a file. New counters and sections do not change it.
pub const VERSION: u32 = 1;

/// The value of a gauge that has none.
pub const ABSENT: u64 = u64::MAX;

/// Length of the header before the text, in bytes.
pub(crate) const FIXED: usize = 192;

/// Length of a section before its values, in bytes.
pub(crate) const SECTION_HEADER: usize = 64;

/// Upper bound on the sections of one file. Further engines, and further processes that use one, have no section.
pub const SECTIONS_MAX: usize = 1024;

/// Offsets of a section's words from its start.
pub mod word {
    /// Odd while the section is being written.
    pub const SEQUENCE: usize = 0;
    /// Owner of the section, as [`SectionType::code`](crate::SectionType::code).
    pub const KIND: usize = 8;
    /// Time of the last write, in nanoseconds since the epoch.
    pub const WRITTEN: usize = 16;
    /// PID and user of the owning process; 0 for an engine.
    pub const OWNER: usize = 24;
    /// Index of the first value in the list of names.
    pub const FIRST: usize = 32;
    /// Number of values.
    pub const COUNT: usize = 40;
    /// 1 once the node of an engine was closed or dropped, so a process that was killed leaves 0. Versions of before leave 0 as well.
    pub const CLOSED: usize = 48;
    /// The first value.
    pub const VALUES: usize = 64;
}

/// Type of a section, by its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionType {
    /// An engine of the process. Another engine that takes the section after the end of this one continues its counters.
    Engine,
    /// A process that uses the engine.
    Attached,
    /// A process that has stopped using the engine. The section is free for another process.
    Detached,
}

impl SectionType {
    /// Returns the code of the kind.
    #[must_use]
    pub const fn code(self) -> u64 {
        match self {
            Self::Engine => 1,
            Self::Attached => 2,
            Self::Detached => 3,
        }
    }

    pub(crate) const fn of(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Engine),
            2 => Some(Self::Attached),
            3 => Some(Self::Detached),
            _ => None,
        }
    }
}

/// The process that wrote a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// PID in its pid namespace.
    pub pid: u32,
    /// Start time in the unit of `/proc/PID/stat`. With the PID, it identifies one process since the boot.
    pub ticks: u64,
    /// Inode of its pid namespace.
    pub namespace: u64,
    /// Time at which the file was created, in nanoseconds since the epoch.
    pub made_ns: u64,
    /// Name of its program, truncated to 64 bytes.
    pub program: String,
    /// Its version of Apus, truncated to 32 bytes.
    pub version: String,
}

/// Returns the length of a section in bytes.
#[must_use]
pub fn section_length() -> usize {
    (SECTION_HEADER + 8 * engine_metrics().count()).next_multiple_of(64)
}

/// Returns the beginning of a file, up to its first section.
#[must_use]
pub fn header(start: &Start) -> Vec<u8> {
    let mut names = String::new();
    for metric in metrics() {
        let _ = write!(names, "{} {} {}", metric.group, metric.name, metric.unit);
        if let Some(fold) = metric.gauge {
            let _ = write!(names, " {}", fold.word());
        }
        names.push('\n');
    }
    let length = (FIXED + names.len()).next_multiple_of(64);
    let mut header = Vec::with_capacity(length);
    header.extend(MAGIC);
    let of = |number: usize| u32::try_from(number).expect("a file is far smaller");
    let numbers = [
        VERSION,
        of(length),
        of(section_length()),
        of(SECTIONS_MAX),
        of(FIXED),
        of(names.len()),
        start.pid,
        0,
    ];
    numbers.iter().for_each(|number| header.extend(number.to_ne_bytes()));
    [start.ticks, start.namespace, start.made_ns]
        .iter()
        .for_each(|it| header.extend(it.to_ne_bytes()));
    for (text, room) in [(&start.program, 64), (&start.version, 32)] {
        let end = header.len() + room;
        header.extend(text.bytes().take(room));
        header.resize(end, 0);
    }
    header.resize(FIXED, 0);
    header.extend(names.bytes());
    header.resize(length, 0);
    header
}
