//! Where things lie in a file of counters. All numbers are in the byte order of the machine, as the file never leaves it.
//!
//! ```text
//! header   magic, version, lengths; which process wrote the file; text: a line "group name unit" for each counter
//! section  sequence, kind, time, owner; values          an engine of the process, or a process that uses its engine
//! section  …                                            all of one length; the file grows as they are needed
//! ```
//!
//! The values of a section are written one by one. Its sequence is odd meanwhile, so a reader of a running process can tell that it
//! has read a mixture. The file of a process that was killed meanwhile has such a mixture for ever: each value by itself is right, and
//! at most one interval of publication old.

use std::fmt::Write as _;

use crate::metric::{engine_metrics, metrics};

/// The first bytes of every file.
pub const MAGIC: [u8; 8] = *b"apusmetr";

/// Changes when an older reader could not read a file any more. New counters and sections do not change it.
pub const VERSION: u32 = 1;

/// Bytes before the text.
pub(crate) const FIXED: usize = 192;

/// Bytes of a section before its values.
pub(crate) const SECTION_HEADER: usize = 64;

/// Sections of one file. An engine, or a process that uses one, beyond that has none.
pub const SECTIONS_MAX: usize = 1024;

/// Offsets of a section's words from its start.
pub mod word {
    /// Odd while the section is being written.
    pub const SEQUENCE: usize = 0;
    /// What it belongs to, as [`Kind::code`](crate::Kind::code).
    pub const KIND: usize = 8;
    /// When it was written last: nanoseconds since the epoch.
    pub const WRITTEN: usize = 16;
    /// Number and user of the process that it belongs to; 0 for an engine.
    pub const OWNER: usize = 24;
    /// Place in the list of names of the first value.
    pub const FIRST: usize = 32;
    /// Number of values.
    pub const COUNT: usize = 40;
    /// 1 once the node of an engine was closed or dropped, so a process that was killed leaves 0. Versions of before leave 0 as well.
    pub const CLOSED: usize = 48;
    /// The first value.
    pub const VALUES: usize = 64;
}

/// What a section belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An engine of the process. Another engine that takes the section when this one has ended counts on in it.
    Engine,
    /// A process that uses the engine.
    Attached,
    /// A process that has used the engine. The section is free for another process.
    Detached,
}

impl Kind {
    /// The number that stands for it.
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

/// Which process wrote a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// Its number, in its pid namespace.
    pub pid: u32,
    /// When it started, in the unit of `/proc/PID/stat`: with the number it names one process since the boot.
    pub ticks: u64,
    /// Inode of its pid namespace.
    pub namespace: u64,
    /// When the file was made: nanoseconds since the epoch.
    pub made_ns: u64,
    /// The name of its program, cut to 64 bytes.
    pub program: String,
    /// Its version of Apus, cut to 32 bytes.
    pub version: String,
}

/// Bytes of a section.
#[must_use]
pub fn section_length() -> usize {
    (SECTION_HEADER + 8 * engine_metrics().count()).next_multiple_of(64)
}

/// The beginning of a file, up to its first section.
#[must_use]
pub fn header(start: &Start) -> Vec<u8> {
    let mut names = String::new();
    for metric in metrics() {
        let _ = writeln!(names, "{} {} {}", metric.group, metric.name, metric.unit);
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
